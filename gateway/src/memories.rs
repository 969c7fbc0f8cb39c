//! The memory of the store's memcacheds: how full each is, when it will be, and whether it drops records then. A full one rejects
//! every spend; one that was started without `-M` drops records instead, so no mark is planted there. Only the server itself says so:
//! a router answers in its place.

use crate::observe::catalogue;
use metrics::gauge;
use parking_lot::Mutex;
use postern_daemon::utc::rough;
use postern_spend::Backend;
use postern_spend::memcached::{Address, Memory};
use postern_telemetry::catalogue::ADDRESS;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// How often the servers are looked at: they fill, and may have been started again in another way.
const EVERY: Duration = Duration::from_secs(60);
/// The part of its memory from which on a server is reported.
pub(crate) const NEARLY_FULL: f64 = 0.8;
/// For how long the growth of a server is known: a day has its busy hours and its quiet ones.
const KNOWN: usize = 24 * 60;
/// With less, a server is judged by its whole life: the first minutes after a gateway's start have the issuer's keys and the marks
/// in them.
const LEAST_KNOWN: Duration = Duration::from_secs(600);

/// The servers as of the last look.
#[derive(Default)]
pub(crate) struct Memories {
    known: Mutex<HashMap<String, Filling>>,
    /// Addresses at which a router answers.
    hidden: Mutex<HashSet<String>>,
}

/// One server.
struct Filling {
    memory: Memory,
    /// Bytes in use at each look.
    used: VecDeque<(Instant, u64)>,
}

impl Memories {
    /// Addresses of servers that drop records when they are full.
    pub(crate) fn evicting(&self) -> Vec<String> {
        self.select(|address, filling| filling.memory.evicts.then(|| address.to_owned()))
    }

    /// A sentence for each server that is nearly full.
    pub(crate) fn nearly_full(&self) -> Vec<String> {
        self.select(|address, filling| filling.sentence(address))
    }

    /// The part of its memory that the server at an address uses, where that is known.
    pub(crate) fn share(&self, address: &str) -> Option<f64> {
        self.known.lock().get(address).and_then(Filling::share)
    }

    /// Whether a router answers at an address: how full the servers behind it are is not known.
    pub(crate) fn is_hidden(&self, address: &str) -> bool {
        self.hidden.lock().contains(address)
    }

    fn select(&self, of: impl Fn(&str, &Filling) -> Option<String>) -> Vec<String> {
        let mut found: Vec<String> =
            self.known.lock().iter().filter_map(|(address, filling)| of(address, filling)).collect();
        found.sort();
        found
    }

    /// Looks now and every minute, at the servers of the `present` store. Goes on until it is dropped.
    pub(crate) async fn watch(&self, present: impl Fn() -> Arc<Backend>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let servers = match &*present() {
                Backend::Memcached(memcached) => memcached.servers().await,
                Backend::Embedded(_) => Vec::new(),
            };
            let (seen, hidden): (Vec<_>, Vec<_>) =
                servers.into_iter().partition(|(_, server)| server.memcached.is_some());
            *self.hidden.lock() = hidden.into_iter().map(|(address, _)| address.to_string()).collect();
            let seen = seen.into_iter().filter_map(|(at, server)| Some((at, server.memcached?)));
            self.take(seen.collect(), Instant::now());
        }
    }

    /// One that did not answer keeps what is known of it: a full server may be too busy to.
    fn take(&self, seen: Vec<(Address, Memory)>, now: Instant) {
        let mut known = self.known.lock();
        for (address, memory) in seen {
            let address = address.to_string();
            let labels = [(ADDRESS.name, address.clone())];
            gauge!(catalogue::STORE_MEMORY, &labels).set(memory.used as f64);
            gauge!(catalogue::STORE_MEMORY_LIMIT, &labels).set(memory.most as f64);
            let filling = known.entry(address).or_insert_with(|| Filling { memory, used: VecDeque::new() });
            if memory.uptime < filling.memory.uptime {
                filling.used.clear(); // it was started again, empty
            }
            filling.memory = memory;
            filling.used.push_back((now, memory.used));
            if filling.used.len() > KNOWN {
                filling.used.pop_front();
            }
        }
    }
}

impl Filling {
    fn share(&self) -> Option<f64> {
        (self.memory.most > 0).then(|| self.memory.used as f64 / self.memory.most as f64)
    }

    fn sentence(&self, address: &str) -> Option<String> {
        let share = self.share().filter(|share| *share >= NEARLY_FULL)?;
        let when = match self.left() {
            Some(left) => format!("full in {} at this rate", rough(left.as_secs())),
            None => "and it has not grown lately".to_owned(),
        };
        let Memory { used, most, .. } = self.memory;
        Some(format!(
            "the memcached at {address} uses {:.0}% of its memory ({} of {} MiB), {when}: once it is full it rejects every new \
             record. Start it with a larger -m, one replica after the other, or shorten rotate_every and redeem_for of the issuer's keys",
            share * 100.0,
            used >> 20,
            most >> 20
        ))
    }

    /// How long the rest of the memory lasts at the growth of the last day, or since the server's start while less is known; `None`
    /// where it did not grow.
    fn left(&self) -> Option<Duration> {
        let ((began, least), (ended, most)) = (*self.used.front()?, *self.used.back()?);
        let seen = (ended.saturating_duration_since(began), most.saturating_sub(least));
        let whole = (Duration::from_secs(self.memory.uptime), most);
        let (span, grown) = if seen.0 < LEAST_KNOWN { whole } else { seen };
        if grown == 0 {
            return None;
        }
        let rest = self.memory.most.saturating_sub(most) as f64;
        Duration::try_from_secs_f64(rest / grown as f64 * span.as_secs_f64()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(used: u64, uptime: u64) -> Memory {
        Memory {
            evicts: false,
            evicted: 0,
            rejected: 0,
            used,
            most: 64 << 20,
            connections: 1,
            most_connections: 1024,
            time: 1_000_000,
            pid: 7,
            uptime,
        }
    }

    #[test]
    fn a_server_that_fills_is_named_with_when_it_is_full() {
        let (memories, began) = (Memories::default(), Instant::now());
        let look = |minutes: u64, mebibytes: u64, uptime: u64| {
            let address: Address = "cache.example:11211".parse().unwrap();
            let now = began + Duration::from_secs(60 * minutes);
            memories.take(vec![(address, memory(mebibytes << 20, uptime))], now);
            memories.nearly_full()
        };
        assert_eq!(look(0, 40, 1), [""; 0], "five eighths");
        let young = look(1, 52, 52 * 86_400);
        assert!(
            young[0].contains("81% of its memory (52 of 64 MiB), full in 12 days at this rate"),
            "{young:?}"
        );
        // 12 MiB in a day, and 12 are left.
        let later = look(24 * 60, 52, 53 * 86_400);
        assert!(
            later[0].contains("full in 24 h at this rate") || later[0].contains("full in 1 d"),
            "{later:?}"
        );
        assert_eq!(memories.share("cache.example:11211"), Some(52.0 / 64.0));
        let again = look(24 * 60 + 1, 60, 900);
        assert!(again[0].contains("full in 60 s at this rate"), "it was started again: {again:?}");
        let still = look(24 * 60 + 12, 60, 900 + 660);
        assert!(still[0].contains("not grown lately"), "{still:?}");
    }
}
