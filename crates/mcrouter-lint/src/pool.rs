//! Pools: which servers, chosen how.

use crate::Severity::{Note, Refuse, Warn};
use crate::finding::shown;
use crate::handle::{Body, Handle, Judge, join};
use crate::json::{Json, Object};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

/// mcrouter's own default of `server_timeout`, in milliseconds.
const DEFAULT_TIMEOUT_MS: f64 = 1000.0;
/// The longest chain of `inherit`.
const MOST_INHERITED: usize = 32;

/// A pool, with what it inherits.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    /// The way to it in the file.
    pub(crate) path: String,
    /// The pool's object, and those it inherits from.
    layers: Vec<&'a Object>,
    pub(crate) servers: &'a [Json],
    /// Whether all its servers are addresses; mcrouter also takes routes.
    pub(crate) plain: bool,
    /// The distinct addresses, and how keys are distributed over them; computed once.
    place: Option<Place>,
}

/// A pool that owns its keys: one server, or several that a hash chooses from.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Equal for two places just when the same key is looked for on the same server: a digest, for it is copied often.
    pub(crate) identity: u64,
    pub(crate) servers: Rc<BTreeSet<Rc<str>>>,
}

impl Place {
    pub(crate) fn server(address: &Rc<str>) -> Self {
        Self { identity: digest(address), servers: Rc::new(BTreeSet::from([address.clone()])) }
    }

    /// The place as seen through something that changes which server a key is looked for on.
    pub(crate) fn through(self, how: impl Hash) -> Self {
        Self { identity: digest((how, self.identity)), servers: self.servers }
    }
}

/// A digest, the same for the same value within one run.
pub(crate) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<'a> Pool<'a> {
    fn field(&self, key: &str) -> Option<&'a Json> {
        self.layers.iter().find_map(|layer| layer.get(key))
    }

    /// Whether mcrouter makes several destinations of each server.
    pub(crate) fn fans_out(&self) -> bool {
        self.field("additional_fanout").is_some_and(|fanout| fanout.number() != Some(0.0))
    }

    /// The address of a server, in one spelling. `None`: mcrouter would not take it.
    pub(crate) fn address(&self, text: &str) -> Option<Rc<str>> {
        normal(text, self.field("port_override").and_then(Json::number))
    }
}

/// `host:port[:protocol[:security[:compression]]]`, `[v6]:port...` or `unix:path...` in one spelling.
fn normal(text: &str, port_override: Option<f64>) -> Option<Rc<str>> {
    if let Some(rest) = text.strip_prefix("unix:") {
        let path = rest.split(':').next().filter(|path| !path.is_empty())?;
        return Some(format!("unix:{path}").into());
    }
    let (host, rest) = match text.strip_prefix('[') {
        Some(v6) => v6.split_once("]:")?,
        None => text.split_once(':')?,
    };
    let port: u16 = rest.split(':').next()?.parse().ok()?;
    let port = port_override.map_or_else(|| port.to_string(), |port| port.to_string());
    let host = match host.parse::<IpAddr>() {
        Ok(ip) if ip == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]) => "127.0.0.1".to_owned(),
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) if host.is_empty() => return None,
        Err(_) if host.eq_ignore_ascii_case("localhost") => "127.0.0.1".to_owned(),
        Err(_) => host.to_ascii_lowercase(),
    };
    Some(format!("{host}:{port}").into())
}

impl<'a> Judge<'a> {
    /// The pool that a `PoolRoute` is over. `None`: it was refused.
    pub(crate) fn pool_of(&mut self, handle: &Handle<'a>) -> Option<Rc<Pool<'a>>> {
        match (&handle.body, handle.field("pool")) {
            (Body::Text(_, name), _) => self.pool_named(name, &handle.path),
            (_, Some(Json::Text(name))) => self.pool_named(name, &handle.at("pool")),
            (_, Some(Json::Object(pool))) => self.pool_of_object(pool, &handle.at("pool")),
            _ => {
                self.refuse(
                    handle.place(),
                    "it names no pool.",
                    "Write `PoolRoute|` and the name of a pool.",
                );
                None
            }
        }
    }

    /// A pool written in place. Where `pools` has one of the same name, mcrouter takes that one.
    pub(crate) fn pool_of_object(&mut self, pool: &'a Object, path: &str) -> Option<Rc<Pool<'a>>> {
        let Some(Json::Text(name)) = pool.get("name") else {
            self.refuse((path, "pool"), "a pool that is written in place needs a `name`.", "Give it one.");
            return None;
        };
        if self.pools.contains_key(name.as_str()) || self.listed(name).is_some() {
            return self.pool_named(name, path);
        }
        self.pool_read(name, path.to_owned(), pool)
    }

    pub(crate) fn pool_named(&mut self, name: &'a str, from: &str) -> Option<Rc<Pool<'a>>> {
        self.work(1)?;
        if let Some(known) = self.pools.get(name) {
            return known.clone();
        }
        let Some(pool) = self.listed(name) else {
            let reason = format!("the pool {} is not in this file, so its servers are unknown.", shown(name));
            self.refuse((from, "pool"), &reason, "Write the pool under `pools`.");
            return None;
        };
        let path = join("pools", name);
        match pool {
            Json::Object(pool) => self.pool_read(name, path, pool),
            other => {
                let reason = format!("it is {}; mcrouter takes an object with `servers`.", other.what());
                self.refuse((&path, "pool"), &reason, "");
                None
            }
        }
    }

    fn listed(&self, name: &str) -> Option<&'a Json> {
        self.top.get("pools")?.object()?.get(name)
    }

    /// Reads a pool, once, and reports its problems.
    fn pool_read(&mut self, name: &'a str, path: String, pool: &'a Object) -> Option<Rc<Pool<'a>>> {
        self.pools.insert(name, None); // what it stays if it is refused
        let mut layers = vec![pool];
        while let Some(inherit) = layers[layers.len() - 1].get("inherit") {
            let parent = inherit.text().and_then(|name| self.listed(name)).and_then(Json::object);
            match parent {
                Some(parent) if layers.len() < MOST_INHERITED => layers.push(parent),
                _ => {
                    let reason = "what it inherits from is not in this file, or in a circle.";
                    self.refuse((&path, "pool"), reason, "Write the pool's `servers` out.");
                    return None;
                }
            }
        }
        let Some(Json::List(servers)) = layers.iter().find_map(|layer| layer.get("servers")) else {
            self.refuse((&path, "pool"), "it has no list of `servers`.", "Write them out.");
            return None;
        };
        let plain = servers.iter().all(|server| server.text().is_some());
        let mut pool = Pool { path, layers, servers, plain, place: None };
        self.options(&pool);
        pool.place = Some(self.place_of(&pool)?);
        let pool = Rc::new(pool);
        self.pools.insert(name, Some(pool.clone()));
        Some(pool)
    }

    fn options(&mut self, pool: &Pool<'a>) {
        let place = (pool.path.as_str(), "pool");
        let timeout = pool.field("server_timeout").and_then(Json::number);
        if timeout.is_some_and(|timeout| timeout > DEFAULT_TIMEOUT_MS) {
            let reason = "`server_timeout` is over a second: while a server hangs, answers behind its own wait as long, \
                 and the gateway gives up first.";
            self.findings.add(Warn, place, reason, "Write 100 to 250 (milliseconds).");
        }
        let protocol = pool.field("protocol").and_then(Json::text).unwrap_or("ascii");
        if !protocol.eq_ignore_ascii_case("ascii") {
            let reason = "memcached speaks `ascii`; behind another protocol stands something else, perhaps a second \
                 mcrouter, which is not judged here.";
            self.findings.add(Warn, place, reason, "Check that one's configuration, too.");
        }
        let failover = pool.layers.iter().flat_map(|layer| layer.keys()).find(|key| key.contains("failover"));
        if let Some(key) = failover {
            let reason = format!(
                "`{}` is not known here, and sounds as if an `add` could change servers.",
                shown(key)
            );
            self.findings.add(Refuse, place, &reason, "Leave it out.");
        }
    }

    /// The pool's addresses, and what else decides where a key goes.
    fn place_of(&mut self, pool: &Pool<'a>) -> Option<Place> {
        self.work(pool.servers.len())?;
        let mut order = Vec::new();
        let mut servers = BTreeSet::new();
        for (index, server) in pool.servers.iter().enumerate() {
            let Json::Text(text) = server else { continue }; // a route; the judges go into it
            let Some(address) = pool.address(text) else {
                let reason = format!("mcrouter would not take the server {}.", shown(text));
                self.refuse(
                    (&format!("{}.servers[{index}]", pool.path), "pool"),
                    &reason,
                    "Write `host:port`.",
                );
                return None;
            };
            if !servers.insert(address.clone()) {
                let reason =
                    format!("the server {} is listed twice, and so gets two shares.", shown(&address));
                self.findings.add(Note, (&pool.path, "pool"), &reason, "");
            }
            order.push(address);
        }
        let how = ["weights", "tags"].map(|key| pool.field(key));
        let identity = digest((order, format!("{how:?}")));
        Some(Place { identity, servers: Rc::new(servers) })
    }
}

impl Pool<'_> {
    /// The place of its keys, as a route that chooses by `choice` sees it.
    pub(crate) fn place(&self, choice: u64) -> Option<Place> {
        let place = self.place.clone()?;
        let alone = self.servers.len() == 1; // then nothing is chosen
        Some(if alone { place } else { place.through(choice) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_one_spelling() {
        let same =
            ["localhost:11211", "127.0.0.1:11211:ascii:plain", "[::1]:11211", "[::ffff:127.0.0.1]:11211"];
        for text in same {
            assert_eq!(normal(text, None).as_deref(), Some("127.0.0.1:11211"), "{text}");
        }
        assert_eq!(normal("Cache-1.example:5", Some(6.0)).as_deref(), Some("cache-1.example:6"));
        assert_eq!(normal("unix:/run/m.sock:ascii", None).as_deref(), Some("unix:/run/m.sock"));
        for text in ["", "host", ":1", "host:x", "host:70000", "[::1", "unix:", "unix::"] {
            assert_eq!(normal(text, None), None, "{text}");
        }
    }
}
