module postern.invalid/circl

go 1.25.0

require github.com/cloudflare/circl v1.6.5
