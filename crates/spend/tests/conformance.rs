//! The embedded store through the conformance suite, and broken stores that the suite must catch.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

pub mod suite;

use postern_spend::{Embedded, Epoch, ExchangeLog, Fsync, Hint, Spend, SpendStore, Store, Unknown};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use suite::Rule;
use tokio::task::yield_now;

#[test]
fn the_embedded_store_conforms_with_interval_fsync() {
    embedded_conforms(Fsync::Interval(Duration::from_millis(20)));
}

#[test]
fn the_embedded_store_conforms_with_fsync_always() {
    embedded_conforms(Fsync::Always);
}

fn embedded_conforms(fsync: Fsync) {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path(), fsync, UnixSeconds(1)).unwrap();
    let store = Store::Embedded(Arc::new(store));
    suite::check(|| async { store.clone() }, &|epoch| epoch).unwrap();
}

/// A store that is right in memory, apart from one fault.
#[derive(Clone)]
struct Faulty {
    fault: Fault,
    spent: Arc<Mutex<HashSet<[u8; 32]>>>,
    /// For [`Fault::StrayAnswers`]: replies on their way, as on a connection.
    wire: Arc<Mutex<VecDeque<Spend>>>,
    /// For [`Fault::KeepsOneEpoch`].
    latest: Arc<Mutex<Option<TokenKeyId>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    NotReady,
    RefusesEverything,
    ForgetsEverything,
    AdmitsWhenUnsure,
    HintsWrongly,
    KeepsOneEpoch,
    ReopensWhenExtended,
    NeverExpires,
    ChecksThenWrites,
    UndoesWhenCancelled,
    StrayAnswers,
    LooksAtOneByte,
}

impl Faulty {
    fn key(&self, key: &SpentKey, epoch: &Epoch) -> [u8; 32] {
        let mut bytes = *key.as_bytes();
        match self.fault {
            Fault::LooksAtOneByte => bytes[1..].fill(0),
            Fault::ReopensWhenExtended => bytes[0] ^= epoch.expires.0.to_le_bytes()[1],
            _ => {}
        }
        bytes
    }

    fn add(&self, key: [u8; 32]) -> Spend {
        if self.spent.lock().unwrap().insert(key) { Spend::Admitted } else { Spend::AlreadySpent }
    }
}

/// Takes a key out again unless the spend came to its end.
struct Undo<'a>(&'a Faulty, Option<[u8; 32]>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.1 {
            self.0.spent.lock().unwrap().remove(&key);
        }
    }
}

impl SpendStore for Faulty {
    async fn check_with(&self, key: &SpentKey, epoch: &Epoch, _: &mut ExchangeLog) -> Result<Hint, Unknown> {
        let found = self.spent.lock().unwrap().contains(&self.key(key, epoch));
        Ok(if found != (self.fault == Fault::HintsWrongly) { Hint::Spent } else { Hint::NotFound })
    }

    async fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        _: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        if now >= epoch.expires && self.fault != Fault::NeverExpires {
            return Err(Unknown::EpochRetired);
        }
        let key = self.key(key, epoch);
        match self.fault {
            Fault::RefusesEverything => Ok(Spend::AlreadySpent),
            Fault::ForgetsEverything => Ok(Spend::Admitted),
            // Some keys (one in 16) meet a reply that is not understood, and it is taken for an admission.
            Fault::AdmitsWhenUnsure if key[0] < 16 => Ok(Spend::Admitted),
            Fault::KeepsOneEpoch => {
                if self.latest.lock().unwrap().replace(epoch.key) != Some(epoch.key) {
                    self.spent.lock().unwrap().clear();
                }
                Ok(self.add(key))
            }
            Fault::ChecksThenWrites => {
                let found = self.spent.lock().unwrap().contains(&key);
                yield_now().await;
                self.spent.lock().unwrap().insert(key);
                Ok(if found { Spend::AlreadySpent } else { Spend::Admitted })
            }
            Fault::UndoesWhenCancelled => {
                let answer = self.add(key);
                let mut undo = Undo(self, Some(key)); // also the record of another presentation
                yield_now().await;
                undo.1 = None;
                Ok(answer)
            }
            Fault::StrayAnswers => {
                self.wire.lock().unwrap().push_back(self.add(key));
                yield_now().await;
                Ok(self.wire.lock().unwrap().pop_front().unwrap())
            }
            _ => {
                yield_now().await;
                Ok(self.add(key))
            }
        }
    }

    fn serving(&self) -> Result<(), Unknown> {
        if self.fault == Fault::NotReady { Err(Unknown::TimedOut) } else { Ok(()) }
    }
}

fn faulty(fault: Fault) -> Faulty {
    Faulty { fault, spent: Arc::default(), wire: Arc::default(), latest: Arc::default() }
}

fn verdict(fault: Fault) -> Result<(), Rule> {
    let store = faulty(fault);
    suite::check(|| async { store.clone() }, &|epoch| epoch).map_err(|violation| {
        println!("{violation}");
        violation.rule
    })
}

#[test]
fn a_store_without_a_fault_passes() {
    assert_eq!(verdict(Fault::None), Ok(()));
}

#[test]
fn every_fault_is_caught_by_its_rule() {
    for (fault, rule) in [
        (Fault::NotReady, Rule::Ready),
        (Fault::RefusesEverything, Rule::FirstIsAdmitted),
        (Fault::ForgetsEverything, Rule::HintFollowsSpend),
        (Fault::AdmitsWhenUnsure, Rule::HintFollowsSpend),
        (Fault::HintsWrongly, Rule::HintFollowsSpend),
        (Fault::KeepsOneEpoch, Rule::EpochsDoNotMix),
        (Fault::ReopensWhenExtended, Rule::ExtendingReopensNothing),
        (Fault::NeverExpires, Rule::ExpiredIsRefused),
        (Fault::ChecksThenWrites, Rule::OneWinner),
        (Fault::UndoesWhenCancelled, Rule::CancelledNeverTwice),
        (Fault::StrayAnswers, Rule::AnswersDoNotStray),
        (Fault::LooksAtOneByte, Rule::HintFollowsSpend),
    ] {
        assert_eq!(verdict(fault), Err(rule));
    }
}

/// The suite is meaningful for several runtimes only if it detects handles on two different stores there.
#[test]
fn two_memories_behind_one_name_are_caught() {
    let found = suite::check(|| async { faulty(Fault::None) }, &|epoch| epoch).unwrap_err();
    assert_eq!(found.rule, Rule::OneWinner);
}
