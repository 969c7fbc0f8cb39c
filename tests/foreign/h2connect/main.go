// Fetches a page over TLS through an https:// proxy, for tokens on standard input: tunnels in HTTP/2 by Go's own client, all at once.
//
//	main GATEWAY CA URL COUNT
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

// stream is the two halves of a tunnel as one connection.
type stream struct {
	net.Conn // nil: what TLS does not call
	io.Reader
	io.Writer
	closers []io.Closer
}

func (s stream) Read(bytes []byte) (int, error)   { return s.Reader.Read(bytes) }
func (s stream) Write(bytes []byte) (int, error)  { return s.Writer.Write(bytes) }
func (s stream) SetWriteDeadline(time.Time) error { return nil }
func (s stream) Close() error {
	for _, closer := range s.closers {
		closer.Close()
	}
	return nil
}

func main() {
	gateway, target := os.Args[1], must(url.Parse(os.Args[3]))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(os.Args[2])))
	proxy := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	tokens := bufio.NewScanner(os.Stdin)
	var all sync.WaitGroup
	for range must(strconv.Atoi(os.Args[4])) {
		tokens.Scan()
		authorization := tokens.Text()
		all.Add(1)
		go func() {
			defer all.Done()
			os.Stdout.WriteString(page(proxy, gateway, target, roots, authorization))
		}()
	}
	all.Wait()
}

func page(proxy *http.Transport, gateway string, target *url.URL, roots *x509.CertPool, authorization string) string {
	reading, writing := io.Pipe()
	response := must(proxy.RoundTrip(&http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Scheme: "https", Host: gateway},
		Host:   target.Host,
		Header: http.Header{"Proxy-Authorization": {authorization}},
		Body:   reading,
	}))
	if response.StatusCode != 200 || response.ProtoMajor != 2 {
		log.Fatal(response.Proto, " ", response.Status)
	}
	tunnel := stream{Reader: response.Body, Writer: writing, closers: []io.Closer{writing, response.Body}}
	inside := tls.Client(tunnel, &tls.Config{RootCAs: roots, ServerName: target.Hostname()})
	defer inside.Close()
	fmt.Fprintf(inside, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target.Host)
	answer := must(http.ReadResponse(bufio.NewReader(inside), nil))
	return string(must(io.ReadAll(answer.Body)))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
