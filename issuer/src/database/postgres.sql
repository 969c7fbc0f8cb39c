-- What only PostgreSQL has: several issuers share these tables.

-- The token keys, as files in the directory of a single issuer: names with the keys' times, and contents that are encrypted with
-- the passphrase, or refer to an HSM. `accounts.secret`, encrypted as well, is the secret of API keys.
CREATE TABLE token_keys (
    name     TEXT   PRIMARY KEY,
    content  BYTEA  NOT NULL
);

-- Counts the changes of accounts: each issuer looks every two seconds whether another one, or an operator, made any.
INSERT INTO settings (name, value) VALUES ('revision', '0'), ('version', '1');
CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE settings SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'revision';
    RETURN NULL;
END $$;
CREATE TRIGGER accounts_changed AFTER INSERT OR UPDATE OR DELETE ON accounts EXECUTE FUNCTION count_change();
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE ON api_keys EXECUTE FUNCTION count_change();
CREATE TRIGGER client_certificates_changed AFTER INSERT OR UPDATE OR DELETE ON client_certificates EXECUTE FUNCTION count_change();

-- For people.
CREATE VIEW usage_by_time AS
    SELECT to_timestamp(period_start_unix) AT TIME ZONE 'UTC' AS begins_utc,
           to_timestamp(period_start_unix + period_seconds) AT TIME ZONE 'UTC' AS ends_utc,
           account, tokens
    FROM usage ORDER BY period_start_unix, account;
