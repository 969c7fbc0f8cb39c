//! The pools that routes name, read when a route comes to them.
//!
//! Pools and handles are read by turns: a route names a pool, and a server of a pool may itself be a route.

use crate::Severity::{Note, Refuse, Warn};
use crate::finding::shown;
use crate::handle::{Body, Handle, Judge, join};
use crate::json::{Json, Object};
use crate::pool::{Place, Pool, digest};
use std::collections::BTreeSet;
use std::rc::Rc;

/// mcrouter's own default of `server_timeout`, in milliseconds.
const DEFAULT_TIMEOUT_MS: f64 = 1000.0;
/// The longest chain of `inherit`.
const MOST_INHERITED: usize = 32;

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
            self.findings.add(Warn, place, reason, "Write 50 (milliseconds).");
        }
        self.give_up_in_time(place, timeout.unwrap_or(DEFAULT_TIMEOUT_MS));
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

    /// With one deadline for both, the gateway gives up in the same moment as the router.
    fn give_up_in_time(&mut self, place: (&str, &str), server_timeout: f64) {
        let Some(timeout) = self.timeout.map(|timeout| timeout.as_secs_f64() * 1e3) else { return };
        if server_timeout >= timeout {
            let reason = format!(
                "it waits {server_timeout} ms for a server that hangs, and the gateway {timeout} ms for an answer: the gateway \
                 gives up first, and closes the connection with everyone on it."
            );
            let instead = format!("Write `\"server_timeout\": {}`.", (timeout / 2.0).round().max(1.0));
            self.findings.add(Warn, place, &reason, &instead);
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
