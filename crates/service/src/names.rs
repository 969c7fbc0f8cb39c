//! Every metric of every daemon: its name, unit, help, labels and the values those labels take. Nothing else in the
//! project spells a metric name, so that a dashboard can be checked against this file.
//!
//! Label values are enums: no address, name or token can become one.

use metrics::Unit;

#[cfg(test)]
mod tests;

/// How long each stage of the double-spend check took.
pub const CHECK_DURATION: &str = "postern_check_duration_seconds";
/// Requests that the gateway answered.
pub const REQUESTS: &str = "postern_requests_total";
/// Tunnels open now.
pub const TUNNELS_OPEN: &str = "postern_tunnels_open";
/// How long tunnels lasted.
pub const TUNNEL_DURATION: &str = "postern_tunnel_duration_seconds";
/// Bytes relayed.
pub const TUNNEL_BYTES: &str = "postern_tunnel_bytes_total";
/// Client connections open now.
pub const CONNECTIONS_OPEN: &str = "postern_connections_open";
/// Records in the embedded double-spend store.
pub const SPENT_RECORDS: &str = "postern_spent_records";
/// Commands to the shared double-spend store.
pub const STORE_COMMANDS: &str = "postern_store_commands_total";
/// Connections to each address of the shared store.
pub const STORE_CONNECTIONS: &str = "postern_store_connections";
/// Commands that found every connection of the pool in use.
pub const STORE_POOL_WAITS: &str = "postern_store_pool_waits_total";
/// Replays answered from the memory of the process.
pub const STORE_CACHE_HITS: &str = "postern_store_cache_hits_total";
/// Keys known to be spent, held in the process.
pub const STORE_CACHE_KEYS: &str = "postern_store_cache_keys";
/// Canaries that were gone.
pub const STORE_CANARIES_LOST: &str = "postern_store_canaries_lost_total";
/// Token keys of which records were lost.
pub const STORE_KEYS_LOST: &str = "postern_store_keys_lost";
/// Age of each token key that the gateway accepts.
pub const KEY_AGE: &str = "postern_key_age_seconds";
/// Requests that the issuer answered.
pub const ISSUER_REQUESTS: &str = "postern_issuer_requests_total";
/// Tokens signed.
pub const TOKENS_ISSUED: &str = "postern_tokens_issued_total";
/// How long one blind signature took.
pub const ISSUER_SIGN_DURATION: &str = "postern_issuer_sign_duration_seconds";
/// Unspent tokens in the agent's wallet.
pub const WALLET_TOKENS: &str = "postern_wallet_tokens";
/// Requests that the agent answered.
pub const AGENT_REQUESTS: &str = "postern_agent_requests_total";
/// Always 1; the version is the label.
pub const BUILD_INFO: &str = "postern_build_info";

/// One metric, as it is described to Prometheus and in the docs.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The whole name, prefix, unit and `_total` included.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The unit, when it has one.
    pub unit: Option<Unit>,
    /// One sentence for people.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The kinds of metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values in buckets; these are their upper bounds, in the metric's unit.
    Histogram(&'static [f64]),
}

/// From 10 µs to 1 s, fine on both sides of 40 ms: there a delayed acknowledgement shows as a wall between two
/// buckets, and a check that needs a fifth of it does not look the same.
pub const CHECK_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.03,
    0.038, 0.042, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// One signature: from 100 µs to 1 s.
pub const SIGN_BUCKETS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0];
/// Tunnels: from 10 ms to a day.
pub const TUNNEL_BUCKETS: &[f64] =
    &[0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

/// All of them.
pub const ALL: &[Metric] = &[
    Metric {
        name: CHECK_DURATION,
        kind: Kind::Histogram(CHECK_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long each stage of the double-spend check took, by how the check ended.",
        labels: &[CheckStage::LABEL, CheckResult::LABEL],
    },
    Metric {
        name: REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the gateway answered, by outcome.",
        labels: &[Outcome::LABEL],
    },
    Metric { name: TUNNELS_OPEN, kind: Kind::Gauge, unit: None, help: "Tunnels open now.", labels: &[] },
    Metric {
        name: TUNNEL_DURATION,
        kind: Kind::Histogram(TUNNEL_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long tunnels lasted, by how they ended.",
        labels: &[TunnelEnd::LABEL],
    },
    Metric {
        name: TUNNEL_BYTES,
        kind: Kind::Counter,
        unit: Some(Unit::Bytes),
        help: "Bytes relayed: up is from the client to the target.",
        labels: &[Direction::LABEL],
    },
    Metric {
        name: CONNECTIONS_OPEN,
        kind: Kind::Gauge,
        unit: None,
        help: "Client connections open now, tunnels included.",
        labels: &[],
    },
    Metric {
        name: SPENT_RECORDS,
        kind: Kind::Gauge,
        unit: None,
        help: "Records in the embedded double-spend store.",
        labels: &[],
    },
    Metric {
        name: STORE_COMMANDS,
        kind: Kind::Counter,
        unit: None,
        help: "Commands to the shared double-spend store, by how they ended.",
        labels: &[StoreCommand::LABEL, StoreEnded::LABEL],
    },
    Metric {
        name: STORE_CONNECTIONS,
        kind: Kind::Gauge,
        unit: None,
        help: "Proven connections to the shared double-spend store, by address.",
        labels: &[ADDRESS_LABEL],
    },
    Metric {
        name: STORE_POOL_WAITS,
        kind: Kind::Counter,
        unit: None,
        help: "Commands that found every connection of the pool in use: the pool is too small when this grows.",
        labels: &[],
    },
    Metric {
        name: STORE_CACHE_HITS,
        kind: Kind::Counter,
        unit: None,
        help: "Replays refused from the process's own memory, without asking the shared store.",
        labels: &[],
    },
    Metric {
        name: STORE_CACHE_KEYS,
        kind: Kind::Gauge,
        unit: None,
        help: "Keys known to be spent that the process holds in memory.",
        labels: &[],
    },
    Metric {
        name: STORE_CANARIES_LOST,
        kind: Kind::Counter,
        unit: None,
        help: "Canary records that the shared store had lost: spent records were lost with them.",
        labels: &[],
    },
    Metric {
        name: STORE_KEYS_LOST,
        kind: Kind::Gauge,
        unit: None,
        help: "Token keys of which the shared store has lost records, so that spent tokens may be spent again.",
        labels: &[],
    },
    Metric {
        name: KEY_AGE,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "Age of the newest token key in use.",
        labels: &[],
    },
    Metric {
        name: ISSUER_REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the issuer answered, by outcome.",
        labels: &[IssuerOutcome::LABEL],
    },
    Metric {
        name: TOKENS_ISSUED,
        kind: Kind::Counter,
        unit: None,
        help: "Tokens signed, by token type.",
        labels: &[TYPE_LABEL],
    },
    Metric {
        name: ISSUER_SIGN_DURATION,
        kind: Kind::Histogram(SIGN_BUCKETS),
        unit: Some(Unit::Seconds),
        help: "How long one blind signature took on the signing pool, without the wait for it.",
        labels: &[],
    },
    Metric {
        name: WALLET_TOKENS,
        kind: Kind::Gauge,
        unit: None,
        help: "Unspent tokens in the agent's wallet.",
        labels: &[],
    },
    Metric {
        name: AGENT_REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "Requests that the agent answered, by outcome.",
        labels: &[AgentOutcome::LABEL],
    },
    Metric {
        name: BUILD_INFO,
        kind: Kind::Gauge,
        unit: None,
        help: "Always 1; the label is the version that runs.",
        labels: &[VERSION_LABEL],
    },
];

/// The label of [`TOKENS_ISSUED`]: the token type's code point in decimal.
pub const TYPE_LABEL: &str = "type";
/// The label of [`STORE_CONNECTIONS`]: an address of the configuration.
pub const ADDRESS_LABEL: &str = "address";
/// The label of [`BUILD_INFO`].
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
        /// Refused for load before the check was done.
        Refused = "refused",
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
        /// 503: no issuer key is known yet.
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
        /// 405: a method or form that a proxy does not serve.
        MethodRefused = "method_refused",
        /// 431: the header is too large.
        HeaderTooLarge = "header_too_large",
        /// 408: the header came too slowly.
        HeaderTimeout = "header_timeout",
        /// 503 or 429: too many connections or requests.
        TooMany = "too_many",
        /// 503: the gateway is draining.
        Draining = "draining",
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
        /// 404, 405, 400, 408 or 413: not a request that this server has an answer to.
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

/// Registers the help and unit of every metric with the recorder that is installed.
pub fn describe_all() {
    for metric in ALL {
        let unit = metric.unit.unwrap_or(Unit::Count);
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, unit, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.help),
            Kind::Histogram(_) => metrics::describe_histogram!(metric.name, unit, metric.help),
        }
    }
}
