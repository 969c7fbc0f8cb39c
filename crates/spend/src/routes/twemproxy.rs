//! The check of a twemproxy configuration (`nutcracker.yml`).
//!
//! twemproxy routes by hash alone, so few options matter. It does not start with an unknown option, and compares `true` and
//! numbers character by character, so these are read as text here.

use super::{Finding, Findings, PARTED, Severity, judged, shown};
use Severity::{Note, Refuse, Warn};
use serde::Deserialize;
use serde_yaml_ng::{Mapping, from_str};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const HASHES: &str =
    "crc16 crc32 crc32a fnv1_32 fnv1_64 fnv1a_32 fnv1a_64 hsieh jenkins md5 murmur one_at_a_time";

/// The options of a pool in twemproxy 0.5.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "of some options only the spelling matters")]
struct Options {
    listen: String,
    hash: Option<String>,
    hash_tag: Option<String>,
    distribution: Option<String>,
    timeout: Option<Number>,
    backlog: Option<Number>,
    client_connections: Option<Number>,
    server_connections: Option<Number>,
    server_retry_timeout: Option<Number>,
    server_failure_limit: Option<Number>,
    auto_eject_hosts: Option<Switch>,
    preconnect: Option<Switch>,
    redis: Option<Switch>,
    tcpkeepalive: Option<Switch>,
    servers: Vec<String>,
}

/// Digits alone.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Number(u64);

impl TryFrom<String> for Number {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let number = text.parse().ok().filter(|_| text.bytes().all(|letter| letter.is_ascii_digit()));
        number.map(Self).ok_or("a number is digits alone")
    }
}

/// `true` or `false`, spelled so.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Switch(bool);

impl TryFrom<String> for Switch {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self).map_err(|_| "a switch is `true` or `false`")
    }
}

/// Judges the text of a twemproxy configuration for a gateway that waits `patience` for an answer (`None`: unknown, the default
/// applies). Returns the findings by descending severity.
///
/// Judges every pool. Without a finding of [`Severity::Refuse`] twemproxy loads the file, and each key has one owner.
#[must_use]
pub fn judge_twemproxy(text: &str, patience: Option<Duration>) -> Vec<Finding> {
    judged(|findings| {
        for (name, options) in &pools(text)? {
            let place = format!("pool {}", shown(name));
            Pool { place, options, findings }.judge(patience);
        }
        Ok(())
    })
}

fn pools(text: &str) -> Result<BTreeMap<String, Options>, String> {
    let refused = |error| {
        format!("it is no configuration that twemproxy loads, or has options that are not known: {error}.")
    };
    from_str::<Mapping>(text).map_err(refused)?; // only this detects a duplicate name
    let pools: BTreeMap<_, _> = from_str(text).map_err(refused)?;
    if pools.is_empty() { Err("it has no pool.".to_owned()) } else { Ok(pools) }
}

struct Pool<'a> {
    place: String,
    options: &'a Options,
    findings: &'a mut Findings,
}

impl Pool<'_> {
    fn judge(&mut self, patience: Option<Duration>) {
        self.judge_owner();
        let timeout = self.options.timeout.map(|Number(timeout)| timeout).filter(|timeout| *timeout != 0);
        self.findings.judge_timeout(&self.place, ("timeout", timeout.map(Duration::from_millis)), patience);
        if !self.options.preconnect.is_some_and(|Switch(is_on)| is_on) {
            let reason = "it connects to a server when the first command for it comes: after a start the first checks wait.";
            self.find(Warn, reason, "Write `preconnect: true`.");
        }
        let address = self.options.listen.split_whitespace().next().unwrap_or_default();
        if matches!(address.rsplit_once(':'), Some(("0.0.0.0" | "::" | "[::]" | "*" | "", _))) {
            let reason = "it listens on all addresses: anyone who reaches it can delete a record, and its token is good again.";
            self.find(Warn, reason, "Listen on loopback, a private address or a Unix socket.");
        }
        self.judge_servers();
    }

    /// Refuses options that give a key or a bucket more than one owner.
    fn judge_owner(&mut self) {
        let Options { auto_eject_hosts, distribution, hash, hash_tag, redis, server_connections, .. } =
            self.options;
        if redis.is_some_and(|Switch(is_on)| is_on) {
            let instead = "Write `redis: false`, and give Postern its own twemproxy.";
            self.find(Refuse, "it speaks Redis, so that no token can be admitted.", instead);
        }
        if auto_eject_hosts.is_none_or(|Switch(is_on)| is_on) {
            let reason = "`auto_eject_hosts` gives the keys of a server that is away to the others, which do not have its \
                 records, and back again: a token is admitted by each.";
            self.find(Refuse, reason, "Write `auto_eject_hosts: false`.");
        }
        if hash_tag.as_deref() != Some("||") {
            let reason = format!("`hash_tag` is not what encloses the name of a bucket: {PARTED}.");
            self.find(Refuse, &reason, "Write `hash_tag: \"||\"`.");
        }
        if hash.as_ref().is_some_and(|hash| !HASHES.split(' ').any(|known| known == hash)) {
            self.find(Refuse, "`hash` is none that twemproxy knows.", "Write `hash: fnv1a_64`.");
        }
        if !matches!(distribution.as_deref(), None | Some("ketama" | "modula")) {
            let reason = "only with `distribution` \"ketama\" or \"modula\" does each key have one server.";
            self.find(Refuse, reason, "Write `distribution: ketama`.");
        }
        if server_connections.is_some_and(|Number(number)| number != 1) {
            let reason = "with several connections to a server the `get` of a witness may overtake the `add` before it.";
            self.find(Refuse, reason, "Write `server_connections: 1`.");
        }
    }

    fn judge_servers(&mut self) {
        let mut names = BTreeSet::new();
        for server in &self.options.servers {
            let (address, name) = server.split_once(' ').unwrap_or((server, server));
            let (address, weight) = address.rsplit_once(':').unwrap_or((address, ""));
            let is_whole = address.starts_with('/')
                || address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let weight = weight.parse::<u32>().ok().filter(|_| is_whole);
            if weight.is_none_or(|weight| weight == 0) || name.contains(' ') || !names.insert(name) {
                let reason = format!("the server {} does not load.", shown(server));
                self.find(Refuse, &reason, "Write `host:port:1 name`, each name once.");
            } else if name == server {
                let reason = "a server without a name has its share of the keys by its address: with another address it has \
                     another share, and the tokens of both are refused.";
                self.find(Note, reason, "Give each server a name, as in `10.0.0.1:11211:1 spent-1`.");
            }
        }
        match self.options.servers.len() {
            0 => self.find(Refuse, "it has no servers.", "List them, as `host:port:1 name`."),
            count => self.find(Note, &format!("an `add` comes to one pool ({count} servers)."), ""),
        }
    }

    fn find(&mut self, severity: Severity, reason: &str, instead: &str) {
        self.findings.add(severity, &self.place, reason.to_owned(), instead);
    }
}
