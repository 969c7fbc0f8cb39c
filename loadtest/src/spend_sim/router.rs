//! A router in front of memcacheds, as twemproxy and mcrouter behave: docs/how-it-works and deploy/mcrouter say what was
//! measured of them.

use super::deployment::{Kind, RouterPlan};
use super::digest::Digest;
use super::fault::Micros;
use super::job::{Ask, Job};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) plan: RouterPlan,
    pub(crate) is_up: bool,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) jobs: HashMap<u64, Job, BuildHasherDefault<Digest>>,
    pub(super) count: u64,
}

/// Its connection to one server.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Counts connections: what belongs to an earlier one is void.
    pub(super) generation: u64,
    /// Commands without an answer, by number of the write.
    pub(super) pending: BTreeMap<u64, Arc<Vec<Ask>>>,
    /// Taken for down: how long until it is tried the next time.
    pub(super) probe: Option<Micros>,
    pub(super) timeouts: u32,
    pub(super) last_ask: Micros,
    pub(super) last_answer: Micros,
}

/// One write to a server, or its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) router: usize,
    pub(crate) server: usize,
    pub(super) generation: u64,
    pub(super) number: u64,
}

impl Router {
    pub(crate) fn new(plan: &RouterPlan, servers: usize) -> Self {
        Self {
            plan: plan.clone(),
            is_up: true,
            upstreams: (0..servers).map(|_| Upstream::default()).collect(),
            jobs: HashMap::default(),
            count: 0,
        }
    }

    /// Its connection to a server, if there may be one.
    pub(crate) fn connection_to(&self, router: usize, server: usize) -> Option<Asked> {
        let upstream = &self.upstreams[server];
        self.is_up.then_some(Asked { router, server, generation: upstream.generation, number: 0 })
    }

    /// Answers come in the order of commands.
    pub(crate) fn behind_the_last_answer(&mut self, server: usize, at: Micros) -> Micros {
        let last = &mut self.upstreams[server].last_answer;
        *last = at.max(*last);
        *last
    }

    /// Its process ends: connections and what was under way are gone.
    pub(crate) fn stop(&mut self) {
        self.is_up = false;
        self.jobs.clear();
        for upstream in &mut self.upstreams {
            *upstream = Upstream { generation: upstream.generation + 1, ..Upstream::default() };
        }
    }
}

impl RouterPlan {
    /// The server that a record belongs to.
    pub(crate) fn owner(&self, name: &[u8]) -> usize {
        let hash = Digest::of(tag(name, self.kind));
        let weight = |server: &usize| mix(hash ^ (*server as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.list.iter().copied().max_by_key(weight).unwrap_or_default()
    }
}

/// The part of a name that decides.
fn tag(name: &[u8], kind: Kind) -> &[u8] {
    if !name.contains(&b'|') {
        return name;
    }
    match kind {
        Kind::Mcrouter => {
            let end = name.windows(3).position(|part| part == b"|#|").unwrap_or(name.len());
            &name[..end]
        }
        Kind::Twemproxy => {
            let mut bars = name.iter().enumerate().filter(|(_, byte)| **byte == b'|').map(|(index, _)| index);
            match (bars.next(), bars.next()) {
                (Some(first), Some(second)) if second > first + 1 => &name[first + 1..second],
                _ => name,
            }
        }
    }
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tag_encloses_decides_alone() {
        assert_eq!(tag(b"ps1.abc", Kind::Twemproxy), b"ps1.abc");
        assert_eq!(tag(b"|bucket|#|name", Kind::Twemproxy), b"bucket");
        assert_eq!(tag(b"|bucket|#|name", Kind::Mcrouter), b"|bucket");
        assert_eq!(tag(b"||name", Kind::Twemproxy), b"||name");
    }

    #[test]
    fn one_server_more_moves_its_share_of_the_records_and_no_others() {
        let plan = |servers: usize| RouterPlan {
            kind: Kind::Mcrouter,
            list: (0..servers).collect(),
            timeout: 50,
            probe_first: 100,
            probe_longest: 500,
            misses: false,
            closes: false,
        };
        let (three, four) = (plan(3), plan(4));
        let owners = (0..4_000_u32).map(|index| {
            let name = index.to_le_bytes();
            (three.owner(&name), four.owner(&name))
        });
        let moved: Vec<_> = owners.filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| *after == 3));
        assert!((800..1_200).contains(&moved.len()), "{}", moved.len());
    }
}
