//! The labels of the gateway's metrics, and every value they take.

postern_telemetry::label! {
    /// A stage of the double-spend check.
    pub CheckStage = "stage" {
        /// Waiting for a store connection.
        PoolWait = "pool_wait",
        /// The check: is the token recorded as spent?
        Get = "get",
        /// The signature.
        Verify = "verify",
        /// The verdict: the one atomic write.
        Add = "add",
        /// All of it.
        Total = "total",
    }
}

postern_telemetry::label! {
    /// How the double-spend check ended.
    pub CheckResult = "result" {
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

postern_telemetry::label! {
    /// A command to the shared store.
    pub StoreCommand = "command" {
        /// The hint.
        Get = "get",
        /// The verdict.
        Add = "add",
    }
}

postern_telemetry::label! {
    /// How a command to the shared store ended.
    pub StoreEnded = "result" {
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
        /// Sent, and decided by other replicas before its reply came.
        Overtaken = "overtaken",
    }
}

postern_telemetry::label! {
    /// How the look-up of a target's name ended.
    pub LookupEnded = "result" {
        /// The name server gave addresses.
        Found = "found",
        /// They were known, and their time to live was not over.
        Kept = "kept",
        /// It has none, or the name server failed.
        Failed = "failed",
        /// It failed within the last second: the name server got no question.
        FailedBefore = "failed_before",
        /// No answer within `limits.dial_timeout`.
        TimedOut = "timed_out",
    }
}

postern_telemetry::label! {
    /// How a round ended that shares limits with the fleet.
    pub SharingRound = "result" {
        /// The memcached has counted.
        Shared = "shared",
        /// It has not, or not in time: the gateway has its own limits.
        Failed = "failed",
    }
}

postern_telemetry::label! {
    /// How the gateway answered a request.
    pub Outcome = "outcome" {
        /// 200, a tunnel, or the answer of a plain `http://` request.
        Opened = "opened",
        /// 407: no `Proxy-Authorization`.
        NoToken = "no_token",
        /// 407: `Proxy-Authorization` with another scheme only.
        OtherScheme = "other_scheme",
        /// 407: the value is not a token.
        MalformedToken = "malformed_token",
        /// 407: a key that is unknown or retired.
        UnknownKey = "unknown_key",
        /// 407: the signature does not verify.
        BadSignature = "bad_signature",
        /// 407: spent before.
        AlreadySpent = "already_spent",
        /// 407: a token for another challenge, or for a mark of records that the store has lost.
        Void = "void",
        /// 503: the store gave no answer that can be trusted.
        StoreUnknown = "store_unknown",
        /// 503: the store is known to be down, and the token was not read.
        StoreDown = "store_down",
        /// 503: too many tokens waited that are dear to verify; this one was not verified.
        Crowded = "crowded",
        /// 503: no issuer key is in use; the token was not read.
        NoKeys = "no_keys",
        /// 503, or 508: the next hop that all tunnels go through is away, or a tunnel would come back from a next hop; the token was not read.
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
        /// 502: the target's answer to a plain request broke.
        UpstreamBroken = "upstream_broken",
        /// 400 or 408: the client broke off the body of a plain request, or stopped sending it.
        BodyFailed = "body_failed",
        /// 400, or closed: the request, or the PROXY header of a load balancer, is malformed.
        BadRequest = "bad_request",
        /// 431: the header is too large.
        HeaderTooLarge = "header_too_large",
        /// 408, or closed: the header, or the PROXY header of a load balancer, came too slowly.
        HeaderTimeout = "header_timeout",
        /// 503: too many connections.
        TooMany = "too_many",
        /// 429: too many connections of one source.
        SourceLimit = "source_limit",
        /// Closed before the TLS handshake: too many handshakes of one source.
        SourceHandshakes = "source_handshakes",
        /// Closed in the TLS handshake: the client showed no certificate that is trusted.
        ClientCertificate = "client_certificate",
        /// 429: too many refused requests of one source; this one was not read.
        SourceRefusals = "source_refusals",
        /// 503, or closed: the connection brought no request, or its client did not read, and another needed its place.
        Displaced = "displaced",
    }
}

impl Outcome {
    /// Whether the gateway failed to do what it should: such a request is always traced, and marked as an error.
    pub(crate) const fn is_error(self) -> bool {
        matches!(self, Self::StoreUnknown | Self::StoreDown | Self::NoKeys | Self::NextHopDown)
    }
}

postern_telemetry::label! {
    /// Which way bytes went through a tunnel.
    pub Direction = "direction" {
        /// From the client to the target.
        Up = "up",
        /// From the target to the client.
        Down = "down",
    }
}

postern_telemetry::label! {
    /// Why the store gave no verdict.
    pub UnknownReason = "reason" {
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
        /// Addresses lead to different records where they should not, or to the same.
        Unproven = "unproven",
        /// No mark is on offer, so no token can be requested.
        Unmarked = "unmarked",
        /// The watch over it has ended by a fault of this process.
        Unwatched = "unwatched",
        /// The token's key has retired.
        EpochRetired = "epoch_retired",
    }
}

postern_telemetry::label! {
    /// A replica of the shared store, by its place in `replicas`.
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
    /// Where in its life a token key is.
    pub KeyPhase = "phase" {
        /// Published, and not in use yet.
        Upcoming = "upcoming",
        /// The newest in use: the one that challenges name.
        Newest = "newest",
        /// Older, and its tokens are still good.
        Older = "older",
    }
}
