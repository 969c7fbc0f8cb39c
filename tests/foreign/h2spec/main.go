// h2spec, the conformance test of HTTP/2 servers, at HOST PORT.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

func main() {
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	settings := &config.Config{Host: os.Args[1], Port: port, Path: "/", Timeout: 5 * time.Second, MaxHeaderLen: 4000}
	if _, err := h2spec.Run(settings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
