//! The check of an mcrouter configuration.
//!
//! The known ones: a `PoolRoute` over servers that own their keys by a hash of what precedes `|#|`; before it a selector that
//! passes `add`, `get` and `gets` alone; before that prefixes, if all of Postern's keys take one of its routes.

use super::{Finding, Findings, Severity, judged, shown};
use crate::memcached::KEY_PREFIXES;
use Severity::{Note, Refuse, Warn};
use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// mcrouter's default `server_timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest `server_timeout` and `connect_timeout` that mcrouter accepts, in milliseconds.
const LONGEST_TIMEOUT_MS: u64 = 1_000_000;
/// The operation names known to every version.
const OPERATIONS: &str =
    "add append cas decr delete get gets incr lease-get lease-set metaget prepend replace set touch";
/// Those that a gateway sends: records, evidence that a bucket is on one server, and the counters of the fleet's limits.
const NEEDED: [&str; 4] = ["add", "get", "gets", "incr"];

const REPLICAS: &str = "Write `PoolRoute|` and the name of one pool. For several copies of each record list three replicas as \
     `store.memcached.replicas` in the gateway's file, with one router for each: the gateway counts their votes.";
const NOT_SHARED: &str = "Leave it out, and give Postern its own mcrouter.";

/// JSON with comments and trailing commas, as mcrouter parses it.
const MCROUTER: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_loose_object_property_names: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Judges the text of an mcrouter configuration for a gateway that waits `patience` for an answer (`None`: unknown, the default
/// applies). Returns the findings by descending severity.
///
/// Without a finding of [`Severity::Refuse`] mcrouter loads the file, and each key has one owner.
#[must_use]
pub fn judge_mcrouter(text: &str, patience: Option<Duration>) -> Vec<Finding> {
    judged(|findings| {
        let file = parse(text)?;
        Judge { text, patience, findings, pools: BTreeMap::new() }.judge_file(&file);
        Ok(())
    })
}

fn parse(text: &str) -> Result<Value<'_>, String> {
    let refused =
        |reason: &dyn std::fmt::Display| format!("it is not the JSON that mcrouter reads: {reason}");
    let parsed =
        parse_to_ast(text, &CollectOptions::default(), &MCROUTER).map_err(|error| refused(&error))?;
    parsed.value.ok_or_else(|| refused(&"there is no value on line 1 column 1"))
}

struct Judge<'a> {
    text: &'a str,
    patience: Option<Duration>,
    findings: &'a mut Findings,
    /// The number of servers of each pool.
    pools: BTreeMap<&'a str, usize>,
}

/// Each method returns `None` for a part of the file that it has refused.
impl<'a> Judge<'a> {
    fn judge_file(&mut self, file: &'a Value<'a>) {
        let owner = self.owner_of_file(file);
        if self.findings.refused() {
            return;
        }
        match owner {
            Some(pool) => {
                let count = self.pools.get(pool).copied().unwrap_or_default();
                let reason = format!("an `add` comes to the pool {} ({count} servers).", shown(pool));
                self.findings.add(Note, "", reason, "");
            }
            None => self.findings.add(Refuse, "", "it could not be judged.".to_owned(), ""),
        }
    }

    fn owner_of_file(&mut self, file: &'a Value<'a>) -> Option<&'a str> {
        let members = self.object(file, &["pools", "route"])?;
        if let Some(pools) = members.get("pools") {
            for pool in &self.members(&pools.value)?.properties {
                self.judge_pool(pool);
            }
        }
        match members.get("route").map(|route| &route.value) {
            None => self.refuse(file, "it has no `route`.", REPLICAS),
            Some(route) if kind(route) == Some("PrefixSelectorRoute") => self.owner_by_prefix(route),
            Some(route) => self.owner_by_operation(route),
        }
    }

    /// Returns the owner behind a selector by key prefix. The longest prefix that matches a key counts.
    fn owner_by_prefix(&mut self, route: &'a Value<'a>) -> Option<&'a str> {
        let selector = self.object(route, &["type", "policies", "wildcard"])?;
        let mut owners = Vec::new();
        if let Some(policies) = selector.get("policies") {
            for policy in &self.members(&policies.value)?.properties {
                self.plain(policy, policy.name.as_str())?;
                owners.push((policy.name.as_str(), self.owner_by_operation(&policy.value)?));
            }
        }
        if let Some(wildcard) = selector.get("wildcard") {
            owners.push(("", self.owner_by_operation(&wildcard.value)?));
        }
        let taken = |prefix: &str| {
            let whole = owners.iter().filter(|(policy, _)| prefix.starts_with(policy));
            let is_split =
                owners.iter().any(|(policy, _)| policy.len() > prefix.len() && policy.starts_with(prefix));
            whole.max_by_key(|(policy, _)| policy.len()).filter(|_| !is_split).map(|(_, owner)| owner)
        };
        let first = taken(KEY_PREFIXES[0]);
        if first.is_none() || KEY_PREFIXES.iter().any(|prefix| taken(prefix) != first) {
            let reason =
                format!("keys that begin with {} do not all take one route.", KEY_PREFIXES.join(" "));
            let instead = "Give all of them the same route, as `wildcard` or in `policies`.";
            return self.refuse(route, &reason, instead);
        }
        first.copied()
    }

    /// Returns the owner behind a selector by operation, or behind a pool without a selector.
    fn owner_by_operation(&mut self, route: &'a Value<'a>) -> Option<&'a str> {
        if kind(route) != Some("OperationSelectorRoute") {
            let Some(owner) = self.end(route)? else {
                return self.refuse(route, "no `add` comes to a server.", REPLICAS);
            };
            self.warn_of_commands(route);
            return Some(owner);
        }
        let selector = self.object(route, &["type", "operation_policies", "default_policy"])?;
        let mut ends = BTreeMap::new();
        if let Some(policies) = selector.get("operation_policies") {
            for policy in &self.members(&policies.value)?.properties {
                let operation = policy.name.as_str();
                if !OPERATIONS.split(' ').any(|known| known == operation) {
                    let reason = format!("{} is no operation of every mcrouter.", shown(operation));
                    return self.refuse(policy, &reason, "Leave it to `default_policy`.");
                }
                ends.insert(operation, self.end(&policy.value)?);
            }
        }
        let default = match selector.get("default_policy") {
            Some(default) => self.end(&default.value)?,
            None => None,
        };
        let passes = |(operation, end): (&&str, &Option<_>)| !NEEDED.contains(operation) && end.is_some();
        if default.is_some() || ends.iter().any(passes) {
            self.warn_of_commands(route);
        }
        let [add, get, gets] =
            ["add", "get", "gets"].map(|operation| ends.get(operation).unwrap_or(&default));
        if add.is_none() || add != get || add != gets {
            let reason = "an `add`, a `get` and a `gets` do not come to one pool, so that a record would not be found again, or a \
                 gateway cannot see that each bucket is on one server, and plants no mark.";
            return self.refuse(route, reason, "Give `add`, `get` and `gets` the same `PoolRoute`.");
        }
        *add
    }

    fn warn_of_commands(&mut self, route: &Value<'_>) {
        let reason = "it passes every command: anyone who reaches the router can `delete` a record, and its token is good again.";
        let instead = "Write an `OperationSelectorRoute` that passes `add`, `get` and `gets` alone, with \"ErrorRoute\" as \
             `default_policy`, as in deploy/mcrouter/single.json.";
        self.findings.add(Warn, &self.place(route), reason.to_owned(), instead);
    }

    /// Returns the owner behind a route that selects nothing; `Some(None)` if it leads to no server.
    fn end(&mut self, route: &'a Value<'a>) -> Option<Option<&'a str>> {
        let fields = |judge: &mut Self, known: &[&str]| match route {
            Value::StringLit(_) => Some(None),
            _ => judge.object(route, known).map(Some),
        };
        match kind(route) {
            // The default hash stops at `|#|`, so a bucket has one owner.
            Some("PoolRoute") => {
                let name = match fields(self, &["type", "pool"])? {
                    Some(fields) => fields.get_string("pool").map_or("", |name| &name.value),
                    None => text(route).and_then(|text| text.split_once('|')).map_or("", |(_, name)| name),
                };
                if !self.pools.contains_key(name) {
                    let reason = format!(
                        "the pool {} is not in this file, so its servers are not known.",
                        shown(name)
                    );
                    return self.refuse(route, &reason, "Name a pool that is under `pools`.");
                }
                Some(Some(name))
            }
            Some("ErrorRoute" | "NullRoute") => fields(self, &["type"]).map(|_| None),
            Some(kind) => {
                let reason = format!(
                    "{} is not known to give each key one owner: a token could be admitted twice, or a loss of records go \
                     unseen.",
                    shown(kind)
                );
                self.refuse(route, &reason, REPLICAS)
            }
            None => self.refuse(route, "mcrouter wants a route here.", REPLICAS),
        }
    }

    fn judge_pool(&mut self, pool: &'a ObjectProp<'a>) -> Option<()> {
        let name = pool.name.as_str();
        self.plain(pool, name)?;
        let fields = self.object(&pool.value, &["servers", "server_timeout", "connect_timeout"])?;
        let servers = fields.get_array("servers").map_or(&[][..], |list| &list.elements);
        if servers.is_empty() {
            self.refuse::<()>(pool, "it has no list of `servers`.", "List them, each as `host:port`.");
        }
        for server in servers.iter().filter(|server| !text(server).is_some_and(is_server)) {
            let reason = "a server here is a text `host:port`, or `host:port:ascii`.";
            self.refuse::<()>(server, reason, "Write the address of a memcached.");
        }
        self.pools.insert(name, servers.len());
        let mut timeout = DEFAULT_TIMEOUT;
        for key in ["connect_timeout", "server_timeout"] {
            let Some(field) = fields.get(key) else { continue };
            let number = field.value.as_number_lit().and_then(|number| number.value.parse().ok());
            match number.filter(|number| (1..=LONGEST_TIMEOUT_MS).contains(number)) {
                Some(number) if key == "server_timeout" => timeout = Duration::from_millis(number),
                Some(_) => {}
                None => {
                    let reason =
                        format!("`{key}` is no whole number of milliseconds from 1 to {LONGEST_TIMEOUT_MS}.");
                    self.refuse::<()>(field, &reason, "Write 50, without quotation marks.");
                }
            }
        }
        let place = self.place(pool);
        self.findings.judge_timeout(&place, ("server_timeout", Some(timeout)), self.patience);
        Some(())
    }

    /// Returns an object with unique keys.
    fn members(&mut self, value: &'a Value<'a>) -> Option<&'a Object<'a>> {
        let Value::Object(object) = value else {
            return self.refuse(
                value,
                "mcrouter takes an object here.",
                "Write `{}` with what belongs here.",
            );
        };
        let mut keys = BTreeSet::new();
        if let Some(member) = object.properties.iter().find(|member| !keys.insert(member.name.as_str())) {
            let reason = format!("the key {} stands twice in one object.", shown(member.name.as_str()));
            return self.refuse(member, &reason, "Leave one of them out.");
        }
        Some(object)
    }

    /// Returns an object with no keys but `known`.
    fn object(&mut self, value: &'a Value<'a>, known: &[&str]) -> Option<&'a Object<'a>> {
        let object = self.members(value)?;
        let unknown = object.properties.iter().filter(|member| !known.contains(&member.name.as_str()));
        let mut is_known = true;
        for member in unknown {
            let name = shown(member.name.as_str());
            let reason = format!("`{name}` is not known here, so its effect on an `add` is not.");
            self.refuse::<()>(member, &reason, NOT_SHARED);
            is_known = false;
        }
        is_known.then_some(object)
    }

    /// Refuses a name that mcrouter's preprocessor could expand.
    fn plain(&mut self, at: &impl Ranged, name: &str) -> Option<()> {
        if is_plain(name) {
            return Some(());
        }
        let reason = format!("{} holds more than letters, digits, and `- _ . |`.", shown(name));
        self.refuse(at, &reason, "mcrouter may expand it; write another name.")
    }

    fn refuse<T>(&mut self, at: &impl Ranged, reason: &str, instead: &str) -> Option<T> {
        self.findings.add(Refuse, &self.place(at), reason.to_owned(), instead);
        None
    }

    fn place(&self, at: &impl Ranged) -> String {
        let before = &self.text[..at.start()];
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {} column {column}", before.matches('\n').count() + 1)
    }
}

/// Returns the type of a route, in its object form or its short form.
fn kind<'a>(route: &'a Value<'a>) -> Option<&'a str> {
    match route {
        Value::Object(fields) => fields.get_string("type").map(|kind| kind.value.as_ref()),
        _ => text(route)?.split('|').next(),
    }
}

fn text<'a>(value: &'a Value<'a>) -> Option<&'a str> {
    value.as_string_lit().map(|text| text.value.as_ref())
}

/// Returns `true` if a name contains nothing that mcrouter's preprocessor expands: `@macro()`, `%parameter%`, `\\`.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.|".contains(letter))
}

/// Returns `true` for `host:port` or `[v6]:port`, as every version parses it, with or without `:ascii`.
fn is_server(address: &str) -> bool {
    let address = address.strip_suffix(":ascii").unwrap_or(address);
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').is_some_and(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            !host.is_empty()
                && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
        }
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0) && !port.starts_with('+')
}
