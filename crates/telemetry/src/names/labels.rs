//! The labels of the metrics, and every value they take. Values are enums: no address, name or token can become one.

/// The label of [`TOKENS_ISSUED`](super::TOKENS_ISSUED): the token type's code point in decimal.
pub const TYPE_LABEL: &str = "type";
/// The label of [`STORE_CONNECTIONS`](super::STORE_CONNECTIONS): an address of the configuration.
pub const ADDRESS_LABEL: &str = "address";
/// The label of [`BUILD_INFO`](super::BUILD_INFO).
pub const VERSION_LABEL: &str = "version";

/// A label and every value it takes.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident = $label:literal { $($(#[$value_doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$value_doc])* $value,)+ }

        impl $name {
            /// The label's name.
            pub const LABEL: &'static str = $label;
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The value as it stands in a metric.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

label! {
    /// A stage of the double-spend check.
    CheckStage = "stage" {
        /// Waiting for a store connection.
        PoolWait = "pool_wait",
        /// Proving a pooled connection alive before it is used.
        Health = "health",
        /// The hint: has this token been seen?
        Get = "get",
        /// The signature.
        Verify = "verify",
        /// The verdict: the one atomic write.
        Add = "add",
        /// All of it.
        Total = "total",
    }
}

label! {
    /// How the double-spend check ended.
    CheckResult = "result" {
        /// The token was good and is now spent.
        Admitted = "admitted",
        /// It was spent before.
        Spent = "spent",
        /// The signature was wrong.
        Invalid = "invalid",
        /// The store gave no answer that can be trusted.
        Unknown = "unknown",
        /// The client went away before there was a verdict.
        Abandoned = "abandoned",
    }
}

label! {
    /// A command to the shared store.
    StoreCommand = "command" {
        /// The hint.
        Get = "get",
        /// The verdict.
        Add = "add",
    }
}

label! {
    /// How a command to the shared store ended.
    StoreEnded = "result" {
        /// The record was written.
        Stored = "stored",
        /// It was there already.
        NotStored = "not_stored",
        /// It was read.
        Hit = "hit",
        /// It was not found.
        Miss = "miss",
        /// The store answered with an error.
        ServerError = "server_error",
        /// No reply in time.
        TimedOut = "timed_out",
        /// The connection broke, or what came was no reply.
        Broken = "broken",
        /// Not sent: no connection, a full queue, no free connection in time.
        Refused = "refused",
    }
}

label! {
    /// How the gateway answered a request.
    Outcome = "outcome" {
        /// 200, a tunnel, or the answer of a plain `http://` request.
        Opened = "opened",
        /// 407: no `Proxy-Authorization`.
        NoToken = "no_token",
        /// 407: `Proxy-Authorization` with another scheme only.
        OtherScheme = "other_scheme",
        /// 407: the value is not a token.
        MalformedToken = "malformed_token",
        /// 407: a token for another challenge.
        WrongChallenge = "wrong_challenge",
        /// 407: a key that is unknown or retired.
        UnknownKey = "unknown_key",
        /// 407: the signature does not verify.
        BadSignature = "bad_signature",
        /// 407: spent before.
        AlreadySpent = "already_spent",
        /// 503: the store gave no answer that can be trusted.
        StoreUnknown = "store_unknown",
        /// 503: the store is known to be down, and the token was not read.
        StoreDown = "store_down",
        /// 503: no issuer key is known yet; the token was not read.
        NoKeys = "no_keys",
        /// 403: the target is not allowed.
        PolicyRefused = "policy_refused",
        /// 502: the target's name has no address.
        DialUnresolved = "dial_unresolved",
        /// 502: the target refused the connection.
        DialRefused = "dial_refused",
        /// 504: the target did not answer in time.
        DialTimeout = "dial_timeout",
        /// 502: the target's answer to a plain request broke.
        UpstreamBroken = "upstream_broken",
        /// 400: the request is malformed.
        BadRequest = "bad_request",
        /// 431: the header is too large.
        HeaderTooLarge = "header_too_large",
        /// 408: the header came too slowly.
        HeaderTimeout = "header_timeout",
        /// 503 or 429: too many connections or requests.
        TooMany = "too_many",
    }
}

label! {
    /// Which way bytes went through a tunnel.
    Direction = "direction" {
        /// From the client to the target.
        Up = "up",
        /// From the target to the client.
        Down = "down",
    }
}

label! {
    /// How a tunnel ended.
    TunnelEnd = "ended" {
        /// Both sides were done.
        Finished = "finished",
        /// A side broke off.
        Broken = "broken",
        /// No byte moved for too long.
        Idle = "idle",
        /// The gateway stopped: it was still open at the drain's deadline.
        Cut = "cut",
    }
}

label! {
    /// How the issuer answered a request.
    IssuerOutcome = "outcome" {
        /// 200: the key directory.
        Directory = "directory",
        /// 304: the key directory has not changed.
        NotModified = "not_modified",
        /// 200: signed.
        Issued = "issued",
        /// 422: wrong length, type, key id or blinded message.
        BadTokenRequest = "bad_token_request",
        /// 415: another media type.
        BadMediaType = "bad_media_type",
        /// 401: no account, or an unknown one.
        Unauthorized = "unauthorized",
        /// 429: the account's quota is spent.
        QuotaSpent = "quota_spent",
        /// 503: the signing pool is full.
        Overloaded = "overloaded",
        /// 404, 405, 400, 408, 413 or 421: not a request that this server has an answer to.
        BadRequest = "bad_request",
        /// 500: signing failed.
        Failed = "failed",
    }
}

label! {
    /// How the agent answered a request.
    AgentOutcome = "outcome" {
        /// A tunnel, or the answer of a plain `http://` request.
        Opened = "opened",
        /// The gateway refused the target, or the target did not answer.
        TargetFailed = "target_failed",
        /// No token could be had.
        NoToken = "no_token",
        /// The gateway refused one token after another.
        TokensRefused = "tokens_refused",
        /// The gateway could not be reached, or broke off.
        GatewayFailed = "gateway_failed",
        /// The program in front sent something malformed.
        BadRequest = "bad_request",
    }
}

label! {
    /// What became of a token of the agent's. Minted are what it got; what was neither minted nor is held in the wallet
    /// went one of the other ways.
    TokenFate = "fate" {
        /// Signed by the issuer, and received.
        Minted = "minted",
        /// It paid for a tunnel.
        Opened = "opened",
        /// It was sent, and the gateway refused the target, or the target did not answer.
        TargetFailed = "target_failed",
        /// The gateway did not take it: 407.
        Refused = "refused",
        /// It was sent, and whether it was spent is not known: 503, or no answer that can be read.
        Unanswered = "unanswered",
        /// It was sent, and the program hung up or the agent stopped before the answer came.
        Abandoned = "abandoned",
        /// Its key retired before it was used.
        Retired = "retired",
        /// It was for a challenge that the gateway no longer asks for, and made room.
        Superseded = "superseded",
        /// The wallet could not be written.
        Unwritten = "unwritten",
    }
}

label! {
    /// Why the store gave no verdict.
    UnknownReason = "reason" {
        /// It could not be reached, or reading or writing failed.
        Unavailable = "unavailable",
        /// No answer in time.
        TimedOut = "timed_out",
        /// No room for the record.
        DiskFull = "disk_full",
        /// A sync to disk failed earlier.
        SyncFailed = "sync_failed",
        /// A full queue, or no free connection in time.
        Overloaded = "overloaded",
        /// It answered with an error.
        Rejected = "rejected",
        /// What came is no reply.
        Garbled = "garbled",
        /// It is not proven that all addresses lead to one memory.
        Unproven = "unproven",
        /// Records of the token's key were lost.
        RecordsLost = "records_lost",
        /// The token's key has retired.
        EpochRetired = "epoch_retired",
    }
}

label! {
    /// Where in its life a token key is.
    KeyPhase = "phase" {
        /// Published, and not in use yet.
        Upcoming = "upcoming",
        /// The newest in use: the one that challenges ask for.
        Newest = "newest",
        /// Older, and its tokens are still good.
        Older = "older",
    }
}

label! {
    /// The token type that a request asks for.
    TokenTypeAsked = "type" {
        /// Blind RSA with 2048 bits.
        BlindRsa2048 = "2",
        /// Any other.
        Other = "other",
        /// The request was refused before its type was read.
        Unread = "unread",
    }
}

label! {
    /// What a link leads to.
    LinkKind = "link" {
        /// An address of the shared double-spend store.
        Store = "store",
        /// The token issuer.
        Issuer = "issuer",
        /// The gateway.
        Gateway = "gateway",
    }
}

label! {
    /// Why a request's trace was kept, or that it was not.
    TraceKept = "reason" {
        /// By the dice.
        Sampled = "sampled",
        /// The upstream had sampled it.
        Upstream = "upstream",
        /// Its check was slow.
        Slow = "slow",
        /// It ended in an unexpected error.
        Error = "error",
        /// It was slow or an error, and too many such were kept already.
        OverLimit = "over_limit",
    }
}

label! {
    /// What became of a span.
    SpanEnded = "result" {
        /// The collector has it.
        Exported = "exported",
        /// The queue was full.
        QueueFull = "queue_full",
        /// The collector did not take it.
        Failed = "failed",
    }
}

label! {
    /// How serious a log line is.
    LogLevel = "level" {
        /// Something failed.
        Error = "error",
        /// Something needs a look.
        Warn = "warn",
    }
}
