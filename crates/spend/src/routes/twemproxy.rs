//! The check of a twemproxy configuration (`nutcracker.yml`).
//!
//! twemproxy routes by hash alone, so few options matter. It does not start with an unknown option, and compares `true` and
//! numbers character by character, so all options are strings here.

use super::PARTED;
use super::finding::{Finding, Findings, Severity, judged, shown};
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
struct Options {
    listen: String,
    hash: Option<String>,
    hash_tag: Option<String>,
    distribution: Option<String>,
    timeout: Option<String>,
    backlog: Option<String>,
    client_connections: Option<String>,
    server_connections: Option<String>,
    server_retry_timeout: Option<String>,
    server_failure_limit: Option<String>,
    auto_eject_hosts: Option<String>,
    preconnect: Option<String>,
    redis: Option<String>,
    tcpkeepalive: Option<String>,
    servers: Vec<String>,
}

/// Judges the text of a twemproxy configuration for a gateway that waits `patience` for an answer (`None`: unknown, the default
/// applies). Returns the findings by descending severity.
///
/// Judges every pool. Without a finding of [`Severity::Refuse`] twemproxy loads the file, and each key has one owner.
#[must_use]
pub fn judge_twemproxy(text: &str, patience: Option<Duration>) -> Vec<Finding> {
    judged(text, |findings| {
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
        self.judge_spelling();
        self.judge_owner();
        let timeout = self.options.timeout.as_deref().and_then(number).filter(|timeout| *timeout != 0);
        self.findings.judge_timeout(&self.place, ("timeout", timeout.map(Duration::from_millis)), patience);
        if self.options.preconnect.as_deref() != Some("true") {
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

    /// Refuses values with which twemproxy does not start.
    fn judge_spelling(&mut self) {
        let options = self.options;
        let is_flag = |text: &String| ["true", "false"].contains(&text.as_str());
        let is_number = |text: &String| number(text).is_some();
        for (name, value, is_fit) in [
            ("auto_eject_hosts", &options.auto_eject_hosts, &is_flag as &dyn Fn(&String) -> bool),
            ("preconnect", &options.preconnect, &is_flag),
            ("redis", &options.redis, &is_flag),
            ("tcpkeepalive", &options.tcpkeepalive, &is_flag),
            ("timeout", &options.timeout, &is_number),
            ("backlog", &options.backlog, &is_number),
            ("client_connections", &options.client_connections, &is_number),
            ("server_connections", &options.server_connections, &is_number),
            ("server_retry_timeout", &options.server_retry_timeout, &is_number),
            ("server_failure_limit", &options.server_failure_limit, &is_number),
        ] {
            if value.as_ref().is_some_and(|value| !is_fit(value)) {
                let reason = format!("twemproxy does not start with this `{name}`.");
                self.find(
                    Refuse,
                    &reason,
                    "It takes `true` or `false` as a switch, and digits alone as a number.",
                );
            }
        }
    }

    /// Refuses options that give a key or a bucket more than one owner.
    fn judge_owner(&mut self) {
        let Options { auto_eject_hosts, distribution, hash, hash_tag, redis, server_connections, .. } =
            self.options;
        if redis.as_deref() == Some("true") {
            let instead = "Write `redis: false`, and give Postern its own twemproxy.";
            self.find(Refuse, "it speaks Redis, so that no token can be admitted.", instead);
        }
        if auto_eject_hosts.as_deref() != Some("false") {
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
        if !matches!(server_connections.as_deref(), None | Some("1")) {
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

fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|letter| letter.is_ascii_digit()))
}
