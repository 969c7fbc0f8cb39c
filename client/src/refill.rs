//! The task that keeps the wallet filled: it learns the challenge, mints ahead between low and high water, mints for
//! those who wait, and leaves a failing issuer alone for longer and longer.

use crate::config::IssuerConfig;
use crate::gateway::Gateway;
use crate::mint::{self, ChallengeFetchError, IssuerClient, MintError};
use crate::recorder::{Attempts, Recorder, Trouble};
use crate::remembered::Remembered;
use crate::slot::Unspent;
use crate::supply::{Current, Demand, Failure, Supply};
use crate::wallet::WalletError;
use postern_service::admin::Gate;
use postern_service::drain::Shutdown;
use postern_service::live::Live;
use postern_service::names::LinkKind;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause of our own choice.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The shortest pause after a failure that somebody has to mend: a refused account, a missing key.
const LASTING_PAUSE: Duration = Duration::from_secs(20);
/// The longest that an issuer can have us wait.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// How often tokens of retired keys are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// What an issuer is called that only a challenge names: a gateway's word is not the operator's configuration, and one
/// that changes it again and again must not fill the table of links.
const BY_CHALLENGE: &str = "by challenge";

/// The task's own state.
pub(crate) struct Refill {
    supply: Arc<Supply>,
    gateway: Arc<Gateway>,
    issuer: Issuer,
    remembered: Remembered,
    low: usize,
    high: usize,
    gate: Gate,
    recorder: Arc<Recorder>,
    /// Whether the gateway has been asked since the start: a remembered challenge may be an old one.
    asked_gateway: bool,
    failures_in_a_row: u32,
    next_tidy: Instant,
}

/// Where tokens come from.
pub(crate) struct Issuer {
    config: IssuerConfig,
    attempts: Attempts,
    /// Who is asked, and under which name in the challenge.
    client: Option<(String, IssuerClient)>,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Gateway(#[from] ChallengeFetchError),
    #[error(transparent)]
    Mint(#[from] MintError),
    #[error(transparent)]
    Wallet(#[from] WalletError),
}

impl AttemptError {
    /// What failed, in our own words alone: an issuer's text may name the account, and a URL may name who runs it.
    fn cause(&self) -> String {
        let cause = match self {
            Self::Gateway(ChallengeFetchError::Dial(_)) => "the gateway cannot be reached",
            Self::Gateway(_) => "the gateway gave no challenge",
            Self::Mint(MintError::Url(_) | MintError::Client(_)) => {
                "the issuer's address or certificates cannot be used"
            }
            Self::Mint(MintError::Unreachable { .. }) => "the issuer cannot be reached",
            Self::Mint(MintError::Status { status, .. }) => return format!("the issuer answered {status}"),
            Self::Mint(MintError::Unlisted { .. }) => {
                "the gateway asks for a key that the issuer does not list"
            }
            Self::Mint(MintError::Unusable { .. } | MintError::Blind { .. }) => {
                "the issuer gave an answer that cannot be used"
            }
            Self::Wallet(_) => "the wallet cannot be written",
        };
        cause.to_owned()
    }
}

impl Refill {
    pub(crate) fn new(
        supply: Arc<Supply>,
        gateway: Arc<Gateway>,
        issuer: Issuer,
        remembered: Remembered,
        (low, high): (usize, usize),
        gate: Gate,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self {
            supply,
            gateway,
            issuer,
            remembered,
            low,
            high,
            gate,
            recorder,
            asked_gateway: false,
            failures_in_a_row: 0,
            next_tidy: Instant::now(),
        }
    }

    /// Runs until the state of `shutdown` is *stopped*. While it drains, only those who wait are served.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        let work = async {
            loop {
                self.until_needed(&shutdown).await;
                self.supply.begin_attempt();
                let result = self.attempt(shutdown.is_draining()).await;
                let failure = result.err().map(|error| self.failure(&error));
                self.failures_in_a_row =
                    if failure.is_some() { self.failures_in_a_row.saturating_add(1) } else { 0 };
                self.supply.end_attempt(failure);
            }
        };
        shutdown.until_stopped(work).await;
    }

    /// Completes when there is something to mint or to learn, and the pause after a failure is over.
    async fn until_needed(&mut self, shutdown: &Shutdown) {
        loop {
            if self.next_tidy <= Instant::now() {
                self.supply.tidy(self.high);
                self.next_tidy = Instant::now() + TIDY_EVERY;
            }
            let demand = self.supply.demand();
            self.report(&demand);
            let is_needed = !self.asked_gateway || self.count(&demand, shutdown.is_draining()) > 0;
            let until = match &demand.failure {
                None if is_needed => return,
                Some(failure) if is_needed && failure.is_gateway && demand.asked_anew => return,
                Some(failure) if is_needed => failure.next_attempt,
                _ => self.next_tidy,
            };
            if is_needed && until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.supply.wanted() => {}
            }
        }
    }

    /// How many tokens to mint; 1 when the challenge is not even known.
    fn count(&self, demand: &Demand, is_draining: bool) -> usize {
        let Some(current) = &demand.current else { return 1 };
        let ahead = match demand.level {
            _ if current.has_context || is_draining => 0,
            level if level < self.low || demand.waiting > 0 => self.high,
            _ => 0,
        };
        ahead.max(demand.waiting).saturating_sub(demand.level)
    }

    async fn attempt(&mut self, is_draining: bool) -> Result<(), AttemptError> {
        let current = self.challenge().await?;
        let count = self.count(&self.supply.demand(), is_draining);
        if count == 0 {
            return Ok(());
        }
        let issuer = self.issuer.of(&current)?;
        let key = issuer.key_for(&current.challenge).await?;
        let mut unwritten = None;
        let keep = |token| {
            unwritten = self.supply.add(Unspent { token, not_after: key.not_after }).err();
            let is_current = self.supply.current().is_some_and(|present| present.digest == current.digest);
            if unwritten.is_none() && is_current { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let minted = issuer.mint(&current.challenge.bytes, &key, count, keep).await;
        unwritten.map_or(Ok(()), Err)?;
        minted?;
        Ok(())
    }

    /// The present challenge: asked for once after the start, and then as the refusals of tokens tell it.
    async fn challenge(&mut self) -> Result<Arc<Current>, AttemptError> {
        let present = self.supply.current();
        if let Some(current) = &present
            && self.asked_gateway
        {
            self.remembered.save(current).await;
            return Ok(current.clone());
        }
        let asked = mint::ask(&self.gateway).await.and_then(|challenge| {
            let reason = || "its challenge cannot be read".to_owned();
            let url = || self.gateway.url().to_owned();
            Current::new(challenge)
                .ok_or_else(|| ChallengeFetchError::NoChallenge { url: url(), reason: reason() })
        });
        match (asked, present) {
            (Ok(current), _) => {
                self.supply.adopt(current);
            }
            // The tokens we have may be good; if they are not, the first refusal says what is.
            (Err(error), Some(_)) => tracing::info!("{error}; going on with the challenge of the last time"),
            (Err(error), None) => return Err(error.into()),
        }
        self.asked_gateway = true;
        let current = self.supply.current().ok_or_else(|| ChallengeFetchError::NoChallenge {
            url: self.gateway.url().to_owned(),
            reason: "it was withdrawn".to_owned(),
        })?;
        self.remembered.save(&current).await;
        Ok(current)
    }

    fn failure(&self, error: &AttemptError) -> Failure {
        let (is_lasting, retry_after) = match error {
            AttemptError::Gateway(_) => (false, None),
            AttemptError::Mint(error) => (error.is_lasting(), error.retry_after()),
            AttemptError::Wallet(_) => (true, None),
        };
        let is_gateway = matches!(error, AttemptError::Gateway(_));
        let pause = pause(self.failures_in_a_row, is_lasting, retry_after, rand::random());
        Failure {
            sentence: error.to_string(),
            cause: error.cause(),
            is_gateway,
            next_attempt: Instant::now() + pause,
        }
    }

    fn report(&self, demand: &Demand) {
        let is_stocked =
            demand.current.as_ref().is_some_and(|current| current.has_context || demand.level > 0);
        self.recorder.minting(demand.failure.as_ref().map(|failure| Trouble {
            cause: failure.cause.clone(),
            next_attempt: failure.next_attempt,
            is_stocked,
        }));
        match &demand.failure {
            _ if is_stocked => self.gate.set_ready(),
            Some(failure) => self.gate.set_not_ready(&failure.sentence),
            None if demand.current.is_none() => {
                self.gate.set_not_ready("the gateway's challenge is not known yet")
            }
            None => self.gate.set_not_ready("the wallet is empty; tokens are being minted"),
        }
    }
}

impl Issuer {
    /// The issuer of `config`, whose requests `live` shows. One that the challenge names is made when the challenge is
    /// known.
    pub(crate) fn new(config: IssuerConfig, live: &Live) -> Result<Self, MintError> {
        let attempts = |address: &str| Attempts::over(live.link(LinkKind::Issuer, address));
        let Some(url) = &config.url else {
            return Ok(Self { attempts: attempts(BY_CHALLENGE), config, client: None });
        };
        let client = IssuerClient::new(url, config.api_key.clone(), config.ca.clone())?;
        let attempts = attempts(&client.address());
        let client = Some((String::new(), client.recorded(attempts.clone())));
        Ok(Self { config, attempts, client })
    }

    fn of(&mut self, current: &Current) -> Result<IssuerClient, MintError> {
        match &self.client {
            Some((name, client)) if self.config.url.is_some() || *name == current.issuer_name => {
                Ok(client.clone())
            }
            _ => {
                let client = IssuerClient::named(&current.issuer_name, self.config.ca.clone())?;
                let client = client.recorded(self.attempts.clone());
                self.client = Some((current.issuer_name.clone(), client.clone()));
                Ok(client)
            }
        }
    }
}

/// How long to leave the issuer alone. `jitter` is from 0 to 1: agents that failed together must not come back
/// together.
fn pause(failures: u32, is_lasting: bool, retry_after: Option<Duration>, jitter: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE);
    let ours = if is_lasting { doubled.max(LASTING_PAUSE) } else { doubled };
    // Never sooner than the issuer said; up to a fifth later.
    let theirs = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
    ours.mul_f64(0.5 + jitter / 2.0).max(theirs.mul_f64(1.0 + jitter / 5.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_respect_the_issuer() {
        assert_eq!(pause(0, false, None, 1.0), FIRST_PAUSE);
        assert_eq!(pause(1, false, None, 1.0), 2 * FIRST_PAUSE);
        assert_eq!(pause(1, false, None, 0.0), FIRST_PAUSE);
        assert_eq!(pause(u32::MAX, false, None, 1.0), LONGEST_PAUSE);
        assert_eq!(pause(0, true, None, 1.0), LASTING_PAUSE);
        let said = Duration::from_secs(100);
        for jitter in [0.0, 0.5, 1.0] {
            assert!((said..=said.mul_f64(1.2)).contains(&pause(3, false, Some(said), jitter)));
        }
        assert!(pause(0, false, Some(Duration::MAX), 1.0) <= LONGEST_RETRY_AFTER.mul_f64(1.2));
    }
}
