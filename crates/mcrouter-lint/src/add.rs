//! Where an `add` of a spent record is stored, and whether a token can be admitted twice there.

use crate::Severity::{Note, Refuse, Warn};
use crate::finding::shown;
use crate::handle::{Body, Handle, Judge};
use crate::json::Json;
use crate::pool::Place;
use crate::verdict::{always, transparent, with_several};

/// The longest value that is sure to stay in one piece under `BigValueRoute`; a record's has 22 bytes.
const SMALL_VALUE: f64 = 64.0;

/// Where an `add` is stored.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Every place that is written to.
    pub(crate) places: Vec<Place>,
    /// In words.
    pub(crate) shape: String,
}

impl Storage {
    fn of(place: Place) -> Self {
        let shape = match place.servers.len() {
            1 => "one server".to_owned(),
            count => format!("one pool of {count} servers, each of which owns its keys"),
        };
        Self { places: vec![place], shape }
    }
}

impl<'a> Judge<'a> {
    /// The storage behind `handle`. `None`: it was refused.
    pub(crate) fn add(&mut self, handle: &Handle<'a>) -> Option<Storage> {
        for shadow in &handle.shadows {
            self.copied_to(shadow)?;
        }
        self.add_unshadowed(handle)
    }

    fn add_unshadowed(&mut self, handle: &Handle<'a>) -> Option<Storage> {
        if let Body::Server(address) = &handle.body {
            return Some(Storage::of(Place::server(address)));
        }
        if let Some(verdict) = always(handle.kind) {
            self.refuse(handle.place(), verdict.reason, verdict.instead);
            return None;
        }
        if let Some(key) = transparent(handle.kind) {
            return self.add_through(handle, key);
        }
        match handle.kind {
            "PoolRoute" => self.add_to_pool(handle),
            "OperationSelectorRoute" | "PrefixPolicyRoute" | "RoutingGroupRoute" => {
                let handle = self.operation(handle, "add", "update_like")?;
                self.add(&handle)
            }
            "StagingRoute" => {
                // The warm side's answer counts; the staging side gets a copy afterwards.
                let warm = self.target(handle, "warm")?;
                let staging = self.target(handle, "staging")?;
                self.copied_to(&staging)?;
                self.add(&warm)
            }
            _ => self.add_to_children(handle),
        }
    }

    fn add_to_children(&mut self, handle: &Handle<'a>) -> Option<Storage> {
        let children = match handle.kind {
            "FailoverWithExptimeRoute" => self.normal_and_failover(handle)?,
            "SaltedFailoverRoute" => {
                let verdict = with_several(handle.kind)?;
                self.refuse(handle.place(), verdict.reason, verdict.instead);
                return None;
            }
            "AllMajorityRoute" | "AllSyncRoute" | "HashRoute" | "MissFailoverRoute" => {
                self.children(handle)?
            }
            kind if with_several(kind).is_some() => self.children(handle)?,
            _ => {
                let reason = "it is not known to be safe.";
                let instead = "Use `PoolRoute`, `HashRoute` or `AllMajorityRoute` for `add`.";
                self.refuse(handle.place(), reason, instead);
                return None;
            }
        };
        match (children.as_slice(), handle.kind) {
            ([], _) => {
                let reason =
                    "it has no children, so mcrouter answers NOT_STORED to every `add`, or an error.";
                self.refuse(handle.place(), reason, "Name its children.");
                None
            }
            ([only], _) => self.add(only), // which mcrouter puts in its place
            (several, "AllMajorityRoute") => self.majority(handle, several),
            (several, "AllSyncRoute") => self.all_sync(handle, several),
            (several, "HashRoute") => self.hashed(handle, several),
            ([first, ..], "MissFailoverRoute") => {
                // Only get and delete go on to the next child; everything else is the first one's.
                let reason = "an `add` goes to the first child alone: the others never hold a record.";
                let instead = "Name the first child directly, or use `AllMajorityRoute` over three.";
                self.findings.add(Warn, handle.place(), reason, instead);
                self.add(first)
            }
            (_, kind) => {
                let verdict = with_several(kind)?;
                self.refuse(handle.place(), verdict.reason, verdict.instead);
                None
            }
        }
    }

    fn add_to_pool(&mut self, handle: &Handle<'a>) -> Option<Storage> {
        let pool = self.pool_of(handle)?;
        self.hash_is_fixed(handle)?;
        if let Some(key) = handle.keys().find(|key| key.contains("failover") || *key == "shard_splits") {
            let reason = format!("with `{}` an `add` may change servers.", shown(key));
            self.findings.add(Refuse, handle.place(), &reason, "Leave it out.");
            return None;
        }
        if handle.field("rates").is_some() {
            self.rates(handle);
        }
        for shadow in self.shadows_of(handle)? {
            self.copied_to(&shadow)?;
        }
        match pool.servers {
            [] => {
                self.refuse(
                    handle.place(),
                    "its pool has no servers: every `add` is answered with an error.",
                    "",
                );
                None
            }
            _ if pool.plain => Some(Storage::of(pool.place(self.choice(handle)?)?)),
            _ => {
                let servers = self.servers(&pool, handle.depth() + 1)?;
                self.hashed(handle, &servers)
            }
        }
    }

    /// Refuses the two hash functions that are none: they choose by host and by load.
    fn hash_is_fixed(&mut self, handle: &Handle<'a>) -> Option<()> {
        let kind = match hash_function(handle) {
            Some("Latest") => "LatestRoute",
            Some("LoadBalancer") => "LoadBalancerRoute",
            Some("WeightedCh3RV") => {
                let reason = "its weights can be changed while it runs, and keys then change servers: tokens spent before \
                     are good again.";
                self.findings.add(
                    Warn,
                    handle.place(),
                    reason,
                    "Use `WeightedCh3` with weights in this file.",
                );
                return Some(());
            }
            _ => return Some(()),
        };
        let verdict = with_several(kind)?;
        self.refuse(handle.place(), verdict.reason, verdict.instead);
        None
    }

    fn hashed(&mut self, handle: &Handle<'a>, children: &[Handle<'a>]) -> Option<Storage> {
        self.hash_is_fixed(handle)?;
        let (count, choice) = (children.len(), self.choice(handle)?);
        let mut places = Vec::new();
        for (index, child) in children.iter().enumerate() {
            for place in self.add(child)?.places {
                self.work(1)?;
                places.push(place.through((choice, index, count)));
            }
        }
        Some(Storage { places, shape: format!("{count} routes, each of which owns its keys") })
    }

    /// A quorum, if it is one.
    ///
    /// `AllMajorityRoute` does not wait for a majority: it answers with the *most common* result, the worse one on a
    /// tie, where any error is worse than NOT_STORED and that is worse than STORED (`AllMajorityRoute.h`,
    /// `McResUtil.h`). Over three, STORED therefore needs two of three. Over four and more, two STORED win against
    /// errors that differ among themselves (a timeout, a refused connection), so that two parts of a torn network can
    /// both admit.
    ///
    /// It counts STORED and the witness of a mark apart, each over all replicas: one that missed writes and another that
    /// came back empty together admit a spent token.
    fn majority(&mut self, handle: &Handle<'a>, children: &[Handle<'a>]) -> Option<Storage> {
        if children.len() > 3 {
            let reason = format!(
                "it has {} children, and the most common answer counts, not a majority: where the others fail in \
                 different ways, two STORED win, and two others can answer STORED again.",
                children.len()
            );
            self.refuse(handle.place(), &reason, "Use exactly three; each can be a pool of many servers.");
            return None;
        }
        if children.len() == 2 {
            let reason = "with two children both must answer alike: nothing is admitted while one is down, and two \
                 presentations at once may both be refused.";
            self.findings.add(Warn, handle.place(), reason, "Use three.");
        }
        let places = self.replicas(handle, children)?;
        if children.len() == 3 {
            let reason =
                "it survives one loss in the life of a token key, and only if no replica ever missed writes.";
            let instead = "`store.memcached.replicas`, with a router for each of the three, survives any number, one after \
                 another.";
            self.findings.add(Note, handle.place(), reason, instead);
        }
        let shape = format!("a quorum: {} replicas, of which two must agree", children.len());
        Some(Storage { places, shape })
    }

    /// The worst reply counts, so STORED needs all: never twice, hence no refusal. But of two racers each may come
    /// first at one replica and be refused by the other, and one replica that is down stops everything.
    fn all_sync(&mut self, handle: &Handle<'a>, children: &[Handle<'a>]) -> Option<Storage> {
        let reason = "all children must answer STORED: nothing is admitted while one is down, and two presentations at once \
             may both be refused.";
        let instead = "Use `AllMajorityRoute` over three.";
        self.findings.add(Warn, handle.place(), reason, instead);
        let places = self.replicas(handle, children)?;
        Some(Storage { places, shape: format!("{} replicas, all of which must agree", children.len()) })
    }

    /// The places of all children, which must not have a server in common.
    fn replicas(&mut self, handle: &Handle<'a>, children: &[Handle<'a>]) -> Option<Vec<Place>> {
        let mut places: Vec<Place> = Vec::new();
        for child in children {
            let more = self.add(child)?.places;
            for place in &more {
                self.work(places.len() + place.servers.len() * places.len())?;
                let shared =
                    places.iter().find_map(|other| other.servers.intersection(&place.servers).next());
                if let Some(shared) = shared {
                    let reason = format!(
                        "two of its children keep records on the same server, {}: its loss is the loss of both, and it \
                         answers NOT_STORED to its own STORED.",
                        shown(shared)
                    );
                    self.refuse(handle.place(), &reason, "Give each replica servers of its own.");
                    return None;
                }
            }
            places.extend(more);
        }
        Some(places)
    }

    fn add_through(&mut self, handle: &Handle<'a>, key: &str) -> Option<Storage> {
        match handle.kind {
            "RateLimitRoute" => {
                self.rates(handle);
                if handle.field("fallback").is_some() {
                    let reason = "over the limit an `add` goes to the fallback, another store.";
                    self.refuse(handle.place(), reason, "Leave `fallback` out, or the whole limit.");
                    return None;
                }
            }
            "BigValueRoute" => {
                let threshold = handle.field("split_threshold").and_then(Json::number);
                if threshold.is_none_or(|threshold| threshold < SMALL_VALUE) {
                    let reason = "with so small a `split_threshold` a record is cut into pieces.";
                    self.refuse(handle.place(), reason, "Write 64 or more.");
                    return None;
                }
            }
            "ModifyKeyRoute" if handle.field("modify_inplace").is_some() => {
                let reason = "`modify_inplace` writes over the first bytes of the key, so that two tokens can have one.";
                self.refuse(handle.place(), reason, "Use `ensure_key_prefix` alone.");
                return None;
            }
            "ModifyKeyRoute" => {
                let reason =
                    "it changes keys: an mcrouter that changes them otherwise leads to another store.";
                self.findings.add(Warn, handle.place(), reason, "Use the same file for every mcrouter.");
            }
            _ => {}
        }
        let target = self.target(handle, key)?;
        let mut storage = self.add(&target)?;
        if let Some(change) = self.key_change(handle)? {
            storage.places = storage.places.into_iter().map(|place| place.through(change)).collect();
        }
        Some(storage)
    }

    fn rates(&mut self, handle: &Handle<'a>) {
        let reason = "over the rate an `add` is answered NOT_STORED: honest tokens are called spent.";
        self.findings.add(
            Warn,
            handle.place(),
            reason,
            "Limit requests at the gateway, before a token is lost.",
        );
    }
}

fn hash_function<'a>(handle: &Handle<'a>) -> Option<&'a str> {
    let function = handle.field("hash_func").and_then(Json::text);
    function.or_else(|| match handle.field("hash")? {
        Json::Text(function) => Some(function),
        Json::Object(hash) => hash.get("hash_func")?.text(),
        _ => None,
    })
}
