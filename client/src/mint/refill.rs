//! The task that keeps the wallet filled: it mints ahead between low and high water, mints for waiting requests, follows the
//! issuer's keys, and backs off from a failing issuer. [`Stock`] computes the number of tokens to mint.

use super::consistency::Consistency;
use super::failure::{AttemptError, MintingStatus, pause};
use super::issuer::{IssuerClient, Published};
use super::source::TokenSource;
use crate::hop::gateways::Gateways;
use crate::hop::marks::Trial;
use crate::hop::marks::saved::SavedMarks;
use crate::hop::tunnel::Opener;
use crate::settings::TokenSettings;
use crate::wallet::challenge::{CurrentChallenge, SavedChallenges};
use crate::wallet::format::Unspent;
use crate::wallet::supply::{Demand, Failure, Supply};
use postern_daemon::drain::Shutdown;
use postern_token::TokenKeyId;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Interval between removals of useless tokens.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// Interval between requests for the challenge of a gateway that does not name the issuer's newest key yet: it polls the
/// issuer, and its challenge with the older key may be valid for minutes. Also the pause after an attempt that changed nothing.
const BEHIND_EVERY: Duration = Duration::from_secs(5);
/// The pause after an attempt that changed nothing, while a request waits.
const WAITED_FOR: Duration = Duration::from_millis(250);

pub(crate) struct Refill {
    supply: Arc<Supply>,
    gateways: Arc<Gateways>,
    source: TokenSource,
    consistency: Consistency,
    saved_challenges: SavedChallenges,
    saved_marks: SavedMarks,
    settings: watch::Receiver<TokenSettings>,
    /// Start of a postponed batch.
    put_off: Option<Instant>,
    /// The end of an attempt that succeeded and changed nothing, and [`Supply::changes`] with it.
    idle: Option<(Instant, u64)>,
    status: MintingStatus,
    /// The issuer's preferred key for which the challenge was fetched again, but named another key; and when.
    asked_about: Option<(TokenKeyId, Instant)>,
    failures_in_a_row: u32,
    next_tidy: Instant,
    /// During a drain, tokens are minted for waiting requests only.
    shutdown: Shutdown,
}

impl Refill {
    pub(crate) fn new(
        opener: &Opener,
        (source, consistency): (TokenSource, Consistency),
        (saved_challenges, saved_marks): (SavedChallenges, SavedMarks),
        settings: watch::Receiver<TokenSettings>,
        status: MintingStatus,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            supply: opener.supply.clone(),
            gateways: opener.gateways.clone(),
            source,
            consistency,
            saved_challenges,
            saved_marks,
            settings,
            put_off: None,
            idle: None,
            status,
            asked_about: None,
            failures_in_a_row: 0,
            next_tidy: Instant::now(),
            shutdown,
        }
    }

    /// Runs until the state of the process is *stopped*.
    pub(crate) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        let work = async {
            loop {
                self.until_needed().await;
                self.supply.begin_attempt();
                // A drain waits for tokens that are being signed: the issuer has counted them.
                let minting = shutdown.tracker().token();
                let changes = self.supply.changes();
                let result = self.attempt().await;
                let failure = result.err().map(|error| self.failure(&error));
                let has_failed = failure.is_some();
                self.failures_in_a_row =
                    if has_failed { self.failures_in_a_row.saturating_add(1) } else { 0 };
                self.status.attempted(failure.as_ref());
                self.supply.end_attempt(failure);
                // The one change is the attempt's end; another, however late, ends the pause.
                self.idle = (!has_failed).then(|| (Instant::now(), changes + 1));
                drop(minting);
            }
        };
        shutdown.until_stopped(work).await;
    }

    /// Completes when there are tokens to mint or doubts to settle, and the pause after a failure, or after an attempt that changed
    /// nothing, is over.
    async fn until_needed(&mut self) {
        loop {
            let now = Instant::now();
            if self.next_tidy <= now {
                self.supply.tidy(self.settings.borrow().high);
                self.next_tidy = now + TIDY_EVERY;
            }
            if let Some(spoil) = self.supply.spoils_in() {
                // Expired tokens are replaced at once. The end of a key is the issuer's word, and may exceed every clock.
                self.next_tidy = self.next_tidy.min(now + spoil.min(TIDY_EVERY));
            }
            let demand = self.supply.demand();
            let trial = demand.current.as_ref().and_then(|current| self.gateways.trial(current));
            if let Some(trial) = trial {
                self.next_tidy = self.next_tidy.min(now + trial.left); // tokens are minted ahead from then on
            }
            self.status.publish(
                &demand,
                self.supply.clock.skew(),
                self.settings.borrow().low == 0,
                trial.is_some(),
            );
            let is_needed = demand.has_doubts || self.count(&demand) > 0;
            let put_off = self.put_off(&demand, is_needed, now);
            let until = match &demand.failure {
                None if is_needed => match put_off.max(self.pause_of(&demand)) {
                    Some(moment) if moment > now => moment,
                    _ => return,
                },
                Some(failure) if is_needed && failure.is_retried_on_demand() && demand.asked_again => return,
                Some(failure) if is_needed => failure.next_attempt,
                _ => self.next_tidy,
            };
            if is_needed && until <= now {
                return;
            }
            tokio::select! {
                () = sleep_until(until.min(self.next_tidy)) => {}
                () = self.supply.wanted() => {}
                Ok(()) = self.settings.changed() => self.apply(),
            }
        }
    }

    /// Returns the time until which minting is postponed, if no request waits.
    fn put_off(&mut self, demand: &Demand, is_needed: bool, now: Instant) -> Option<Instant> {
        let can_wait =
            is_needed && !demand.has_doubts && Stock::of(demand, &self.settings.borrow()).can_wait();
        let moment = || now + self.settings.borrow().delay.mul_f64(rand::random());
        self.put_off = can_wait.then(|| self.put_off.unwrap_or_else(moment));
        self.put_off
    }

    /// Returns the end of the pause after an attempt that changed nothing. `None` if anything has changed since, or a request has
    /// begun to wait. A gateway that is behind leaves doubts for as long as it is; one that a reload has named has no challenge yet.
    fn pause_of(&self, demand: &Demand) -> Option<Instant> {
        let (ended, changes) = self.idle?;
        let pause = if demand.waiting > 0 { WAITED_FOR } else { BEHIND_EVERY };
        (!demand.asked_again && self.supply.changes() == changes).then_some(ended + pause)
    }

    /// Applies a reload. Forgets failures, whose cause may be gone.
    fn apply(&mut self) {
        let settings = self.settings.borrow_and_update();
        self.consistency.mirrors.clone_from(&settings.mirrors);
        self.source.replace(&settings);
        (self.put_off, self.idle, self.failures_in_a_row) = (None, None, 0);
        self.supply.forgive();
    }

    /// Counts the tokens to mint; none without a challenge.
    fn count(&self, demand: &Demand) -> usize {
        let Some(current) = &demand.current else { return 0 };
        let stock = Stock::of(demand, &self.settings.borrow());
        stock.to_mint(self.gateways.trial(current), !current.has_context && !self.shutdown.is_draining())
    }

    /// Tries the issuers in turn, until one works or an error applies to all of them.
    async fn attempt(&mut self) -> Result<(), AttemptError> {
        let mut left = self.source.tries();
        loop {
            let ended = self.attempt_once().await;
            left -= 1;
            match &ended {
                Err(AttemptError::Mint(error)) if self.source.turns_from(error) && left > 0 => {
                    tracing::warn!("{error}; the next issuer of the list is used for now");
                }
                Ok(()) => {
                    self.source.issuers.worked();
                    return ended;
                }
                Err(_) => return ended,
            }
        }
    }

    async fn attempt_once(&mut self) -> Result<(), AttemptError> {
        let Some(mut current) = self.supply.current() else { return Ok(()) };
        // A gateway whose challenge comes too soon may have returned to a known one.
        let is_refused = self.gateways.may_sign(&current).is_err();
        if is_refused || !current.is_fresh() || self.gateways.is_to_be_confirmed(&current) {
            current = self.gateways.fetch_challenge().await?;
        }
        let first = match self.mint_for(&mut current).await {
            Err(AttemptError::Mint(error)) if error.is_of_key() => error,
            ended => return ended,
        };
        // The issuer's keys have changed, so the gateway's challenge may have, too.
        let mut present = self.gateways.fetch_challenge().await?;
        if present.is_same_as(&current) {
            return Err(first.into());
        }
        self.mint_for(&mut present).await
    }

    /// Mints the tokens needed for `current`. If the issuer has a newer key, of which the gateway may not know, replaces
    /// `current` with the gateway's present challenge.
    async fn mint_for(&mut self, current: &mut Arc<CurrentChallenge>) -> Result<(), AttemptError> {
        self.saved_challenges.save(&self.gateways.challenges()).await;
        self.saved_marks.save(&self.gateways.marks()).await;
        if self.count(&self.supply.demand()) > 0 {
            self.gateways.may_sign(current)?; // before anything is sent to the issuer
        }
        let mut issuer = self.source.of(current)?;
        let published = issuer.published().await?;
        let is_first = !self.supply.clock.is_compared();
        if let Some(skew) = self.supply.clock.set(published.skew) {
            self.status.clock_skew_changed(skew);
        }
        if is_first {
            self.supply.tidy(self.settings.borrow().high); // expired tokens of the last run were kept until now
        }
        if self.is_superseded(current, &published) {
            *current = self.gateways.fetch_challenge().await?;
            issuer = self.source.of(current)?;
        }
        // A gateway that requires the issuer's preferred key is up to date.
        let is_up_to_date = current.key.is_none() || current.key == published.preferred(&current.challenge);
        self.supply.settle_doubts(current, is_up_to_date, |key| published.redeems(key)).await;
        let count = self.count(&self.supply.demand());
        if count == 0 {
            return Ok(());
        }
        self.mint(&issuer, &published, current, count).await
    }

    /// Returns `true` if the issuer has a newer key than `current` names, and the challenge was not fetched of late.
    fn is_superseded(&mut self, current: &CurrentChallenge, published: &Published) -> bool {
        let preferred = published.preferred(&current.challenge);
        let Some(preferred) = preferred.filter(|key| current.key.is_some_and(|named| named != *key)) else {
            self.asked_about = None;
            return false;
        };
        let is_asked =
            self.asked_about.is_some_and(|(key, when)| key == preferred && when.elapsed() < BEHIND_EVERY);
        if !is_asked {
            self.asked_about = Some((preferred, Instant::now()));
        }
        !is_asked
    }

    async fn mint(
        &mut self,
        issuer: &IssuerClient,
        published: &Published,
        current: &CurrentChallenge,
        count: usize,
    ) -> Result<(), AttemptError> {
        let key = published.key_for(&current.challenge)?;
        self.consistency.check(published, key.key.id()).await?;
        if !self.gateways.sign(current, key.key.id())? {
            return Ok(());
        }
        // A mark may be the first one of the key that its challenge claims, but not of the key that the issuer publishes.
        let count = count.min(self.count(&self.supply.demand()));
        if count == 0 {
            return Ok(());
        }
        self.saved_marks.save(&self.gateways.marks()).await;
        self.supply.wallet.reserve(count)?;
        let urgent = self.supply.demand().waiting;
        let mut unwritten = None;
        let keep = |token| {
            if let Err(error) = self.supply.add(Unspent { token, not_after: key.not_after }) {
                unwritten.get_or_insert(error); // tokens that were requested still arrive, and may be written
            }
            let is_wanted = !self.shutdown.is_draining() || self.supply.demand().waiting > 0;
            let is_current = self.supply.current().is_some_and(|present| present.digest == current.digest);
            if unwritten.is_none() && is_current && is_wanted {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let minted = issuer.mint(&current.challenge.bytes, &key, count, urgent, keep).await;
        unwritten.map_or(Ok(()), Err)?;
        Ok(minted.map(drop)?)
    }

    fn failure(&self, error: &AttemptError) -> Failure {
        // The last issuer tried may not be the first to have tokens again.
        let back_in =
            self.source.issuers.back_in(Instant::now()).filter(|_| matches!(error, AttemptError::Mint(_)));
        let retry_after = error.retry_after().map(|said| back_in.map_or(said, |back| said.min(back)));
        let pause = pause(self.failures_in_a_row, error.kind(), retry_after, rand::random());
        Failure { sentence: error.to_string(), kind: error.kind(), next_attempt: Instant::now() + pause }
    }
}

/// The wallet's stock and demand, which determine the number of tokens to mint.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    /// Tokens for the present challenge.
    pub level: usize,
    /// Tokens of older marks.
    pub older: usize,
    /// Requests that wait for a token.
    pub waiting: usize,
    /// Minting ahead begins below this number of tokens.
    pub low: usize,
    /// Minting ahead ends at this number of tokens.
    pub high: usize,
}

impl Stock {
    pub(crate) fn of(demand: &Demand, settings: &TokenSettings) -> Self {
        let TokenSettings { low, high, .. } = *settings;
        Self { level: demand.level, older: demand.older, waiting: demand.waiting, low, high }
    }

    /// Counts the tokens to mint for the present challenge: for waiting requests, and ahead if allowed.
    #[must_use]
    pub fn to_mint(&self, trial: Option<Trial>, may_mint_ahead: bool) -> usize {
        let held = self.level + self.older;
        let ahead = match held {
            _ if !may_mint_ahead || trial.is_some() => 0,
            held if held < self.low || self.waiting > self.level => self.high,
            _ => 0,
        };
        // One token shows whether the gateway accepts a new mark.
        let now = if trial.is_some_and(|trial| !trial.is_proven) { 1 } else { usize::MAX };
        self.waiting.min(now).saturating_sub(self.level).max(ahead.saturating_sub(held))
    }

    /// Returns `true` if minting can wait: no request waits, and the stock is at least half of `low`.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let held = self.level + self.older;
        self.waiting == 0 && held > 0 && held >= self.low / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that waits takes a kept token a moment after its challenge is current again: nothing is short.
    #[test]
    fn requests_that_the_stock_covers_cause_no_minting() {
        let count =
            |level, older, waiting| Stock { level, older, waiting, low: 4, high: 8 }.to_mint(None, true);
        assert_eq!((count(7, 0, 0), count(7, 0, 1), count(7, 0, 7)), (0, 0, 0));
        assert_eq!((count(3, 0, 0), count(7, 0, 8)), (5, 1));
        assert_eq!(count(0, 7, 1), 1, "tokens of older marks cover no request that has tried them");
    }
}
