//! A memcached with its own clock and its records.

use super::digest::Digest;
use super::fault::Micros;
use super::router::{Ask, Asked};
use super::wire::{Answer, Name, Value};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Largest expiry that is relative to now, in seconds; larger ones are absolute.
const RELATIVE: u64 = 30 * 86_400;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) memory: Memory,
    /// Seconds by which the server's clock is ahead.
    pub(crate) offset: i64,
    pub(crate) is_running: bool,
    pub(crate) is_refusing: bool,
    pub(crate) is_frozen: bool,
    /// Additional delay of the server's answers.
    pub(crate) slower: Micros,
    /// Commands of routers that arrived while the server was frozen or cut off.
    pub(crate) held: Vec<(Asked, Arc<Vec<Ask>>)>,
}

impl Server {
    pub(crate) fn new(offset: i64) -> Self {
        Self {
            memory: Memory::default(),
            offset,
            is_running: true,
            is_refusing: false,
            is_frozen: false,
            slower: 0,
            held: Vec::new(),
        }
    }

    /// `true` if connections are accepted. The kernel accepts them for a frozen process, too.
    pub(crate) fn is_reachable(&self) -> bool {
        self.is_running && !self.is_refusing
    }
}

/// Records of one memcached. The hasher is fixed, so that runs can be repeated.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    records: HashMap<Name, Record, BuildHasherDefault<Digest>>,
    /// Counter of uses: the least recently used records are evicted first.
    uses: u64,
    /// `true` if no new record is accepted, as with `-M`.
    pub(crate) is_full: bool,
}

#[derive(Debug)]
struct Record {
    value: Value,
    /// Second of the expiry; 0 for none.
    expires: u64,
    used: u64,
}

impl Memory {
    /// Stores a record unless a live one exists. `now` is the second by this server's clock.
    pub(crate) fn add(&mut self, name: &Name, exptime: u64, value: &Value, now: u64) -> Answer {
        self.uses += 1;
        if let Some(record) = self.records.get_mut(name)
            && is_alive(record, now)
        {
            record.used = self.uses;
            return Answer::NotStored;
        }
        if self.is_full {
            return Answer::Error;
        }
        let expires = if exptime == 0 || exptime > RELATIVE { exptime } else { now + exptime };
        // If the expiry has passed, memcached answers STORED and keeps nothing.
        if expires == 0 || expires > now {
            self.records
                .insert(name.clone(), Record { value: Value::clone(value), expires, used: self.uses });
        }
        Answer::Stored
    }

    pub(crate) fn get(&mut self, name: &Name, now: u64) -> Answer {
        self.uses += 1;
        match self.records.get_mut(name) {
            Some(record) if is_alive(record, now) => {
                record.used = self.uses;
                Answer::Hit(Value::clone(&record.value))
            }
            _ => Answer::Miss,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.records.clear();
    }

    /// Evicts a percentage of the records, least recently used first.
    pub(crate) fn evict(&mut self, percent: u64) {
        let mut uses: Vec<u64> = self.records.values().map(|record| record.used).collect();
        uses.sort_unstable();
        let Some(first_kept) = uses.get(uses.len() * percent as usize / 100).copied() else { return };
        self.records.retain(|_, record| record.used >= first_kept);
    }
}

fn is_alive(record: &Record, now: u64) -> bool {
    record.expires == 0 || record.expires > now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v() -> Value {
        Value::from(*b"v")
    }

    #[test]
    fn an_expiry_that_has_passed_is_stored_each_time_and_kept_never() {
        let (mut memory, name) = (Memory::default(), Name::from(*b"k"));
        let now = 2_000_000_000;
        for _ in 0..3 {
            assert_eq!(memory.add(&name, now, &v(), now), Answer::Stored);
            assert_eq!(memory.get(&name, now), Answer::Miss);
        }
        assert_eq!(memory.add(&name, now + 1, &v(), now), Answer::Stored);
        assert_eq!(memory.add(&name, now + 1, &v(), now), Answer::NotStored);
        assert_eq!(memory.get(&name, now), Answer::Hit(v()));
        assert_eq!(
            memory.add(&name, 10, &Value::from(*b"x"), now + 1),
            Answer::Stored,
            "the first has ended"
        );
        assert_eq!(memory.get(&name, now + 10), Answer::Hit(Value::from(*b"x")), "from now on");
        assert_eq!(memory.get(&name, now + 11), Answer::Miss);
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let mut memory = Memory::default();
        let names: Vec<Name> = (0..10_u8).map(|index| Name::from([index])).collect();
        names.iter().for_each(|name| assert_eq!(memory.add(name, 0, &v(), 5), Answer::Stored));
        assert_ne!(memory.get(&names[0], 5), Answer::Miss);
        memory.evict(20);
        let there = |memory: &mut Memory, index: usize| memory.get(&names[index], 5) != Answer::Miss;
        assert!(there(&mut memory, 0) && !there(&mut memory, 1) && !there(&mut memory, 2));
        assert!(there(&mut memory, 3));
    }
}
