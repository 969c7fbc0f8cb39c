-- Version 3: an account may be known by the certificates of its clients (mutual TLS).

-- The SHA-256 of a certificate's public key (its SubjectPublicKeyInfo, in DER): a certificate that is renewed for the same key is the
-- same client's. It is no secret, so there is no HMAC around it.
CREATE TABLE client_certificates (
    id                 INTEGER PRIMARY KEY,
    account_id         INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    public_key_sha256  BLOB    NOT NULL UNIQUE CHECK (length(public_key_sha256) = 32)
) STRICT;
CREATE INDEX client_certificates_of_account ON client_certificates (account_id);
