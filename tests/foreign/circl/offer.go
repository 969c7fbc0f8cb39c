package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"regexp"
)

// An offer is one challenge of a gateway, and the key to mint with.
type offer struct {
	tokenType      uint16
	challenge, key []byte
}

var challenges = regexp.MustCompile(`PrivateToken challenge="?([A-Za-z0-9_=-]+)"?, *token-key="?([A-Za-z0-9_=-]+)"?`)

// offersOf reads the challenges of a gateway's 407, by token type.
func offersOf(gateway string) (map[uint16]offer, error) {
	connection, err := net.Dial("tcp", gateway)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	fmt.Fprint(connection, "CONNECT target.example:443 HTTP/1.1\r\nHost: target.example:443\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	offers := make(map[uint16]offer)
	for _, header := range response.Header.Values("Proxy-Authenticate") {
		for _, found := range challenges.FindAllStringSubmatch(header, -1) {
			challenge, err := base64.URLEncoding.DecodeString(found[1])
			if err != nil {
				return nil, err
			}
			key, err := base64.URLEncoding.DecodeString(found[2])
			if err != nil {
				return nil, err
			}
			code := binary.BigEndian.Uint16(challenge)
			offers[code] = offer{code, challenge, key}
		}
	}
	return offers, nil
}

// input is a token without its authenticator: type, nonce, challenge digest and token key id (RFC 9578, section 5.4).
func (o offer) input() ([]byte, error) {
	nonce := make([]byte, 32)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	digest, id := sha256.Sum256(o.challenge), sha256.Sum256(o.key)
	input := binary.BigEndian.AppendUint16(nil, o.tokenType)
	return append(append(append(input, nonce...), digest[:]...), id[:]...), nil
}

// head is what a request begins with: the type, and the last byte of the token key id.
func (o offer) head() []byte {
	id := sha256.Sum256(o.key)
	return append(binary.BigEndian.AppendUint16(nil, o.tokenType), id[len(id)-1])
}
