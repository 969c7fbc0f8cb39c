//! A router in front of memcacheds. It behaves as twemproxy and mcrouter do: docs/how-it-works and deploy/mcrouter have the
//! measurements. A client's command is a job: requests to servers, and the reply after all servers have answered.

use super::deployment::{Kind, RouterPlan};
use super::digest::Digest;
use super::fault::Micros;
use super::wire::{self, Answer, Name, Value};
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

/// A router's connection to one server.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Number of the connection: messages of an earlier one are void.
    pub(super) generation: u64,
    /// Unanswered commands, by number of the write.
    pub(super) pending: BTreeMap<u64, Arc<Vec<Ask>>>,
    /// Delay until the next probe, if the server is considered down.
    pub(super) probe: Option<Micros>,
    pub(super) timeouts: u32,
    pub(super) last_ask: Micros,
    pub(super) last_answer: Micros,
}

/// One write to a server, or the answer to it.
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

    /// Returns the connection to a server, if the router is up.
    pub(crate) fn connection_to(&self, router: usize, server: usize) -> Option<Asked> {
        let upstream = &self.upstreams[server];
        self.is_up.then_some(Asked { router, server, generation: upstream.generation, number: 0 })
    }

    /// Returns the arrival time of an answer that is ready at `at`: answers keep the order of commands.
    pub(crate) fn behind_the_last_answer(&mut self, server: usize, at: Micros) -> Micros {
        let last = &mut self.upstreams[server].last_answer;
        *last = at.max(*last);
        *last
    }

    /// Ends the router's process: connections and pending commands are gone.
    pub(crate) fn stop(&mut self) {
        self.is_up = false;
        self.jobs.clear();
        for upstream in &mut self.upstreams {
            *upstream = Upstream { generation: upstream.generation + 1, ..Upstream::default() };
        }
    }
}

impl RouterPlan {
    /// Returns the server that owns a record.
    pub(crate) fn owner(&self, name: &[u8]) -> usize {
        let hash = Digest::of(tag(name, self.kind));
        let weight = |server: &usize| mix(hash ^ (*server as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.list.iter().copied().max_by_key(weight).unwrap_or_default()
    }
}

/// Returns the part of a name that selects the server.
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

/// The request for one record of a client's command.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) job: u64,
    /// Index of the record in the job.
    pub(crate) record: usize,
    pub(crate) name: Name,
    pub(crate) request: Request,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Get,
    Add { exptime: u64, value: Value },
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) link: usize,
    request: Request,
    records: Vec<(Name, Option<Answer>)>,
}

impl Job {
    pub(crate) fn get(link: usize, names: Vec<Name>) -> Self {
        Self { link, request: Request::Get, records: names.into_iter().map(|name| (name, None)).collect() }
    }

    pub(crate) fn add(link: usize, name: Name, exptime: u64, value: Value) -> Self {
        Self { link, request: Request::Add { exptime, value }, records: vec![(name, None)] }
    }

    pub(crate) fn first_asks(&self, number: u64) -> Vec<Ask> {
        let records = self.records.iter().enumerate();
        let ask = |(record, (name, _)): (usize, &(Name, _))| Ask {
            job: number,
            record,
            name: Name::clone(name),
            request: self.request.clone(),
        };
        records.map(ask).collect()
    }

    /// Records an answer. Returns `true` if it was the last one.
    pub(crate) fn answer(&mut self, ask: &Ask, answer: Answer) -> bool {
        self.records[ask.record].1.get_or_insert(answer);
        self.records.iter().all(|(_, answer)| answer.is_some())
    }

    pub(crate) fn is_error(&self) -> bool {
        self.records.iter().any(|(_, answer)| *answer == Some(Answer::Error))
    }

    /// Returns the reply to the client. With `misses`, a server's error becomes a miss.
    pub(crate) fn reply(&self, misses: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let is_get = matches!(self.request, Request::Get);
        let answers: Vec<Answer> = self
            .records
            .iter()
            .map(|(_, answer)| match answer.clone().unwrap_or(Answer::Error) {
                Answer::Error if misses && is_get => Answer::Miss,
                answer => answer,
            })
            .collect();
        if is_get {
            wire::got(self.records.iter().map(|(name, _)| name).zip(&answers), &mut out);
        } else {
            wire::added(&answers[0], &mut out);
        }
        out
    }
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

    #[test]
    fn an_error_may_be_told_as_a_miss() {
        let mut job = Job::get(0, vec![Name::from(*b"a"), Name::from(*b"b")]);
        let asks = job.first_asks(1);
        assert!(!job.answer(&asks[0], Answer::Hit(Value::from(*b"v"))));
        assert!(job.answer(&asks[1], Answer::Error) && job.is_error());
        assert_eq!(job.reply(true), b"VALUE a 0 1\r\nv\r\nEND\r\n");
        assert_eq!(job.reply(false), b"SERVER_ERROR unavailable\r\n");
    }
}
