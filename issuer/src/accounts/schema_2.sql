-- Version 2: an account may have the terms of its tier, and then has no quota of its own. SQLite cannot take a NOT NULL away, so
-- the table is made anew. Foreign keys are off meanwhile.
CREATE TABLE accounts_2 (
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
INSERT INTO accounts_2
    SELECT id, name, enabled, quota_tokens, quota_period_seconds, rate_tokens_per_second, burst_tokens, tier, expires_at_unix
    FROM accounts;
DROP TABLE accounts;
ALTER TABLE accounts_2 RENAME TO accounts;
CREATE INDEX accounts_by_tier ON accounts (tier) WHERE quota_tokens IS NULL;
