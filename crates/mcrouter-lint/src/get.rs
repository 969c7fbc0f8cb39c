//! Where a `get` looks: a hint for the gateway, but its canaries must see what an `add` wrote.

use crate::Severity::Warn;
use crate::add::Storage;
use crate::handle::{Body, Handle, Judge};
use crate::pool::Place;
use crate::verdict::transparent;
use std::collections::BTreeSet;

/// What a `get` sees.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The places it may read.
    places: Vec<Place>,
    /// Whether a record in one of the places (in most, if it reads most) is always found while servers answer.
    sure: bool,
    /// Whether a record in one place hides that it is missing in the others.
    hides: bool,
}

impl Reading {
    fn none() -> Self {
        Self { places: Vec::new(), sure: false, hides: false }
    }
}

impl<'a> Judge<'a> {
    /// Judges the route of a `get` against the storage of `add`.
    pub(crate) fn get_beside(&mut self, handle: &Handle<'a>, storage: &Storage) -> Option<()> {
        let reading = self.get(handle)?;
        self.work(reading.places.len() + storage.places.len())?;
        let asked: BTreeSet<u64> = reading.places.iter().map(|place| place.identity).collect();
        let found = storage.places.iter().filter(|place| asked.contains(&place.identity)).count();
        if found == 0 {
            let reason = "a `get` never comes to where an `add` writes (servers, hash and key changes must be the same): \
                 canaries cannot be read back, and the gateway will not serve.";
            self.refuse(handle.place(), reason, "Send `get` to the pools of `add`.");
        } else if storage.places.len() > 1 && reading.hides {
            let reason = "a `get` finds a record on any replica, and so hides that others came back empty: their loss goes \
                 unnoticed, and spent tokens are admitted again.";
            self.refuse(handle.place(), reason, "Use `AllMajorityRoute` for `get` as for `add`.");
        } else if found < storage.places.len() || !reading.sure {
            let reason = "a `get` may miss a record that is there: replays then cost a verification, and the canaries raise \
                 an alarm without a cause.";
            let instead = "Use the route of `add`.";
            self.findings.add(Warn, handle.place(), reason, instead);
        }
        Some(())
    }

    /// What a `get` sees through `handle`. `None`: it was refused.
    pub(crate) fn get(&mut self, handle: &Handle<'a>) -> Option<Reading> {
        if let Body::Server(address) = &handle.body {
            return Some(Reading { places: vec![Place::server(address)], sure: true, hides: false });
        }
        if let Some(key) = transparent(handle.kind) {
            let target = self.target(handle, key)?;
            let mut reading = self.get(&target)?;
            reading.sure &= handle.kind != "RateLimitRoute"; // over the limit: a miss
            if let Some(change) = self.key_change(handle)? {
                reading.places = reading.places.into_iter().map(|place| place.through(change)).collect();
            }
            return Some(reading);
        }
        match handle.kind {
            "PoolRoute" => self.get_from_pool(handle),
            "OperationSelectorRoute" | "PrefixPolicyRoute" | "RoutingGroupRoute" => {
                let handle = self.operation(handle, "get", "get_like")?;
                self.get(&handle)
            }
            // No answer of a server ever comes through these.
            "NullRoute" | "DevNullRoute" | "AllAsyncRoute" | "ErrorRoute" => Some(Reading::none()),
            "ModifyExptimeRoute" => {
                let target = self.target(handle, "target")?; // a `get` has no expiry
                self.get(&target)
            }
            "StagingRoute" => {
                let warm = self.target(handle, "warm")?;
                self.get(&warm)
            }
            "MigrateRoute" => {
                let sides = vec![self.target(handle, "from")?, self.target(handle, "to")?];
                self.get_from_children(handle, &sides)
            }
            "WarmUpRoute" | "L1L2CacheRoute" => {
                let reason = "its `get` writes: it copies what it finds to other servers, with an expiry of its own, so that \
                     records vanish early or appear where nothing was spent.";
                self.refuse(handle.place(), reason, "Use the route of `add` for `get`.");
                None
            }
            "FailoverWithExptimeRoute" => {
                let children = self.normal_and_failover(handle)?;
                self.get_from_children(handle, &children)
            }
            "HashRoute"
            | "AllMajorityRoute"
            | "AllSyncRoute"
            | "MissFailoverRoute"
            | "FailoverRoute"
            | "AllFastestRoute"
            | "AllInitialRoute"
            | "RandomRoute"
            | "LatestRoute"
            | "LoadBalancerRoute"
            | "HostIdRoute"
            | "OriginalClientHashRoute" => {
                let children = self.children(handle)?;
                self.get_from_children(handle, &children)
            }
            _ => {
                let reason = "it is unknown what this route does with a `get`: it might write.";
                self.refuse(handle.place(), reason, "Use the route of `add` for `get`.");
                None
            }
        }
    }

    fn get_from_children(&mut self, handle: &Handle<'a>, children: &[Handle<'a>]) -> Option<Reading> {
        // A route of one child is its child. Of several, these two find what is there; the others may be content with a
        // miss from one of them.
        let finds = children.len() == 1
            || matches!(handle.kind, "MissFailoverRoute" | "AllMajorityRoute" | "HashRoute");
        let chooses = handle.kind == "HashRoute" && children.len() > 1;
        let choice = if chooses { Some(self.choice(handle)?) } else { None };
        let hides = children.len() > 1 && handle.kind == "MissFailoverRoute";
        let mut reading = Reading { places: Vec::new(), sure: finds && !children.is_empty(), hides };
        for (index, child) in children.iter().enumerate() {
            let inner = self.get(child)?;
            reading.sure &= inner.sure;
            reading.hides |= inner.hides;
            for place in inner.places {
                self.work(1)?;
                reading.places.push(match choice {
                    Some(choice) => place.through((choice, index, children.len())),
                    None => place,
                });
            }
        }
        Some(reading)
    }

    fn get_from_pool(&mut self, handle: &Handle<'a>) -> Option<Reading> {
        let pool = self.pool_of(handle)?;
        let mut reading = match pool.servers {
            [] => Reading::none(),
            _ if pool.plain => {
                Reading { places: vec![pool.place(self.choice(handle)?)?], sure: true, hides: false }
            }
            _ => {
                let servers = self.servers(&pool, handle.depth() + 1)?;
                let choice = self.choice(handle)?;
                let mut reading = Reading { places: Vec::new(), sure: true, hides: false };
                for (index, server) in servers.iter().enumerate() {
                    let inner = self.get(server)?;
                    reading.sure &= inner.sure;
                    reading.hides |= inner.hides;
                    for place in inner.places {
                        self.work(1)?;
                        reading.places.push(place.through((choice, index, servers.len())));
                    }
                }
                reading
            }
        };
        // `slow_warmup` reads elsewhere while a server has few hits, as one with fresh tokens always has.
        reading.sure &= handle.field("slow_warmup").is_none() && handle.field("rates").is_none();
        Some(reading)
    }
}
