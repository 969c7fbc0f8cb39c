package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/asn1"
	"errors"

	"github.com/cloudflare/circl/blindsign/blindrsa"
)

const blindRSA = 2

// publicKey reads an RSASSA-PSS key, whose identifier crypto/x509 does not take.
func publicKey(spki []byte) (*rsa.PublicKey, error) {
	var info struct {
		Algorithm asn1.RawValue
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(spki, &info); err != nil {
		return nil, err
	}
	key := new(rsa.PublicKey)
	if _, err := asn1.Unmarshal(info.Key.Bytes, key); err != nil {
		return nil, err
	}
	return key, nil
}

// publicRequest requests a token of type 2 (RFC 9578, section 6).
func publicRequest(offer offer) (*request, error) {
	key, err := publicKey(offer.key)
	if err != nil {
		return nil, err
	}
	input, err := offer.input()
	if err != nil {
		return nil, err
	}
	client, err := blindrsa.NewClient(blindrsa.SHA384PSSDeterministic, key)
	if err != nil {
		return nil, err
	}
	blinded, state, err := client.Blind(rand.Reader, input)
	if err != nil {
		return nil, err
	}
	finish := func(response []byte) ([]byte, error) {
		signature, err := client.Finalize(state, response)
		if err != nil {
			return nil, err
		}
		digest := sha512.Sum384(input)
		options := &rsa.PSSOptions{SaltLength: crypto.SHA384.Size(), Hash: crypto.SHA384}
		if err := rsa.VerifyPSS(key, crypto.SHA384, digest[:], signature, options); err != nil {
			return nil, errors.Join(errors.New("the signature is none"), err)
		}
		return append(input, signature...), nil
	}
	return &request{offer.tokenType, append(offer.head(), blinded...), key.Size(), finish}, nil
}
