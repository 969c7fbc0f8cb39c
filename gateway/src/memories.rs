//! Memory use of the store's memcached servers: current use, estimated time until full, and eviction.
//!
//! A full server rejects every spend. A server that was started without `-M` evicts records instead, so no mark is planted
//! there. Only the server itself reports its memory: a router answers in its place.

use crate::keys::keyring::CLOCK_TOLERANCE;
use crate::observe::catalogue;
use metrics::gauge;
use parking_lot::Mutex;
use postern_daemon::utc::rough;
use postern_spend::Backend;
use postern_spend::memcached::{Address, Memory};
use postern_telemetry::catalogue::ADDRESS;
use postern_token::UnixSeconds;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// Interval between inspections: servers fill up, and may have been restarted with other options.
const EVERY: Duration = Duration::from_secs(60);
/// Fraction of its memory in use from which a server is reported.
pub(crate) const NEARLY_FULL: f64 = 0.8;
/// Samples kept per server, one per minute: a day, which includes busy and quiet hours.
const KNOWN: usize = 24 * 60;
/// Minimum observed time to extrapolate from. With less, the growth since the server's start is used: the first minutes after a
/// gateway's start are distorted by records of the issuer's keys and marks.
const LEAST_KNOWN: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct Memories {
    /// By address; `None` where a router answers.
    known: Mutex<HashMap<String, Option<Filling>>>,
}

struct Filling {
    memory: Memory,
    /// The time of this machine at the last inspection.
    inspected: UnixSeconds,
    /// Bytes in use at each inspection.
    used: VecDeque<(Instant, u64)>,
}

impl Memories {
    pub(crate) fn evicting(&self) -> Vec<String> {
        self.select(|address, filling| filling.memory.evicts.then(|| address.to_owned()))
    }

    /// Returns one sentence per server that is nearly full and will reject records. One that evicts them is in
    /// [`Memories::evicting`].
    pub(crate) fn nearly_full(&self) -> Vec<String> {
        self.select(|address, filling| if filling.memory.evicts { None } else { filling.sentence(address) })
    }

    /// Returns one sentence per server whose clock was too far from this machine's at its inspection.
    pub(crate) fn skewed(&self) -> Vec<String> {
        self.select(|address, filling| skew(address, filling.memory.time, filling.inspected))
    }

    pub(crate) fn share(&self, address: &str) -> Option<f64> {
        self.known.lock().get(address)?.as_ref()?.share()
    }

    /// Returns `true` if a router answers at `address`, so the memory use of the servers behind it is unknown.
    pub(crate) fn is_hidden(&self, address: &str) -> bool {
        matches!(self.known.lock().get(address), Some(None))
    }

    fn select(&self, of: impl Fn(&str, &Filling) -> Option<String>) -> Vec<String> {
        let of = |(address, filling): (&String, &Option<Filling>)| of(address, filling.as_ref()?);
        let mut found: Vec<String> = self.known.lock().iter().filter_map(of).collect();
        found.sort();
        found
    }

    /// Inspects the servers of the store that `present` returns, immediately and then every minute. Runs until dropped.
    pub(crate) async fn watch(&self, present: impl Fn() -> Arc<Backend>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let servers = match &*present() {
                Backend::Memcached(memcached) => memcached.servers().await,
                Backend::Embedded(_) => Vec::new(),
            };
            let seen = servers.into_iter().map(|(address, server)| (address, server.memcached));
            self.take(seen.collect(), Instant::now());
        }
    }

    /// Records the inspected servers, and routers, which have no memory. A server that did not answer keeps its previous state: a
    /// full server may be too busy to answer.
    fn take(&self, seen: Vec<(Address, Option<Memory>)>, now: Instant) {
        let (mut known, inspected) = (self.known.lock(), UnixSeconds::now());
        known.retain(|_, filling| filling.is_some());
        for (address, memory) in seen {
            let address = address.to_string();
            let Some(memory) = memory else {
                known.insert(address, None); // a router may have taken a server's address
                continue;
            };
            let labels = [(ADDRESS.name, address.clone())];
            gauge!(catalogue::STORE_MEMORY, &labels).set(memory.used as f64);
            gauge!(catalogue::STORE_MEMORY_LIMIT, &labels).set(memory.most as f64);
            let filling = known.entry(address).or_default();
            let filling = filling.get_or_insert_with(|| Filling { memory, inspected, used: VecDeque::new() });
            // Neither suffices: in containers each process has the number 1, and a server that was away long may have run for longer.
            if memory.uptime < filling.memory.uptime || memory.pid != filling.memory.pid {
                filling.used.clear(); // the server was restarted, and is empty
            }
            (filling.memory, filling.inspected) = (memory, inspected);
            filling.used.push_back((now, memory.used));
            if filling.used.len() > KNOWN {
                filling.used.pop_front();
            }
        }
    }
}

/// Returns how far the clock of a server is from this machine's; `None` within the tolerance of the store.
pub(crate) fn skew(address: &str, clock: u64, now: UnixSeconds) -> Option<String> {
    let apart = clock.abs_diff(now.0);
    let way = if clock > now.0 { "ahead of" } else { "behind" };
    (apart > CLOCK_TOLERANCE.as_secs())
        .then(|| format!("the clock of {address} is {} {way} this machine's", rough(apart)))
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

    /// Returns the time until the memory is full at the growth of the last day, or at that since the server's start while less
    /// than [`LEAST_KNOWN`] was observed. `None` if it did not grow.
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
            memories.take(vec![(address, Some(memory(mebibytes << 20, uptime)))], now);
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
        assert!(later[0].contains("full in 24 h at this rate"), "{later:?}");
        assert_eq!(memories.share("cache.example:11211"), Some(52.0 / 64.0));
        let again = look(24 * 60 + 1, 60, 900);
        assert!(again[0].contains("full in 60 s at this rate"), "it was started again: {again:?}");
        let still = look(24 * 60 + 12, 60, 900 + 660);
        assert!(still[0].contains("not grown lately"), "{still:?}");
        let evicts = Memory { evicts: true, ..memory(60 << 20, 900) };
        memories.take(vec![("other.example:11211".parse().unwrap(), Some(evicts))], began);
        assert_eq!(
            (memories.nearly_full().len(), memories.evicting()),
            (1, vec!["other.example:11211".to_owned()])
        );
        memories.take(vec![("cache.example:11211".parse().unwrap(), None)], began);
        assert!(memories.nearly_full().is_empty() && memories.is_hidden("cache.example:11211"));
    }
}
