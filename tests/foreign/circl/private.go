package main

import (
	"errors"
	"fmt"

	"github.com/cloudflare/circl/group"
	"github.com/cloudflare/circl/oprf"
	"github.com/cloudflare/circl/zk/dleq"
)

// suiteOf is the suite of a private token type (RFC 9578, section 5; draft-ietf-privacypass-batched-tokens-09 for type 5).
func suiteOf(tokenType uint16) (oprf.Suite, error) {
	switch tokenType {
	case 1:
		return oprf.SuiteP384, nil
	case 5:
		return oprf.SuiteRistretto255, nil
	}
	return nil, fmt.Errorf("type %d is not private", tokenType)
}

// Blinded elements are for one key; finish makes tokens of what the issuer made of them.
type blinded struct {
	suite    oprf.Suite
	elements []byte
	finish   func(evaluated, proof []byte) ([][]byte, error)
}

// blind makes count inputs for an offer, and blinds them.
func blind(offer offer, count int) (*blinded, error) {
	suite, err := suiteOf(offer.tokenType)
	if err != nil {
		return nil, err
	}
	key := new(oprf.PublicKey)
	if err := key.UnmarshalBinary(suite, offer.key); err != nil {
		return nil, err
	}
	inputs := make([][]byte, count)
	for index := range inputs {
		if inputs[index], err = offer.input(); err != nil {
			return nil, err
		}
	}
	client := oprf.NewVerifiableClient(suite, key)
	state, request, err := client.Blind(inputs)
	if err != nil {
		return nil, err
	}
	elements, err := serialized(request.Elements)
	if err != nil {
		return nil, err
	}
	finish := func(evaluated, proof []byte) ([][]byte, error) {
		elements, err := deserialized(suite.Group(), evaluated)
		if err != nil {
			return nil, err
		}
		proved := new(dleq.Proof)
		if err := proved.UnmarshalBinary(suite.Group(), proof); err != nil {
			return nil, err
		}
		authenticators, err := client.Finalize(state, &oprf.Evaluation{Elements: elements, Proof: proved})
		if err != nil {
			return nil, err
		}
		tokens := make([][]byte, count)
		for index, authenticator := range authenticators {
			tokens[index] = append(inputs[index], authenticator...)
		}
		return tokens, nil
	}
	return &blinded{suite, elements, finish}, nil
}

// privateRequest requests one token of type 1 or 5 (RFC 9578, section 5).
func privateRequest(offer offer) (*request, error) {
	blinded, err := blind(offer, 1)
	if err != nil {
		return nil, err
	}
	length := len(blinded.elements)
	finish := func(response []byte) ([]byte, error) {
		tokens, err := blinded.finish(response[:length], response[length:])
		if err != nil {
			return nil, err
		}
		return tokens[0], nil
	}
	responseLen := length + proofLen(blinded.suite.Group())
	return &request{offer.tokenType, append(offer.head(), blinded.elements...), responseLen, finish}, nil
}

// amortized sends one request for as many tokens as there are offers, all the same
// (AmortizedBatchTokenRequest of draft-ietf-privacypass-batched-tokens-09).
func amortized(issuer string, offers []offer) ([][]byte, error) {
	for _, offer := range offers {
		if offer.tokenType != offers[0].tokenType {
			return nil, errors.New("an amortized batch is of one type")
		}
	}
	blinded, err := blind(offers[0], len(offers))
	if err != nil {
		return nil, err
	}
	body := append(offers[0].head(), vector(blinded.elements)...)
	answer, err := post(issuer, "amortized-batch-request", "amortized-batch-response", body)
	if err != nil {
		return nil, err
	}
	evaluated, proof, err := readVector(answer)
	if err != nil {
		return nil, err
	}
	return blinded.finish(evaluated, proof)
}

func elementLen(g group.Group) int {
	return int(g.Params().CompressedElementLength)
}

func proofLen(g group.Group) int {
	return 2 * int(g.Params().ScalarLength)
}

func serialized(elements []group.Element) ([]byte, error) {
	var all []byte
	for _, element := range elements {
		bytes, err := element.MarshalBinaryCompress()
		if err != nil {
			return nil, err
		}
		all = append(all, bytes...)
	}
	return all, nil
}

func deserialized(g group.Group, data []byte) ([]group.Element, error) {
	length := elementLen(g)
	if len(data) == 0 || len(data)%length != 0 {
		return nil, fmt.Errorf("%d bytes are no elements of %d", len(data), length)
	}
	var elements []group.Element
	for ; len(data) > 0; data = data[length:] {
		element := g.NewElement()
		if err := element.UnmarshalBinary(data[:length]); err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	return elements, nil
}
