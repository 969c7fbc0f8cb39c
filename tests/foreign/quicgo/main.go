// HTTP/3 made of quic-go: a server, and a client behind the UDP ASSOCIATE of a SOCKS5 proxy (RFC 1928, section 7).
//
//	quicgo serve CERTIFICATE KEY      at a free port of 127.0.0.1, which is printed; /N is a page of N bytes
//	quicgo get SOCKS CA URL           prints the page
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func main() {
	log.SetFlags(0)
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "serve":
		err = serve(os.Args[2], os.Args[3])
	case len(os.Args) == 5 && os.Args[1] == "get":
		err = get(os.Args[2], os.Args[3], os.Args[4])
	default:
		err = errors.New("usage: quicgo serve CERTIFICATE KEY | quicgo get SOCKS CA URL")
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(certificate, key string) error {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(socket.LocalAddr().(*net.UDPAddr).Port)
	page := func(answer http.ResponseWriter, request *http.Request) {
		size, _ := strconv.Atoi(request.URL.Path[1:])
		io.WriteString(answer, strings.Repeat("x", size))
	}
	server := http3.Server{
		Handler:   http.HandlerFunc(page),
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
	}
	return server.Serve(socket)
}

func get(socks, ca, url string) error {
	trusted, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(trusted) {
		return fmt.Errorf("%s has no certificate", ca)
	}
	association, err := associate(socks)
	if err != nil {
		return err
	}
	transport := quic.Transport{Conn: association}
	dial := func(ctx context.Context, address string, config *tls.Config, more *quic.Config) (*quic.Conn, error) {
		to, err := net.ResolveUDPAddr("udp4", address)
		if err != nil {
			return nil, err
		}
		return transport.DialEarly(ctx, to, config, more)
	}
	client := http.Client{Transport: &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Dial: dial}}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}
