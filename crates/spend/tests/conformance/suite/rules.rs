//! The rules, and the checks of those that hold for a single caller.

use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::fmt;
use std::time::Duration;

/// Enough keys to expose a store that compares only a part of each key.
const KEYS: usize = 1000;

/// A broken rule, and the observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The observation that breaks the rule.
    pub saw: String,
}

/// The rules, in the order in which they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A working store reports readiness.
    Ready,
    /// The first spend of a key is admitted.
    FirstIsAdmitted,
    /// Every later spend of the key is refused as spent.
    LaterAreRefused,
    /// The check returns `Spent` after an admission (on a working store), and never before.
    HintFollowsSpend,
    /// One nonce under two token keys makes two tokens, and both stay spent.
    EpochsDoNotMix,
    /// Moving an expiry later makes no spent token spendable.
    ExtendingReopensNothing,
    /// An epoch refuses from its expiry on.
    ExpiredIsRefused,
    /// Exactly one of many concurrent presentations is admitted, on any mix of runtimes.
    OneWinner,
    /// With presentations cancelled at any point, at most one of all is admitted.
    CancelledNeverTwice,
    /// No caller receives an answer meant for a cancelled one.
    AnswersDoNotStray,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store breaks the spend contract, rule {:?}: {}", self.rule, self.saw)
    }
}

impl std::error::Error for Violation {}

impl Rule {
    pub(super) fn broken(self, saw: impl Into<String>) -> Violation {
        Violation { rule: self, saw: saw.into() }
    }

    /// Returns the violation of this rule unless `found` equals `wanted`.
    pub(super) fn wants<T: PartialEq + fmt::Debug>(
        self,
        what: &str,
        found: &T,
        wanted: &T,
    ) -> Result<(), Violation> {
        if found == wanted {
            Ok(())
        } else {
            Err(self.broken(format!("{what}: {found:?} instead of {wanted:?}")))
        }
    }
}

/// A function that gives an epoch the mark that a store requires. May block.
pub type Begin<'a> = &'a (dyn Fn(Epoch) -> Epoch + Sync);

pub(super) async fn check<S: SpendStore>(store: &S, begin: Begin<'_>) -> Result<(), Violation> {
    Rule::Ready.wants("ready", &store.serving(), &Ok(()))?;
    first_is_admitted_later_are_not(store, begin(epoch())).await?;
    epochs_do_not_mix(store, [begin(epoch()), begin(epoch())]).await?;
    extending_reopens_nothing(store, begin(epoch())).await?;
    expired_is_refused(store, begin(epoch())).await
}

async fn first_is_admitted_later_are_not<S: SpendStore>(store: &S, epoch: Epoch) -> Result<(), Violation> {
    let now = UnixSeconds::now();
    let keys: Vec<_> = (0..KEYS).map(|_| fresh(&epoch)).collect();
    for key in &keys {
        Rule::HintFollowsSpend.wants(
            "before the spend",
            &store.check(key, &epoch).await,
            &Ok(Hint::NotFound),
        )?;
        Rule::FirstIsAdmitted.wants(
            "a fresh key",
            &store.spend(key, &epoch, now).await,
            &Ok(Spend::Admitted),
        )?;
        Rule::HintFollowsSpend.wants("after the spend", &store.check(key, &epoch).await, &Ok(Hint::Spent))?;
    }
    for key in &keys {
        for presentation in ["second", "third"] {
            let again = store.spend(key, &epoch, now).await;
            Rule::LaterAreRefused.wants(presentation, &again, &Ok(Spend::AlreadySpent))?;
        }
        Rule::HintFollowsSpend.wants("after refusals", &store.check(key, &epoch).await, &Ok(Hint::Spent))?;
    }
    Ok(())
}

async fn epochs_do_not_mix<S: SpendStore>(store: &S, epochs: [Epoch; 2]) -> Result<(), Violation> {
    let now = UnixSeconds::now();
    let nonce = Nonce(rand::random());
    for epoch in epochs {
        let key = SpentKey::derive(TokenType::BlindRsa2048, epoch.key, nonce);
        Rule::EpochsDoNotMix.wants("hint", &store.check(&key, &epoch).await, &Ok(Hint::NotFound))?;
        Rule::EpochsDoNotMix.wants("spend", &store.spend(&key, &epoch, now).await, &Ok(Spend::Admitted))?;
    }
    for epoch in epochs {
        let key = SpentKey::derive(TokenType::BlindRsa2048, epoch.key, nonce);
        Rule::EpochsDoNotMix.wants(
            "replay",
            &store.spend(&key, &epoch, now).await,
            &Ok(Spend::AlreadySpent),
        )?;
    }
    Ok(())
}

async fn extending_reopens_nothing<S: SpendStore>(store: &S, early: Epoch) -> Result<(), Violation> {
    let now = UnixSeconds::now();
    let late = Epoch { expires: early.expires.saturating_add(Duration::from_secs(3600)), ..early };
    let (before, after) = (fresh(&early), fresh(&early));
    let rule = Rule::ExtendingReopensNothing;
    rule.wants("before", &store.spend(&before, &early, now).await, &Ok(Spend::Admitted))?;
    rule.wants("old key", &store.spend(&before, &late, now).await, &Ok(Spend::AlreadySpent))?;
    rule.wants("new key", &store.spend(&after, &late, now).await, &Ok(Spend::Admitted))?;
    // A caller that does not know the new expiry yet.
    rule.wants("old caller", &store.spend(&after, &early, now).await, &Ok(Spend::AlreadySpent))
}

async fn expired_is_refused<S: SpendStore>(store: &S, epoch: Epoch) -> Result<(), Violation> {
    let now = UnixSeconds::now();
    let (spent, fresh) = (super::fresh(&epoch), super::fresh(&epoch));
    let rule = Rule::ExpiredIsRefused;
    let last = UnixSeconds(epoch.expires.0 - 1);
    rule.wants("in time", &store.spend(&spent, &epoch, now).await, &Ok(Spend::Admitted))?;
    rule.wants("in the last second", &store.spend(&spent, &epoch, last).await, &Ok(Spend::AlreadySpent))?;
    for late in [epoch.expires, epoch.expires.saturating_add(Duration::from_secs(1))] {
        for key in [&spent, &fresh] {
            let answer = store.spend(key, &epoch, late).await;
            rule.wants("at the expiry or after", &answer, &Err(Unknown::EpochRetired))?;
        }
    }
    // An epoch that expired before the store first saw it.
    let over = Epoch { expires: now, ..super::epoch() };
    let answer = store.spend(&super::fresh(&over), &over, now).await;
    rule.wants("an epoch already over", &answer, &Err(Unknown::EpochRetired))
}

pub(super) type Answer = Result<Spend, Unknown>;

pub(super) fn admissions(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| **answer == Ok(Spend::Admitted)).count()
}

/// Returns a new epoch that ends in one hour.
pub(super) fn epoch() -> Epoch {
    Epoch {
        key: TokenKeyId(rand::random()),
        expires: UnixSeconds::now().saturating_add(Duration::from_secs(3600)),
        mark: None,
    }
}

/// Returns a key that has not been spent.
pub(super) fn fresh(epoch: &Epoch) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(rand::random()))
}
