//! All metrics of the issuer: names, help and labels. No other file of the issuer spells one.

use postern_telemetry::catalogue::Label;
use postern_token::TokenType;

/// The token type's code point in decimal.
pub const TYPE: Label = Label::open("type");

/// The name of an account.
pub const ACCOUNT: Label = Label::open("account");

/// Buckets for one signature, from 100 µs to 1 s.
pub const SIGN_BUCKETS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0];

postern_telemetry::catalogue! {
    /// Every metric of the issuer.
    pub METRICS;

    /// Answered requests.
    ISSUER_REQUESTS: Counter = "postern_issuer_requests_total" [IssuerOutcome::SPEC];

    /// Answered requests for tokens.
    ISSUANCES: Counter = "postern_issuances_total" [TokenTypeAsked::SPEC, IssuerOutcome::SPEC];

    /// Tokens signed.
    TOKENS_ISSUED: Counter = "postern_tokens_issued_total" [TYPE];

    /// Tokens signed; only with `[usage] name_accounts`.
    ACCOUNT_TOKENS: Counter = "postern_issuer_account_tokens_total" [ACCOUNT];

    /// Signing time of a token, without the wait; of an amortized batch, its part.
    ISSUER_SIGN_DURATION: Histogram(SIGN_BUCKETS) = "postern_issuer_sign_duration_seconds";

    /// Token requests that are being signed or wait; an amortized batch is one.
    ISSUER_QUEUE: Gauge = "postern_issuer_queue_requests";

    /// Most token requests that may be signed or wait; one more gets 503.
    ISSUER_QUEUE_LIMIT: Gauge = "postern_issuer_queue_limit_requests";

    /// Accounts in memory: those with requests within about a minute.
    ISSUER_ACTIVE_ACCOUNTS: Gauge = "postern_issuer_active_accounts";

    /// Questions to the authorizer.
    AUTHORIZER_ANSWERS: Counter = "postern_issuer_authorizer_answers_total" [AuthorizerAnswer::SPEC];

    /// Until when each issued type has a key that signs; 0 if one has none.
    ISSUER_SIGNS_UNTIL: Gauge = "postern_issuer_signs_until_timestamp_seconds";

    /// End of the TLS certificate that clients see; 0 without TLS.
    ISSUER_CERTIFICATE_ENDS: Gauge = "postern_issuer_certificate_ends_timestamp_seconds";
}

postern_telemetry::label! {
    /// The issuer's answer to a request.
    pub IssuerOutcome = "outcome" {
        /// 200: the key directory.
        Directory = "directory",
        /// 200: the API description.
        Description = "description",
        /// 304: the key directory, or the API description, has not changed.
        NotModified = "not_modified",
        /// 200: signed, all of it.
        Issued = "issued",
        /// 206: some tokens of a batch.
        Partial = "partial",
        /// 422: wrong length, type, key id or blinded message, or too large a batch. 400: the same for each request of a batch.
        BadTokenRequest = "bad_token_request",
        /// 415: another media type.
        BadMediaType = "bad_media_type",
        /// 401: no account, or an unknown one.
        Unauthorized = "unauthorized",
        /// 403: the account is disabled, has expired, or has a tier that is not in the configuration.
        AccountRefused = "account_refused",
        /// 429: the account's quota is spent.
        QuotaSpent = "quota_spent",
        /// 429: the account requests tokens faster than its rate.
        RateLimited = "rate_limited",
        /// 503: the accounts cannot be read, or the account's quota count cannot be written to the disk.
        Unrecorded = "unrecorded",
        /// 503: the authorizer gave no valid answer about an API key, or was not asked because too many keys are new.
        Unanswered = "unanswered",
        /// 503: no key of the requested type is in use, or no key at all for the directory to list.
        NoKey = "no_key",
        /// 503: the HSM with the private key does not answer, or the machine failed to sign: a wrong result, no memory.
        KeyUnavailable = "key_unavailable",
        /// 503: the signing pool is full, or the limit on requests answered at once is reached.
        Overloaded = "overloaded",
        /// 429: too many connections of one source.
        SourceLimit = "source_limit",
        /// Closed before the TLS handshake: too many handshakes of one source.
        SourceHandshakes = "source_handshakes",
        /// 429: too many refused requests of one source; this one was not read.
        SourceRefusals = "source_refusals",
        /// 503, or closed: another connection needed the place, and this one brought no whole request or its client did not read.
        Displaced = "displaced",
        /// 404, 405, 400, 408, 413 or 421: not a request that this server can answer. Or closed: a load balancer sent no
        /// PROXY header.
        BadRequest = "bad_request",
        /// 500: signing failed.
        Failed = "failed",
    }
}

postern_telemetry::label! {
    /// The result of a question to the authorizer.
    pub AuthorizerAnswer = "answer" {
        /// The key belongs to an account.
        Allowed = "allowed",
        /// The key gets no tokens.
        Denied = "denied",
        /// The answer is invalid.
        Absurd = "absurd",
        /// No answer, or none with status 200.
        Failed = "failed",
        /// Not asked: too many keys are new, every place for a question was taken, or a question has just failed.
        Withheld = "withheld",
    }
}

postern_telemetry::label! {
    /// The token type of a request.
    pub TokenTypeAsked = "type" {
        /// VOPRF with P-384.
        VoprfP384 = "1",
        /// Blind RSA with 2048 bits.
        BlindRsa2048 = "2",
        /// VOPRF with ristretto255.
        VoprfRistretto255 = "5",
        /// Any other type.
        Other = "other",
        /// The request was refused before its type was read.
        Unread = "unread",
    }
}

impl TokenTypeAsked {
    pub(crate) const fn of(token_type: TokenType) -> Self {
        match token_type {
            TokenType::VoprfP384 => Self::VoprfP384,
            TokenType::BlindRsa2048 => Self::BlindRsa2048,
            TokenType::VoprfRistretto255 => Self::VoprfRistretto255,
            _ => Self::Other,
        }
    }
}
