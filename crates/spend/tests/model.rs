//! The embedded store against a model of it: a `HashSet` for each epoch.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use postern_spend::{Embedded, Epoch, Fsync, Hint, Spend, SpendStore, Unknown};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
enum Step {
    Spend {
        epoch: u8,
        key: u8,
    },
    Hint {
        epoch: u8,
        key: u8,
    },
    MoveExpiry {
        epoch: u8,
        by: i64,
    },
    /// Both clocks go on.
    Wait(u64),
    /// The wall clock is set.
    Jump(i64),
    DropExpired,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_u8, 0..12_u8).prop_map(|(epoch, key)| Step::Spend { epoch, key }),
        3 => (0..3_u8, 0..12_u8).prop_map(|(epoch, key)| Step::Hint { epoch, key }),
        2 => (0..3_u8, -20..30_i64).prop_map(|(epoch, by)| Step::MoveExpiry { epoch, by }),
        2 => (0..15_u64).prop_map(Step::Wait),
        1 => (-15..30_i64).prop_map(Step::Jump),
        2 => Just(Step::DropExpired),
        1 => Just(Step::Reopen),
    ]
}

/// A unit of the steps' times, in seconds: six make the hour that confirms an end.
const UNIT: u64 = 600;
const HOUR: u64 = 6;

type Keys = (u64, HashSet<u8>);

#[derive(Default)]
struct Model {
    /// In units, as all times here.
    now: u64,
    monotonic: u64,
    /// The expiry that callers pass now.
    passed: HashMap<u8, u64>,
    /// The latest expiry under which a spend came, and the keys.
    live: HashMap<u8, Keys>,
    /// Those of them that were over when the store was opened, and not spent from since.
    unread: HashSet<u8>,
    /// Since when each was seen to be over, by both clocks.
    over: HashMap<u8, (u64, u64)>,
    retired: HashSet<u8>,
}

impl Model {
    fn spend(&mut self, epoch: u8, key: u8) -> Result<Spend, Unknown> {
        let passed = self.passed[&epoch];
        if self.now >= passed || self.retired.contains(&epoch) {
            return Err(Unknown::EpochRetired);
        }
        self.unread.remove(&epoch);
        let (expires, keys) = self.live.entry(epoch).or_default();
        *expires = passed.max(*expires);
        Ok(if keys.insert(key) { Spend::Admitted } else { Spend::AlreadySpent })
    }

    fn check(&self, epoch: u8, key: u8) -> Result<Hint, Unknown> {
        match self.live.get(&epoch) {
            _ if self.retired.contains(&epoch) => Err(Unknown::EpochRetired),
            Some((_, keys)) if keys.contains(&key) && !self.unread.contains(&epoch) => Ok(Hint::Spent),
            _ => Ok(Hint::NotFound),
        }
    }

    fn over_now(&self) -> Vec<u8> {
        let over = self.live.iter().filter(|(_, (expires, _))| self.now >= *expires);
        over.map(|(id, _)| *id).collect()
    }

    fn drop_expired(&mut self) -> usize {
        let (now, monotonic) = (self.now, self.monotonic);
        let over = self.over_now();
        self.over.retain(|id, (wall, since)| {
            over.contains(id) && now.checked_sub(*wall) == Some(monotonic - *since)
        });
        let mut dropped = 0;
        for id in over {
            let (_, since) = *self.over.entry(id).or_insert((now, monotonic));
            if monotonic - since >= HOUR {
                self.live.remove(&id);
                self.retired.insert(id);
                dropped += 1;
            }
        }
        dropped
    }

    fn epoch(&self, id: u8) -> Epoch {
        Epoch { key: TokenKeyId([id; 32]), expires: UnixSeconds(self.passed[&id] * UNIT), mark: None }
    }
}

fn key(epoch: &Epoch, number: u8) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce([number; 32]))
}

async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let open = |now| Embedded::open(directory.path(), Fsync::Interval(Duration::from_secs(60)), now);
    let mut model = Model { passed: (0..3).map(|id| (id, 50)).collect(), ..Model::default() };
    let mut store = open(UnixSeconds(0)).unwrap();
    for step in steps {
        let now = UnixSeconds(model.now * UNIT);
        match step {
            Step::Spend { epoch: id, key: number } => {
                let epoch = model.epoch(id);
                let answer = store.spend(&key(&epoch, number), &epoch, now).await;
                prop_assert_eq!(answer, model.spend(id, number));
            }
            Step::Hint { epoch: id, key: number } => {
                let epoch = model.epoch(id);
                prop_assert_eq!(store.check(&key(&epoch, number), &epoch).await, model.check(id, number));
            }
            Step::MoveExpiry { epoch, by } => {
                let passed = model.passed.get_mut(&epoch).unwrap();
                *passed = passed.saturating_add_signed(by);
            }
            Step::Wait(units) => {
                model.now += units;
                model.monotonic += units;
            }
            Step::Jump(by) => model.now = model.now.saturating_add_signed(by),
            Step::DropExpired => {
                let monotonic = began + Duration::from_secs(model.monotonic * UNIT);
                prop_assert_eq!(store.drop_expired(now, monotonic).unwrap(), model.drop_expired());
            }
            Step::Reopen => {
                drop(store);
                store = open(now).unwrap();
                model.over.clear();
                model.unread = model.over_now().into_iter().collect();
            }
        }
        let stats = store.stats();
        let read = model.live.iter().filter(|(id, _)| !model.unread.contains(id));
        let records: usize = read.map(|(_, (_, keys))| keys.len()).sum();
        prop_assert_eq!(
            (stats.records, stats.epochs, stats.retired, stats.damaged, stats.holes),
            (records as u64, model.live.len() as u64, model.retired.len() as u64, 0, 0)
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_store_answers_as_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(steps))?;
    }
}
