module postern.invalid/circl

go 1.25.0

require github.com/cloudflare/circl v1.6.5

require (
	github.com/bwesterb/go-ristretto v1.2.4 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
