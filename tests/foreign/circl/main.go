// A client of RFC 9577 and RFC 9578 made of Cloudflare's circl: mints one token for the challenge of a gateway's 407, and
// prints the value of Proxy-Authorization.
//
//	go run . http://127.0.0.1:8080 http://127.0.0.1:8088
package main

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"

	"github.com/cloudflare/circl/blindsign/blindrsa"
)

const blindRSA = 2

// challenge reads the parameters of a gateway's 407.
func challenge(gateway *url.URL) (value, tokenKey []byte, err error) {
	connection, err := net.Dial("tcp", gateway.Host)
	if err != nil {
		return nil, nil, err
	}
	defer connection.Close()
	fmt.Fprint(connection, "CONNECT target.example:443 HTTP/1.1\r\nHost: target.example:443\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, nil, err
	}
	header := response.Header.Get("Proxy-Authenticate")
	parameter := func(name string) ([]byte, error) {
		found := regexp.MustCompile(`\b` + name + `="?([A-Za-z0-9_=-]+)"?`).FindStringSubmatch(header)
		if found == nil {
			return nil, fmt.Errorf("no %s in %q of a %s", name, header, response.Status)
		}
		return base64.URLEncoding.DecodeString(found[1])
	}
	if value, err = parameter("challenge"); err != nil {
		return nil, nil, err
	}
	tokenKey, err = parameter("token-key")
	return value, tokenKey, err
}

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

// mint makes a token: type, nonce, challenge digest, token key id, and the issuer's signature (RFC 9578, section 6).
func mint(gateway, issuer *url.URL) ([]byte, error) {
	value, spki, err := challenge(gateway)
	if err != nil {
		return nil, err
	}
	key, err := publicKey(spki)
	if err != nil {
		return nil, err
	}
	digest, keyID := sha256.Sum256(value), sha256.Sum256(spki)
	nonce := make([]byte, 32)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	input := binary.BigEndian.AppendUint16(nil, blindRSA)
	input = append(append(append(input, nonce...), digest[:]...), keyID[:]...)

	client, err := blindrsa.NewClient(blindrsa.SHA384PSSDeterministic, key)
	if err != nil {
		return nil, err
	}
	blinded, state, err := client.Blind(rand.Reader, input)
	if err != nil {
		return nil, err
	}
	request := binary.BigEndian.AppendUint16(nil, blindRSA)
	request = append(append(request, keyID[len(keyID)-1]), blinded...)
	response, err := http.Post(issuer.JoinPath("token-request").String(), "application/private-token-request", bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	blindSignature, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the issuer answered %s: %s", response.Status, blindSignature)
	}
	signature, err := client.Finalize(state, blindSignature)
	if err != nil {
		return nil, err
	}
	digest384 := sha512.Sum384(input)
	options := &rsa.PSSOptions{SaltLength: crypto.SHA384.Size(), Hash: crypto.SHA384}
	if err := rsa.VerifyPSS(key, crypto.SHA384, digest384[:], signature, options); err != nil {
		return nil, errors.Join(errors.New("the signature is none"), err)
	}
	return append(input, signature...), nil
}

func main() {
	log.SetFlags(0)
	addresses := make([]*url.URL, 2)
	for index := range addresses {
		address, err := url.Parse(os.Args[index+1])
		if err != nil {
			log.Fatal(err)
		}
		addresses[index] = address
	}
	token, err := mint(addresses[0], addresses[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("PrivateToken token=" + base64.URLEncoding.EncodeToString(token))
}
