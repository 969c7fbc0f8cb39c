//! The routes under which an `add` must not run, each with the reason.
//!
//! What a route does with an `add` is read from mcrouter's sources (facebook/mcrouter, `mcrouter/routes/` and
//! `mcrouter/lib/routes/`, August 2026). A route that is not named here or in `add.rs` is refused as unknown: silence
//! is not safety.

/// What makes a route unfit for `add`, and what to write instead.
pub(crate) struct Verdict {
    pub(crate) reason: &'static str,
    pub(crate) instead: &'static str,
}

const OWNER_OR_QUORUM: &str = "Use one pool (`PoolRoute`), which owns its keys, or `AllMajorityRoute` over three pools that share no server.";
const ONE_ROUTE: &str = "Name the one route that every mcrouter shall use, such as `PoolRoute|A`.";

/// The verdict on `kind` with several children. With one child mcrouter puts the child in its place.
pub(crate) fn with_several(kind: &str) -> Option<Verdict> {
    let (reason, instead) = match kind {
        "FailoverRoute" | "SaltedFailoverRoute" | "FailoverWithExptimeRoute" => (
            "while the first child does not answer, an `add` is stored by the next one; when the first is back, the same \
             token is stored there once more.",
            OWNER_OR_QUORUM,
        ),
        // The first reply that is no error, whichever child it comes from.
        "AllFastestRoute" => (
            "the fastest child's answer counts: a replica that is back and empty answers STORED to a spent token.",
            OWNER_OR_QUORUM,
        ),
        "AllInitialRoute" => (
            "only the first child's answer counts: when it comes back empty it admits everything anew, though the others \
             still know.",
            OWNER_OR_QUORUM,
        ),
        "RandomRoute" => {
            ("each `add` goes to a child by chance: a token can be stored once in each.", OWNER_OR_QUORUM)
        }
        // A failover route over children in an order that each host, or thread, draws for itself.
        "LatestRoute" => (
            "every mcrouter prefers another child and fails over to more: a token can be stored once in each.",
            OWNER_OR_QUORUM,
        ),
        "LoadBalancerRoute" => (
            "the child is chosen by load, which changes: a token can be stored once in each.",
            OWNER_OR_QUORUM,
        ),
        "HostIdRoute" => (
            "every mcrouter takes the child of its own host id: two mcrouters then store records apart, and a token can \
             be stored once in each.",
            ONE_ROUTE,
        ),
        "OriginalClientHashRoute" => {
            ("the child is chosen by the client's address: two gateways then store records apart.", ONE_ROUTE)
        }
        _ => return None,
    };
    Some(Verdict { reason, instead })
}

/// The verdict on `kind`, however many children it has.
pub(crate) fn always(kind: &str) -> Option<Verdict> {
    let (reason, instead) = match kind {
        // NullRoute's reply to an update is NOT_STORED; AllAsyncRoute gives the same and does not wait.
        "NullRoute" | "DevNullRoute" => (
            "it answers NOT_STORED to every `add` and stores nothing: every token is called spent.",
            OWNER_OR_QUORUM,
        ),
        "AllAsyncRoute" => (
            "it answers NOT_STORED at once, whatever the children answer: every token is called spent.",
            OWNER_OR_QUORUM,
        ),
        "ErrorRoute" => (
            "it answers every `add` with an error: every spend is unknown, every client gets 503.",
            OWNER_OR_QUORUM,
        ),
        "WarmUpRoute" => (
            "an `add` reaches only the cold side, which does not know what was spent on the warm one: those tokens are good \
             again.",
            "Start the new servers with a new token key, and keep the old ones until the old key has expired.",
        ),
        "MigrateRoute" => (
            "each key changes servers at a time of its own, and its record stays behind: spent tokens are good again.",
            "Start the new servers with a new token key, and keep the old ones until the old key has expired.",
        ),
        // `add` goes to L1, but a get fills L1 with records of another expiry, and with `ncacheUpdatePeriod` it sets
        // values under keys that were never added.
        "L1L2CacheRoute" => (
            "its `get` writes into L1, with an expiry of its own: honest tokens are called spent, and records of spent \
             ones vanish early.",
            OWNER_OR_QUORUM,
        ),
        "KeySplitRoute" | "ShardSplitRoute" => (
            "it changes the key by the mcrouter's host id: a token can be stored once through each mcrouter.",
            "Leave it out: no record of Postern's is read often.",
        ),
        "ModifyExptimeRoute" => (
            "it changes when records expire: a record that goes before its token key does makes the token good again.",
            "Name its target directly. Postern gives every record the expiry it needs.",
        ),
        _ => return None,
    };
    Some(Verdict { reason, instead })
}

/// The field of a route that hands every request on, unchanged, to one target.
pub(crate) fn transparent(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "LoggingRoute" | "OutstandingLimitRoute" | "RateLimitRoute" | "BigValueRoute" => "target",
        // Only keys with a hash stop (`|#|`) are held up by the one, only bucketized pools see the other: never ours.
        "HashStopAllowListRoute" | "KeyParseRoute" => "target",
        "LatencyInjectionRoute" | "DistributionRoute" | "SetDistributionTargetRoute" => "child",
        "ModifyKeyRoute" => "target",
        _ => return None,
    })
}
