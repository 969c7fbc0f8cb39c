//! Whether a twemproxy configuration (`nutcracker.yml`) is fit to remember spent tokens.
//!
//! twemproxy routes by hash alone, so that little can be wrong: a pool that gives the keys of a dead server to others, one
//! that parts a bucket, one that waits longer than the gateways do. What twemproxy itself refuses to start with
//! (`nutcracker --test-conf`) is judged only where the rest rests on it.

use super::finding::{Finding, Findings, shown};
use super::json::LONGEST_TEXT;
use super::{Gateway, Severity, unwatched};
use Severity::{Note, Refuse, Warn};
use serde_yaml_ng::{Mapping, Value};

#[cfg(test)]
mod tests;

/// How long a router waits without being told, in milliseconds, before clients of a hanging server are worth a warning.
const LONGEST_TIMEOUT_MS: f64 = 1000.0;

/// Judges the text of a twemproxy configuration for Postern, and beside the configuration of a gateway where there is one;
/// the weightiest findings come first.
///
/// Every pool is judged, except those for Redis beside others. Without a finding of [`Severity::Refuse`], and as far as the
/// file shows, no token can be admitted twice while its servers lose nothing.
#[must_use]
pub fn judge_twemproxy(text: &str, gateway: Option<Gateway>) -> Vec<Finding> {
    let mut findings = Findings::default();
    match pools(text) {
        Ok(pools) => {
            let all_redis = pools.iter().all(|(_, pool)| flag(pool, "redis") == Some(true));
            for (name, options) in &pools {
                Pool { name, options, gateway, findings: &mut findings }.judge(all_redis);
            }
        }
        Err(reason) => findings.add(Refuse, ("", ""), &reason, ""),
    }
    findings.sorted()
}

fn pools(text: &str) -> Result<Vec<(String, Mapping)>, String> {
    if text.len() > LONGEST_TEXT {
        return Err(format!("it is longer than {} MiB, the most that is checked.", LONGEST_TEXT >> 20));
    }
    let file: Value = serde_yaml_ng::from_str(text)
        .map_err(|error| format!("it is not the YAML that twemproxy reads: {error}."))?;
    let Value::Mapping(file) = file else { return Err("it is not a mapping of pools.".to_owned()) };
    let pools = file.into_iter().map(|(name, pool)| match (name, pool) {
        (Value::String(name), Value::Mapping(options)) => Ok((shown(&name), options)),
        (name, _) => Err(format!("what is under {} is not a pool.", shown(&format!("{name:?}")))),
    });
    let pools = pools.collect::<Result<Vec<_>, _>>()?;
    if pools.is_empty() { Err("it has no pool.".to_owned()) } else { Ok(pools) }
}

/// A bool as twemproxy reads it; `None` where it is absent or something else.
fn flag(pool: &Mapping, name: &str) -> Option<bool> {
    pool.get(name).and_then(Value::as_bool)
}

struct Pool<'a> {
    name: &'a str,
    options: &'a Mapping,
    gateway: Option<Gateway>,
    findings: &'a mut Findings,
}

impl Pool<'_> {
    fn find(&mut self, severity: Severity, reason: &str, instead: &str) {
        self.findings.add(severity, (self.name, "pool"), reason, instead);
    }

    fn judge(&mut self, all_redis: bool) {
        if flag(self.options, "redis") == Some(true) {
            return if all_redis {
                self.find(
                    Refuse,
                    "it speaks Redis, so that no token can be admitted.",
                    "Write `redis: false`.",
                );
            } else {
                self.find(Note, "it speaks Redis, so that no gateway can use it; it is not judged.", "");
            };
        }
        for name in ["redis", "auto_eject_hosts", "preconnect"] {
            if self.options.get(name).is_some_and(|value| !value.is_bool()) {
                let reason = format!("`{name}` is neither `true` nor `false`: twemproxy does not start.");
                self.find(Refuse, &reason, "Write one of the two.");
            }
        }
        self.ejection();
        self.buckets();
        self.distribution();
        self.timeout();
        if flag(self.options, "preconnect") != Some(true) {
            let reason = "it connects to a server when the first command for it comes: after a start the first checks wait, \
                 and a server that is away is found out by them.";
            self.find(Warn, reason, "Write `preconnect: true`.");
        }
        self.listening();
        self.servers();
    }

    fn ejection(&mut self) {
        let ejects = flag(self.options, "auto_eject_hosts") == Some(true);
        if ejects {
            let reason = "`auto_eject_hosts` gives the keys of a server that is away to the others, which do not have its \
                 records, and back again: tokens that were spent before are admitted by the other server, and once more \
                 by the first one.";
            self.find(Refuse, reason, "Write `auto_eject_hosts: false`.");
        } else if self.options.contains_key("server_retry_timeout") {
            let reason = "`server_retry_timeout` has no effect with `auto_eject_hosts: false`: a server that failed is tried \
                 again by the next command.";
            self.find(Note, reason, "");
        }
    }

    /// A record and the witness of its mark have to take one way: to the same server, one behind the other.
    fn buckets(&mut self) {
        let bound = self.gateway.map(|gateway| gateway.bound);
        let (severity, when) = match bound {
            Some(true) => (Refuse, ""),
            Some(false) => {
                (Warn, " That matters as soon as `challenge.bind` is \"accept\" or \"offer\"; it is \"off\".")
            }
            None => (
                Refuse,
                " That matters unless `challenge.bind` is \"off\" (name the gateway's file with --config).",
            ),
        };
        match self.options.get("hash_tag").map(|tag| tag.as_str().unwrap_or_default()) {
            Some("||") => {}
            Some(_) => {
                let reason =
                    format!("its `hash_tag` is not what encloses the name of a bucket. {PARTED}{when}");
                self.find(severity, &reason, "Write `hash_tag: \"||\"`.");
            }
            None => {
                let reason = format!("it has no `hash_tag`. {PARTED}{when}");
                self.find(
                    severity,
                    &reason,
                    "Write `hash_tag: \"||\"`; records that are not in a bucket stay where they are.",
                );
            }
        }
        let connections = self.number("server_connections").unwrap_or(1.0);
        if connections > 1.0 {
            let reason = format!(
                "it has {connections} connections to a server, so that the `get` of a witness may come there before the \
                 `add` that it stands behind, and not show what was lost in between.{when}"
            );
            self.find(severity, &reason, "Write `server_connections: 1`.");
        }
    }

    fn distribution(&mut self) {
        match self.options.get("distribution").map(|value| value.as_str().unwrap_or_default()) {
            None | Some("ketama") => {}
            Some("modula") => {
                let reason = "with `distribution: modula` nearly every key changes its server when a server is added or \
                     removed.";
                self.find(
                    Warn,
                    reason,
                    "Write `distribution: ketama` before the next token key is first used.",
                );
            }
            Some("random") => {
                let reason = "with `distribution: random` each command goes to any server: a token is admitted once by each.";
                self.find(Refuse, reason, "Write `distribution: ketama`.");
            }
            Some(other) => {
                let reason = format!("`distribution: {}` is not known here.", shown(other));
                self.find(Refuse, &reason, "Write `distribution: ketama`.");
            }
        }
    }

    fn timeout(&mut self) {
        let gateway = self.gateway.map(|gateway| gateway.timeout.as_secs_f64() * 1e3);
        let instead =
            format!("Write `timeout: {}` (milliseconds).", (gateway.unwrap_or(100.0) / 2.0).round().max(1.0));
        let timeout = self.number("timeout").filter(|timeout| *timeout > 0.0);
        let reason = match (timeout, gateway) {
            (None, _) => "it waits for a server that hangs without end: all answers behind that server's wait, too, and the \
                 gateway gives up first and closes the connection with everyone on it."
                .to_owned(),
            (Some(timeout), Some(gateway)) if timeout >= gateway => format!(
                "it waits {timeout} ms for a server that hangs, and the gateway {gateway} ms for an answer: the gateway gives \
                 up first, and closes the connection with everyone on it."
            ),
            (Some(timeout), None) if timeout > LONGEST_TIMEOUT_MS => "`timeout` is over a second: while a server hangs, \
                 answers behind its own wait as long, and the gateway gives up first."
                .to_owned(),
            _ => return,
        };
        self.find(Warn, &reason, &instead);
    }

    fn listening(&mut self) {
        let Some(address) = self.options.get("listen").and_then(Value::as_str) else { return };
        let address = address.split_whitespace().next().unwrap_or_default();
        if matches!(address.rsplit_once(':'), Some(("0.0.0.0" | "::" | "[::]" | "*" | "", _))) {
            let reason = "it listens on all addresses: whoever reaches it can delete records, and a deleted record makes its \
                 token good again.";
            self.find(Warn, reason, "Listen on loopback, a private address or a Unix socket.");
        }
    }

    fn servers(&mut self) {
        let listed = self.options.get("servers").and_then(Value::as_sequence);
        let servers: Vec<&str> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
        let count = servers.len();
        match count {
            0 => return self.find(Refuse, "it has no servers.", "List them, as `host:port:1 name`."),
            1 => {
                let reason = "all records are on one server: its loss is the loss of all.";
                let instead = "Use more servers, unless this is one of three `store.memcached.replicas`.";
                self.find(Warn, reason, instead);
            }
            _ => self.find(Note, &format!("an `add` comes to one pool of {count} servers."), ""),
        }
        if servers.iter().any(|server| server.split_whitespace().count() < 2) {
            let reason = "a server without a name has its share of the keys by its address: with another address it has \
                 another share, and the records of the old one are not found.";
            self.find(Note, reason, "Give each server a name, as in `10.0.0.1:11211:1 spent-1`.");
        }
        if let Some((reason, instead)) = unwatched(count) {
            self.find(Warn, &reason, &instead);
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.options.get(name).and_then(Value::as_f64)
    }
}

const PARTED: &str = "Records of one bucket then lie on several servers, and the witness that says that a record was kept is \
     on another one: when a server comes back empty, its spent tokens are admitted again.";
