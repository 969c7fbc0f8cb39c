// A client and an issuer of RFC 9577, RFC 9578 and draft-ietf-privacypass-batched-tokens made of Cloudflare's circl. The client
// mints for the challenges of a gateway's 407, and prints a value of Proxy-Authorization for each token. The issuer keeps its
// secrets in DIRECTORY, in files that a gateway of ours verifies with.
//
//	circl singly GATEWAY ISSUER 1 2 5       a request for each token, of these types
//	circl amortized GATEWAY ISSUER 5 5 5    one request for tokens of one private type
//	circl generic GATEWAY ISSUER 1 2 5 2    one request for tokens of any types
//	circl issuer ADDRESS DIRECTORY 1 5
package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 5 {
		log.Fatal("too few arguments")
	}
	command, first, second := os.Args[1], os.Args[2], os.Args[3]
	types := make([]uint16, 0, len(os.Args)-4)
	for _, argument := range os.Args[4:] {
		code, err := strconv.ParseUint(argument, 0, 16)
		if err != nil {
			log.Fatal(err)
		}
		types = append(types, uint16(code))
	}
	if command == "issuer" {
		log.Fatal(serve(first, second, types))
	}
	tokens, err := mint(command, first, second, types)
	if err != nil {
		log.Fatal(err)
	}
	for _, token := range tokens {
		fmt.Println("PrivateToken token=" + base64.URLEncoding.EncodeToString(token))
	}
}

// mint gets a token of each of these types for the gateway's challenges.
func mint(way, gateway, issuer string, types []uint16) ([][]byte, error) {
	offers, err := offersOf(gateway)
	if err != nil {
		return nil, err
	}
	var wanted []offer
	for _, code := range types {
		found, ok := offers[code]
		if !ok {
			return nil, fmt.Errorf("the gateway offers no type %d", code)
		}
		wanted = append(wanted, found)
	}
	if way == "amortized" {
		return amortized(issuer, wanted)
	}
	var requests []*request
	for _, offer := range wanted {
		request, err := requestFor(offer)
		if err != nil {
			return nil, err
		}
		requests = append(requests, request)
	}
	switch way {
	case "singly":
		return singly(issuer, requests)
	case "generic":
		return generic(issuer, requests)
	}
	return nil, errors.New("no such command: " + way)
}
