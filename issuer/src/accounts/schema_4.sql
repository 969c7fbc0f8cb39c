-- Version 4: issuers that share accounts.

-- Which part of every quota this issuer gives, as it was configured from time to time. Nothing here: always the whole.
CREATE TABLE shares (
    id           INTEGER PRIMARY KEY,
    since_unix   INTEGER NOT NULL CHECK (since_unix >= 0),
    numerator    INTEGER NOT NULL CHECK (numerator BETWEEN 0 AND denominator),
    denominator  INTEGER NOT NULL CHECK (denominator >= 1)
) STRICT;

-- Counts the changes of accounts, so that an older copy is told from a newer one.
INSERT INTO settings (name, value) VALUES ('revision', '0');
CREATE TRIGGER accounts_inserted AFTER INSERT ON accounts BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER accounts_updated AFTER UPDATE ON accounts BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER accounts_deleted AFTER DELETE ON accounts BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER api_keys_inserted AFTER INSERT ON api_keys BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER api_keys_updated AFTER UPDATE ON api_keys BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER api_keys_deleted AFTER DELETE ON api_keys BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER client_certificates_inserted AFTER INSERT ON client_certificates BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER client_certificates_updated AFTER UPDATE ON client_certificates BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
CREATE TRIGGER client_certificates_deleted AFTER DELETE ON client_certificates BEGIN
    UPDATE settings SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision';
END;
