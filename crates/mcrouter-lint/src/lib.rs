//! Whether the configuration of a router is safe for recording spent tokens: mcrouter's, and twemproxy's
//! ([`judge_twemproxy`]).
//!
//! mcrouter (facebook/mcrouter) can spread, repeat and redirect commands in many ways. A configuration is unsafe if two
//! `add`s of one key can both be answered STORED. [`judge`] reads a configuration, follows the routes that Postern's
//! records take, and reports where that can happen, where it is unknown, and where honest tokens are refused or a `get`
//! does not find what an `add` wrote. It does no I/O.
//!
//! Safe are one pool whose servers own their keys, and `AllMajorityRoute` over three such pools that share no server.
//! ```
//! use postern_mcrouter_lint::{Severity, judge};
//!
//! let failover = r#"{
//!     "pools": { "a": { "servers": ["10.0.0.1:11211"] }, "b": { "servers": ["10.0.0.2:11211"] } },
//!     "route": { "type": "FailoverRoute", "children": ["PoolRoute|a", "PoolRoute|b"] }
//! }"#;
//! let findings = judge(failover);
//! assert_eq!(findings[0].severity, Severity::Refuse);
//! ```
//!
//! What the check cannot know: which options mcrouter is started with, whether two host names are one machine, and what
//! stands behind a server that is itself a proxy.

mod add;
mod copies;
mod finding;
mod get;
mod handle;
mod json;
mod macros;
mod pool;
mod pool_lookup;
mod route;
mod selector;
mod twemproxy;
mod verdict;

#[cfg(test)]
mod tests;

pub use finding::{Finding, Severity};
pub use twemproxy::judge_twemproxy;

use Severity::{Note, Warn};
use add::Storage;
use handle::{Handle, Judge};
use json::Json;
use std::collections::BTreeSet;
use std::time::Duration;

/// The epoch markers of a token key, as the store plants them.
const EPOCH_MARKERS: f64 = 64.0;
/// With as many servers in a pool, one has no epoch marker at most once in twenty token keys.
const MOST_WATCHED: usize = 12;

/// What of a gateway's configuration a router has to fit.
#[derive(Clone, Copy, Debug)]
pub struct Gateway {
    /// How long it waits for an answer of the store.
    pub timeout: Duration,
    /// Whether marks bind its tokens (`challenge.bind` is "accept" or "offer").
    pub bound: bool,
}

/// Judges the text of an mcrouter configuration for Postern; the weightiest findings come first.
///
/// Without a finding of [`Severity::Refuse`], and as far as the file shows, no token can be admitted twice while its
/// servers lose no more than the route is made to survive. Texts of more than 4 MiB, nesting deeper than 40 handles and
/// more than 500,000 handles and servers to look at are refused; any text is answered within a few seconds.
#[must_use]
pub fn judge(text: &str) -> Vec<Finding> {
    judge_all(text, None)
}

/// The same, and whether every pool gives up on a server that hangs before the gateway does.
#[must_use]
pub fn judge_beside(text: &str, gateway: Gateway) -> Vec<Finding> {
    judge_all(text, Some(gateway.timeout))
}

fn judge_all(text: &str, timeout: Option<Duration>) -> Vec<Finding> {
    let mut findings = finding::Findings::default();
    let json = match Json::parse(text) {
        Ok(json) => json,
        Err(reason) => {
            findings.add(Severity::Refuse, ("", ""), &reason, "");
            return findings.sorted();
        }
    };
    let Json::Object(top) = &json else {
        findings.add(Severity::Refuse, ("", ""), "it is not an object with `pools` and `route`.", "");
        return findings.sorted();
    };
    let mut judge = Judge::new(top, timeout);
    if !judge.finds_macros(top) {
        judge.routes();
    }
    judge.findings.sorted()
}

impl<'a> Judge<'a> {
    /// Judges what `add` and `get` do under one route.
    fn both(&mut self, route: &'a Json, path: &str) {
        let Some(handle) = self.one(route, path) else { return };
        let Some(storage) = self.add(&handle) else {
            if !self.findings.refused() {
                self.refuse(handle.place(), "it could not be judged.", ""); // nothing passes by an oversight here
            }
            self.get(&handle); // its findings, too
            return;
        };
        self.report_storage(&handle, &storage);
        self.judge_copies(&storage.places);
        let reader = self.reader(handle);
        if let Some(reader) = reader {
            self.get_beside(&reader, &storage);
        }
    }

    /// The handle that a `get` is given, so that findings name that one.
    fn reader(&mut self, mut handle: Handle<'a>) -> Option<Handle<'a>> {
        while matches!(handle.kind, "OperationSelectorRoute" | "PrefixPolicyRoute" | "RoutingGroupRoute") {
            handle = self.operation(&handle, "get", "get_like")?;
        }
        Some(handle)
    }

    fn report_storage(&mut self, handle: &Handle<'a>, storage: &Storage) -> Option<()> {
        let mut servers = BTreeSet::new();
        for place in &storage.places {
            self.work(place.servers.len())?;
            servers.extend(place.servers.iter());
        }
        let servers = servers.len();
        let reason = format!("an `add` comes to {} ({servers} servers in all).", storage.shape);
        self.findings.add(Note, handle.place(), &reason, "");
        if servers == 1 {
            let reason = "all records are on one server: its loss is the loss of all.";
            let instead = "Use more servers, unless this is one of three `store.memcached.replicas`.";
            self.findings.add(Warn, handle.place(), reason, instead);
        }
        self.report_unwatched(handle, storage);
        Some(())
    }

    /// A gateway notices a server that came back empty by the epoch markers that it had, which chance spreads.
    fn report_unwatched(&mut self, handle: &Handle<'a>, storage: &Storage) {
        let most = storage.places.iter().map(|place| place.servers.len()).max().unwrap_or(0);
        if let Some((reason, instead)) = unwatched(most) {
            self.findings.add(Warn, handle.place(), &reason, &instead);
        }
    }
}

/// Why a pool of this number of servers is too large, and the remedy; `None` if it is not.
fn unwatched(servers: usize) -> Option<(String, String)> {
    if servers <= MOST_WATCHED {
        return None;
    }
    let missed = servers as f64 * (1.0 - 1.0 / servers as f64).powf(EPOCH_MARKERS);
    let reason = format!(
        "its {servers} servers share the {EPOCH_MARKERS} epoch markers of a token key by chance: on average \
         {missed:.1} of them have none, and when such a server comes back empty, spent tokens are good again until \
         sentinels are read, which may be hours."
    );
    Some((reason, format!("Use at most {MOST_WATCHED} servers in a pool, with more memory each.")))
}
