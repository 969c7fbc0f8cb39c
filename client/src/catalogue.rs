//! The metrics of the agent: names, help and labels. No other file of the agent spells a metric's name.

postern_telemetry::catalogue! {
    /// Every metric of the agent.
    pub METRICS;

    /// Unspent tokens in the wallet.
    WALLET_TOKENS: Gauge = "postern_wallet_tokens" [Position::SPEC];

    /// Tokens, by what became of them: minted = held in the wallet + all others.
    AGENT_TOKENS: Counter = "postern_agent_tokens_total" [TokenFate::SPEC, Position::SPEC];

    /// Mints refused because the gateway changed its mark too often.
    AGENT_MARKS_REFUSED: Counter = "postern_agent_marks_refused_total" [Position::SPEC];

    /// Mints refused because the issuer's key changed its times, or a mirror lists it differently.
    AGENT_KEYS_REFUSED: Counter = "postern_agent_keys_refused_total" [Position::SPEC];

    /// End of the TLS certificate that the gateway sees; 0 without one.
    AGENT_CERTIFICATE_ENDS: Gauge = "postern_agent_certificate_ends_timestamp_seconds" [Position::SPEC];

    /// Answered requests.
    AGENT_REQUESTS: Counter = "postern_agent_requests_total" [AgentOutcome::SPEC];

    /// Open streams of UDP, one for each target of a program.
    AGENT_UDP_OPEN: Gauge = "postern_agent_udp_streams_open";

    /// Opened streams of UDP; `postern_agent_requests_total` counts them as well.
    AGENT_UDP_OPENED: Counter = "postern_agent_udp_streams_total";

    /// UDP datagrams that were not relayed: malformed, for a target without a stream, or beyond a limit.
    AGENT_UDP_DROPPED: Counter = "postern_agent_udp_dropped_total";
}

postern_telemetry::label! {
    /// The answer to a request.
    pub AgentOutcome = "outcome" {
        /// A tunnel, or the answer of a plain `http://` request.
        Opened = "opened",
        /// The gateway refused the target, or the target did not answer.
        TargetFailed = "target_failed",
        /// No token was available.
        NoToken = "no_token",
        /// The gateway refused one token after another.
        TokensRefused = "tokens_refused",
        /// The gateway was unreachable, or broke the connection off.
        GatewayFailed = "gateway_failed",
        /// The program's request was malformed or not allowed.
        BadRequest = "bad_request",
        /// Too many connections were open.
        TooMany = "too_many",
    }
}

postern_telemetry::label! {
    /// The position of a gateway on the path to the target.
    pub Position = "hop" {
        /// The gateway of `[gateway]`, which opens tunnels to targets.
        Last = "last",
        /// The gateway of `[first_hop]`, which opens tunnels to the last one.
        First = "first",
    }
}

impl Position {
    /// Returns the prefix of this hop's configuration keys.
    pub(crate) const fn section(self) -> &'static str {
        match self {
            Self::First => "first_hop.",
            Self::Last => "",
        }
    }
}

postern_telemetry::label! {
    /// The fate of a token. `Minted` counts all tokens that the agent received; each is still in the wallet or has one of the
    /// other fates.
    pub TokenFate = "fate" {
        /// Signed by the issuer, and received.
        Minted = "minted",
        /// Accepted by the gateway, which opened a tunnel.
        Opened = "opened",
        /// Sent; the gateway refused the target, or the target did not answer.
        TargetFailed = "target_failed",
        /// Rejected by the gateway with 407.
        Refused = "refused",
        /// Sent, with an unknown outcome: 503, 429 or no readable answer.
        Unanswered = "unanswered",
        /// Sent; the program hung up or the agent stopped before the answer.
        Abandoned = "abandoned",
        /// Dropped unused: its key has retired, or the gateway no longer accepts the key.
        Retired = "retired",
        /// Dropped unused: to make room, for a challenge that the gateway no longer sends, or because the gateway rejects tokens
        /// of an older mark.
        Superseded = "superseded",
        /// Lost because the wallet file could not be written.
        Unwritten = "unwritten",
    }
}

impl TokenFate {
    /// Returns `true` if the token is gone without an answer about its target.
    pub(crate) const fn is_lost(self) -> bool {
        !matches!(self, Self::Minted | Self::Opened | Self::TargetFailed)
    }
}
