package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// A request is a TokenRequest, and what makes the token of its TokenResponse.
type request struct {
	tokenType uint16
	body      []byte
	// responseLen is the length of the TokenResponse.
	responseLen int
	finish      func(response []byte) ([]byte, error)
}

// requestFor requests one token (RFC 9578, sections 5.1 and 6.1).
func requestFor(offer offer) (*request, error) {
	if offer.tokenType == blindRSA {
		return publicRequest(offer)
	}
	return privateRequest(offer)
}

// singly sends each request by itself.
func singly(issuer string, requests []*request) ([][]byte, error) {
	var tokens [][]byte
	for _, request := range requests {
		response, err := post(issuer, "request", "response", request.body)
		if err != nil {
			return nil, err
		}
		token, err := request.finish(response)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// generic sends all requests in one (GenericBatchTokenRequest of draft-ietf-privacypass-batched-tokens-09).
func generic(issuer string, requests []*request) ([][]byte, error) {
	var all []byte
	for _, request := range requests {
		all = append(all, request.body...)
	}
	answer, err := post(issuer, "generic-batch-request", "generic-batch-response", vector(all))
	if err != nil {
		return nil, err
	}
	responses, rest, err := readVector(answer)
	if err != nil || len(rest) > 0 {
		return nil, errors.Join(errors.New("the generic response is no vector"), err)
	}
	var tokens [][]byte
	for _, request := range requests {
		prefix := append([]byte{1}, request.body[:2]...)
		length := len(prefix) + request.responseLen
		if !bytes.HasPrefix(responses, prefix) || len(responses) < length {
			return nil, fmt.Errorf("no response of type %d begins with %x", request.tokenType, responses[:min(len(responses), 3)])
		}
		token, err := request.finish(responses[len(prefix):length])
		if err != nil {
			return nil, err
		}
		tokens, responses = append(tokens, token), responses[length:]
	}
	if len(responses) > 0 {
		return nil, errors.New("there are more responses than requests")
	}
	return tokens, nil
}

func mediaType(kind string) string {
	return "application/private-token-" + kind
}

// post sends a request of one kind, and returns the response, which must be of the other.
func post(issuer, request, response string, body []byte) ([]byte, error) {
	answer, err := http.Post("http://"+issuer+"/token-request", mediaType(request), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the issuer answered %s: %s", answer.Status, content)
	}
	if got := answer.Header.Get("Content-Type"); got != mediaType(response) {
		return nil, fmt.Errorf("the response is of type %q", got)
	}
	return content, nil
}

// vector puts the length of content before it, in two bytes (RFC 9000, section 16).
func vector(content []byte) []byte {
	if len(content) < 64 || len(content) >= 1<<14 {
		panic("this length takes another number of bytes")
	}
	return append([]byte{0x40 | byte(len(content)>>8), byte(len(content))}, content...)
}

// readVector reads a vector, and returns what follows it, too.
func readVector(data []byte) (content, rest []byte, err error) {
	if len(data) == 0 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	prefix := 1 << (data[0] >> 6)
	if len(data) < prefix {
		return nil, nil, io.ErrUnexpectedEOF
	}
	length := uint64(data[0] & 0x3f)
	for _, next := range data[1:prefix] {
		length = length<<8 | uint64(next)
	}
	if length > uint64(len(data)-prefix) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return data[prefix : prefix+int(length)], data[prefix+int(length):], nil
}
