-- Version 5: keys that the authorizer has allowed, so that a restart does not make strangers of their users.

-- As api_keys has them, with the day since 1970-01-01 UTC of the latest answer.
CREATE TABLE keys_allowed_elsewhere (
    key_hmac_sha256  BLOB    PRIMARY KEY CHECK (length(key_hmac_sha256) = 32),
    day              INTEGER NOT NULL CHECK (day >= 0)
) STRICT, WITHOUT ROWID;
