-- The database of an issuer's accounts. Times are Unix seconds, in UTC.

-- Who may have tokens.
CREATE TABLE accounts (
    id                      INTEGER PRIMARY KEY,
    name                    TEXT    NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    enabled                 INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    quota_tokens            INTEGER CHECK (quota_tokens >= 0), -- NULL: the quota of its tier
    quota_period_seconds    INTEGER CHECK (quota_period_seconds >= 1),
    rate_tokens_per_second  INTEGER CHECK (rate_tokens_per_second >= 1),
    burst_tokens            INTEGER CHECK (burst_tokens >= 1),
    tier                    TEXT    CHECK (length(tier) BETWEEN 1 AND 64), -- one of [[tiers]] in the configuration file
    expires_at_unix         INTEGER CHECK (expires_at_unix >= 0),
    CHECK ((quota_tokens IS NULL) = (quota_period_seconds IS NULL)),
    CHECK (quota_tokens IS NOT NULL OR tier IS NOT NULL),
    CHECK ((rate_tokens_per_second IS NULL) = (burst_tokens IS NULL))
) STRICT;
CREATE INDEX accounts_by_tier ON accounts (tier) WHERE quota_tokens IS NULL;

-- The keys of accounts: HMAC-SHA-256, under the secret in accounts.secret, of the SHA-256 of the API key.
CREATE TABLE api_keys (
    id               INTEGER PRIMARY KEY,
    account_id       INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    key_hmac_sha256  BLOB    NOT NULL UNIQUE CHECK (length(key_hmac_sha256) = 32),
    made_elsewhere   INTEGER NOT NULL DEFAULT 0 CHECK (made_elsewhere IN (0, 1)), -- declared in a file: not of our form
    retires_at_unix  INTEGER CHECK (retires_at_unix >= 0)
) STRICT;
CREATE INDEX api_keys_of_account ON api_keys (account_id);
CREATE INDEX api_keys_made_elsewhere ON api_keys (key_hmac_sha256) WHERE made_elsewhere = 1;

-- The accounts that a file declares (postern issuer account apply), each with the key that the file has for it, as api_keys has it.
CREATE TABLE declared_accounts (
    account_id       INTEGER PRIMARY KEY REFERENCES accounts (id) ON DELETE CASCADE,
    key_hmac_sha256  BLOB    CHECK (length(key_hmac_sha256) = 32)
) STRICT;

-- The certificates of accounts' clients: the SHA-256 of a certificate's public key (its SubjectPublicKeyInfo, in DER), as a
-- certificate that is renewed for the same key is the same client's. It is no secret, so there is no HMAC around it.
CREATE TABLE client_certificates (
    id                 INTEGER PRIMARY KEY,
    account_id         INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    public_key_sha256  BLOB    NOT NULL UNIQUE CHECK (length(public_key_sha256) = 32)
) STRICT;
CREATE INDEX client_certificates_of_account ON client_certificates (account_id);

-- How many tokens each account has used at most in each period. By name: an account that is removed and comes back has used what
-- it had used, and accounts of an authorizer are here, too. No time is finer than the period, and past periods are a day or longer.
CREATE TABLE usage (
    period_start_unix  INTEGER NOT NULL,
    period_seconds     INTEGER NOT NULL CHECK (period_seconds >= 1),
    account            TEXT    NOT NULL,
    tokens             INTEGER NOT NULL CHECK (tokens >= 0),
    PRIMARY KEY (period_start_unix, period_seconds, account)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_of_short_periods ON usage (period_start_unix) WHERE period_seconds < 86400;

-- Keys that the authorizer has allowed, as api_keys has them, with the day since 1970-01-01 UTC of the latest answer: a restart
-- does not make strangers of their users.
CREATE TABLE keys_allowed_elsewhere (
    key_hmac_sha256  BLOB    PRIMARY KEY CHECK (length(key_hmac_sha256) = 32),
    day              INTEGER NOT NULL CHECK (day >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
    name   TEXT PRIMARY KEY,
    value  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- For people.
CREATE VIEW usage_by_time AS
    SELECT datetime(period_start_unix, 'unixepoch') AS begins_utc,
           datetime(period_start_unix + period_seconds, 'unixepoch') AS ends_utc,
           account, tokens
    FROM usage ORDER BY period_start_unix, account;
