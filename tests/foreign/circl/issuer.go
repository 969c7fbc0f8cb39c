package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/cloudflare/circl/oprf"
)

// A signer is one key of an issuer.
type signer struct {
	tokenType uint16
	key       *oprf.PrivateKey
	public    []byte
}

// newSigner makes a key, and writes its secret into a file that a gateway of ours reads.
func newSigner(directory string, tokenType uint16) (*signer, error) {
	suite, err := suiteOf(tokenType)
	if err != nil {
		return nil, err
	}
	key, err := oprf.GenerateKey(suite, rand.Reader)
	if err != nil {
		return nil, err
	}
	secret, err := key.MarshalBinary()
	if err != nil {
		return nil, err
	}
	public, err := key.Public().MarshalBinary()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(directory, fmt.Sprintf("circl.type%d", tokenType))
	return &signer{tokenType, key, public}, os.WriteFile(file, []byte(hex.EncodeToString(secret)), 0o600)
}

// An issuer answers requests for one token, and amortized ones.
type issuer struct {
	signers []*signer
	mutex   sync.Mutex
	// requests are the media types of the requests so far.
	requests []string
}

// serve runs an issuer with a new key of each type.
func serve(address, directory string, types []uint16) error {
	issuer := &issuer{requests: []string{}}
	for _, tokenType := range types {
		signer, err := newSigner(directory, tokenType)
		if err != nil {
			return err
		}
		issuer.signers = append(issuer.signers, signer)
	}
	http.HandleFunc("GET /.well-known/private-token-issuer-directory", issuer.directory)
	http.HandleFunc("POST /token-request", issuer.issue)
	http.HandleFunc("GET /requests", func(writer http.ResponseWriter, _ *http.Request) {
		issuer.mutex.Lock()
		defer issuer.mutex.Unlock()
		json.NewEncoder(writer).Encode(issuer.requests)
	})
	return http.ListenAndServe(address, nil)
}

func (i *issuer) directory(writer http.ResponseWriter, _ *http.Request) {
	var keys []map[string]any
	for _, signer := range i.signers {
		key := base64.URLEncoding.EncodeToString(signer.public)
		keys = append(keys, map[string]any{"token-type": signer.tokenType, "token-key": key})
	}
	writer.Header().Set("Content-Type", "application/private-token-issuer-directory")
	json.NewEncoder(writer).Encode(map[string]any{"issuer-request-uri": "/token-request", "token-keys": keys})
}

func (i *issuer) issue(writer http.ResponseWriter, request *http.Request) {
	kind := request.Header.Get("Content-Type")
	i.mutex.Lock()
	i.requests = append(i.requests, kind)
	i.mutex.Unlock()
	body, err := io.ReadAll(request.Body)
	var response []byte
	if err == nil {
		response, err = i.answer(kind, body)
	}
	if err != nil {
		http.Error(writer, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	kinds := map[string]string{
		mediaType("request"):                 mediaType("response"),
		mediaType("amortized-batch-request"): mediaType("amortized-batch-response"),
	}
	writer.Header().Set("Content-Type", kinds[kind])
	writer.Write(response)
}

// answer makes a TokenResponse or an AmortizedBatchTokenResponse.
func (i *issuer) answer(kind string, body []byte) ([]byte, error) {
	signer, err := i.signerOf(body)
	if err != nil {
		return nil, err
	}
	body = body[3:]
	switch kind {
	case mediaType("request"):
		evaluated, proof, err := signer.evaluate(body)
		return append(evaluated, proof...), err
	case mediaType("amortized-batch-request"):
		blinded, rest, err := readVector(body)
		if err != nil || len(rest) > 0 {
			return nil, errors.Join(errors.New("these are not blinded elements alone"), err)
		}
		evaluated, proof, err := signer.evaluate(blinded)
		if err != nil {
			return nil, err
		}
		return append(vector(evaluated), proof...), nil
	}
	return nil, errors.New("requests of type " + kind + " are not answered")
}

// signerOf finds the key that a request begins with.
func (i *issuer) signerOf(body []byte) (*signer, error) {
	for _, signer := range i.signers {
		id := sha256.Sum256(signer.public)
		if len(body) >= 3 && binary.BigEndian.Uint16(body) == signer.tokenType && body[2] == id[len(id)-1] {
			return signer, nil
		}
	}
	return nil, errors.New("the request is for another key")
}

func (s *signer) evaluate(blinded []byte) (evaluated, proof []byte, err error) {
	suite, err := suiteOf(s.tokenType)
	if err != nil {
		return nil, nil, err
	}
	elements, err := deserialized(suite.Group(), blinded)
	if err != nil {
		return nil, nil, err
	}
	evaluation, err := oprf.NewVerifiableServer(suite, s.key).Evaluate(&oprf.EvaluationRequest{Elements: elements})
	if err != nil {
		return nil, nil, err
	}
	if evaluated, err = serialized(evaluation.Elements); err != nil {
		return nil, nil, err
	}
	proof, err = evaluation.Proof.MarshalBinary()
	return evaluated, proof, err
}
