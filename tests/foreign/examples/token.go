// tests/foreign/examples/token.go: a page through the gateway, without an agent: one token a tunnel.
//
//	postern token mint --issuer URL --gateway URL --count 5 | go run token.go http://127.0.0.1:8080 https://example.com/
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"sync"
)

// wallet hands out each line of its input once.
type wallet struct {
	mutex sync.Mutex
	lines *bufio.Scanner
}

// header is called for each CONNECT, and for nothing else: a kept connection costs no further token.
func (w *wallet) header(context.Context, *url.URL, string) (http.Header, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if !w.lines.Scan() {
		return nil, errors.New("no token is left")
	}
	return http.Header{"Proxy-Authorization": {w.lines.Text()}}, nil
}

func main() {
	gateway, err := url.Parse(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	tokens := &wallet{lines: bufio.NewScanner(os.Stdin)}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(gateway)
	transport.GetProxyConnectHeader = tokens.header
	client := &http.Client{Transport: transport}

	response, err := client.Get(os.Args[2]) // https://: for http:// Go sends no CONNECT
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", body)
}
