-- The database of an issuer's accounts, version 1. Times are Unix seconds, in UTC.

-- Who may have tokens, beside the [[accounts]] of the configuration file.
CREATE TABLE accounts (
    id                      INTEGER PRIMARY KEY,
    name                    TEXT    NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    enabled                 INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    quota_tokens            INTEGER NOT NULL CHECK (quota_tokens >= 0),
    quota_period_seconds    INTEGER NOT NULL CHECK (quota_period_seconds >= 1),
    rate_tokens_per_second  INTEGER CHECK (rate_tokens_per_second >= 1),
    burst_tokens            INTEGER CHECK (burst_tokens >= 1),
    tier                    TEXT    CHECK (length(tier) BETWEEN 1 AND 64),
    expires_at_unix         INTEGER CHECK (expires_at_unix >= 0),
    CHECK ((rate_tokens_per_second IS NULL) = (burst_tokens IS NULL))
) STRICT;

-- The keys of accounts: HMAC-SHA-256, under the secret in accounts.secret, of the SHA-256 of the API key.
CREATE TABLE api_keys (
    id               INTEGER PRIMARY KEY,
    account_id       INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    key_hmac_sha256  BLOB    NOT NULL UNIQUE CHECK (length(key_hmac_sha256) = 32),
    made_elsewhere   INTEGER NOT NULL DEFAULT 0 CHECK (made_elsewhere IN (0, 1)), -- imported: not of our form
    retires_at_unix  INTEGER CHECK (retires_at_unix >= 0)
) STRICT;
CREATE INDEX api_keys_of_account ON api_keys (account_id);
CREATE INDEX api_keys_made_elsewhere ON api_keys (key_hmac_sha256) WHERE made_elsewhere = 1;

-- How many tokens each account has used at most in each period. By name: it has the accounts of the configuration file, too,
-- and an account that is removed and comes back has used what it had used. No time is finer than the period, and past periods
-- are a day or longer.
CREATE TABLE usage (
    period_start_unix  INTEGER NOT NULL,
    period_seconds     INTEGER NOT NULL CHECK (period_seconds >= 1),
    account            TEXT    NOT NULL,
    tokens             INTEGER NOT NULL CHECK (tokens >= 0),
    PRIMARY KEY (period_start_unix, period_seconds, account)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_of_short_periods ON usage (period_start_unix) WHERE period_seconds < 86400;

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
