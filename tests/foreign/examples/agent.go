// tests/foreign/examples/agent.go: a page through the agent, with Go's standard library.
//
//	go run agent.go http://127.0.0.1:8118 https://example.com/
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
)

func main() {
	agent, err := url.Parse(os.Args[1]) // http:// or socks5://
	if err != nil {
		log.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// Set here, the proxy is used for every target; from HTTPS_PROXY it is not used for localhost.
	transport.Proxy = http.ProxyURL(agent)
	client := &http.Client{Transport: transport}

	response, err := client.Get(os.Args[2])
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
