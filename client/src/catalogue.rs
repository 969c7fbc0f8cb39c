//! Every metric of the agent: its name, help and labels. Nothing else in the agent spells one.

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

    /// When the TLS certificate that the gateway sees ends; 0 without one.
    AGENT_CERTIFICATE_ENDS: Gauge = "postern_agent_certificate_ends_timestamp_seconds" [Position::SPEC];

    /// Answered requests.
    AGENT_REQUESTS: Counter = "postern_agent_requests_total" [AgentOutcome::SPEC];
}

postern_telemetry::label! {
    /// How the agent answered a request.
    pub AgentOutcome = "outcome" {
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
        /// Too many connections were open.
        TooMany = "too_many",
    }
}

postern_telemetry::label! {
    /// A gateway's place on the way to the target.
    pub Position = "hop" {
        /// The gateway of `[gateway]`, which opens tunnels to targets.
        Last = "last",
        /// The gateway of `[first_hop]`, which opens the way to that one.
        First = "first",
    }
}

impl Position {
    /// What the keys of its configuration begin with.
    pub(crate) const fn section(self) -> &'static str {
        match self {
            Self::First => "first_hop.",
            Self::Last => "",
        }
    }
}

postern_telemetry::label! {
    /// What became of a token of the agent's. Minted are what it got; what was neither minted nor is held in the wallet
    /// went one of the other ways.
    pub TokenFate = "fate" {
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
        /// It was for a challenge that the gateway no longer sends, and was dropped to make room.
        Superseded = "superseded",
        /// The wallet could not be written.
        Unwritten = "unwritten",
    }
}

impl TokenFate {
    /// Whether a token is gone without an answer about its target.
    pub(crate) const fn is_lost(self) -> bool {
        match self {
            Self::Minted | Self::Opened | Self::TargetFailed => false,
            Self::Refused
            | Self::Unanswered
            | Self::Abandoned
            | Self::Retired
            | Self::Superseded
            | Self::Unwritten => true,
        }
    }
}
