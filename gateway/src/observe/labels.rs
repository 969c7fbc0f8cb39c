//! Labels of the gateway's metrics, with all their values.

use postern_spend::Unknown;
use postern_spend::memcached::{Ended, Verb};
use postern_telemetry::catalogue::Label;

/// A command to the shared store.
pub const STORE_COMMAND: Label = Label { name: "command", values: Some(&Verb::WORDS) };
/// The result of a command to the shared store.
pub const STORE_ENDED: Label = Label { name: "result", values: Some(&Ended::WORDS) };
/// The reason for a missing verdict of the store.
pub const UNKNOWN_REASON: Label = Label { name: "reason", values: Some(&Unknown::REASONS) };

postern_telemetry::label! {
    /// A stage of the double-spend check.
    pub CheckStage = "stage" {
        /// Waiting for a store connection.
        PoolWait = "pool_wait",
        /// Looking up the token's spent record.
        Get = "get",
        /// Verifying the signature.
        Verify = "verify",
        /// Recording the token as spent in one atomic write, which is the verdict.
        Add = "add",
        /// The whole check.
        Total = "total",
    }
}

postern_telemetry::label! {
    /// The result of the double-spend check.
    pub CheckResult = "result" {
        /// The token was valid and is now spent.
        Admitted = "admitted",
        /// The token was already spent.
        Spent = "spent",
        /// The token was refused for another reason, such as a wrong signature.
        Invalid = "invalid",
        /// The store gave no trustworthy answer.
        Unknown = "unknown",
        /// The client disconnected before the verdict.
        Abandoned = "abandoned",
    }
}

postern_telemetry::label! {
    /// The result of resolving a target's name.
    pub LookupEnded = "result" {
        /// The name server returned addresses.
        Found = "found",
        /// The cache had addresses whose time to live had not expired.
        Kept = "kept",
        /// The name has no address, or the name server failed.
        Failed = "failed",
        /// The lookup failed within the last second; the name server was not queried again.
        FailedBefore = "failed_before",
        /// No answer within `limits.dial_timeout`.
        TimedOut = "timed_out",
    }
}

postern_telemetry::label! {
    /// The result of a round that shares limits with the fleet.
    pub SharingRound = "result" {
        /// The memcached has counted this gateway's refusals.
        Shared = "shared",
        /// The memcached has not counted them, or not in time: only the gateway's own limits apply.
        Failed = "failed",
    }
}

postern_telemetry::label! {
    /// The gateway's answer to a request.
    pub Outcome = "outcome" {
        /// A tunnel (200), or the answer to a plain `http://` request.
        Opened = "opened",
        /// 407: no `Proxy-Authorization`.
        NoToken = "no_token",
        /// 407: `Proxy-Authorization` with other schemes only.
        OtherScheme = "other_scheme",
        /// 407: the value is not a token.
        MalformedToken = "malformed_token",
        /// 407: the token's key is unknown or retired.
        UnknownKey = "unknown_key",
        /// 407: the signature does not verify.
        BadSignature = "bad_signature",
        /// 407: the token was spent before.
        AlreadySpent = "already_spent",
        /// 407: the token is for another challenge, or for a mark of records that the store has lost.
        Void = "void",
        /// 503: the store gave no trustworthy answer.
        StoreUnknown = "store_unknown",
        /// 503: the store is known to be down; the token was not read.
        StoreDown = "store_down",
        /// 503: too many expensive verifications were waiting; this token was not verified.
        Crowded = "crowded",
        /// 503: no issuer key is in use; the token was not read.
        NoKeys = "no_keys",
        /// 502, 503 or 508: the next hop of all tunnels is down, or a tunnel would come back from a next hop; the token was not
        /// read.
        NextHopDown = "next_hop_down",
        /// 403: the target is not allowed.
        PolicyRefused = "policy_refused",
        /// 502: the target's name has no address.
        DialUnresolved = "dial_unresolved",
        /// 502: the target refused the connection.
        DialRefused = "dial_refused",
        /// 504: the target did not answer in time.
        DialTimeout = "dial_timeout",
        /// 508: the request came back through next hops.
        Looped = "looped",
        /// 502: the target's answer to a plain request failed.
        UpstreamBroken = "upstream_broken",
        /// 400 or 408: the client aborted the body of a plain request, or stopped sending it.
        BodyFailed = "body_failed",
        /// 400, or closed: the request, or a load balancer's PROXY header, is malformed.
        BadRequest = "bad_request",
        /// 431: the header is too large.
        HeaderTooLarge = "header_too_large",
        /// 408, or closed: the header, or a load balancer's PROXY header, arrived too slowly.
        HeaderTimeout = "header_timeout",
        /// 503: too many connections.
        TooMany = "too_many",
        /// 429: too many connections from one source.
        SourceLimit = "source_limit",
        /// Closed before the TLS handshake: too many handshakes from one source.
        SourceHandshakes = "source_handshakes",
        /// Closed in the TLS handshake: the client presented no trusted certificate.
        ClientCertificate = "client_certificate",
        /// 429: too many refused requests from one source; this one was not read.
        SourceRefusals = "source_refusals",
        /// 503, or closed: the connection carried no request, or its client did not read, and another connection needed its
        /// place.
        Displaced = "displaced",
    }
}

impl Outcome {
    /// Returns `true` if the gateway itself failed: such a request is always traced, and marked as an error.
    pub(crate) const fn is_error(self) -> bool {
        matches!(self, Self::StoreUnknown | Self::StoreDown | Self::NoKeys | Self::NextHopDown)
    }
}

postern_telemetry::label! {
    /// The direction of relayed bytes.
    pub Direction = "direction" {
        /// From the client to the target.
        Up = "up",
        /// From the target to the client.
        Down = "down",
    }
}

postern_telemetry::label! {
    /// A replica of the shared store, by its position in `replicas`.
    pub Replica = "replica" {
        /// The first, or the only one.
        First = "1",
        /// The second.
        Second = "2",
        /// The third.
        Third = "3",
    }
}

postern_telemetry::label! {
    /// The phase of a token key's life.
    pub KeyPhase = "phase" {
        /// Published, not in use yet.
        Upcoming = "upcoming",
        /// The newest key in use, which challenges name.
        Newest = "newest",
        /// Superseded, but its tokens are still accepted.
        Older = "older",
    }
}
