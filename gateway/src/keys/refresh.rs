//! Refreshes the issuer's keys: fetches the directory, updates the keyring, and sets the gate.

use crate::config::{Config, StoreKind};
use crate::gate::{Condition, LoggedGate};
use crate::health::plural;
use crate::keys::clock::Clock;
use crate::keys::keyring::{Accepted, Keyring, Lifetimes, Outlook};
use crate::keys::saved::{self, Saved};
use crate::keys::secrets::Secrets;
use crate::keys::source::{self, Answer, FetchError, Fetched, Source, SourceError};
use crate::observe::catalogue;
use crate::observe::labels::KeyPhase;
use crate::state::Core;
use metrics::gauge;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::{Link, Live};
use postern_daemon::utc::rough;
use postern_spend::Backend;
use postern_token::{TokenTypes, UnixSeconds};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};

mod schedule;
use schedule::Schedule;

/// How often the gate is set, gauges are, and the clock is looked at.
const TICK: Duration = Duration::from_secs(1);
/// The same failure to fetch is logged again after this long.
const REMINDER: Duration = Duration::from_secs(300);

/// Where the keys come from and how long they are good, as the configuration says.
pub(crate) struct Supply {
    pub(crate) source: Source,
    /// To the issuer, unless the keys come from a file.
    issuer: Option<Link>,
    lifetimes: Lifetimes,
    acceptance: Acceptance,
    saved: Option<Saved>,
    poll: Duration,
}

/// Which token types are accepted, and where the secrets of the private ones are.
#[derive(Clone)]
struct Acceptance {
    types: TokenTypes,
    secrets: Option<PathBuf>,
}

impl Acceptance {
    /// Blocks on the disk.
    fn read(&self) -> Accepted {
        let secrets = Secrets::read(self.secrets.as_deref());
        Accepted { types: self.types, secrets, passed_over: None }
    }
}

impl Supply {
    pub(crate) fn of(config: &Config, live: &Live) -> Result<Self, SourceError> {
        let source = Source::new(&config.issuer)?;
        let lifetimes = Lifetimes::of(&config.issuer);
        let issuer = source.address().map(|address| live.link(LinkKind::Issuer, &address));
        let saved = saved_keys(config, &source);
        let acceptance =
            Acceptance { types: source::types(&config.issuer)?, secrets: config.issuer.secrets.clone() };
        Ok(Self { source, issuer, lifetimes, acceptance, saved, poll: config.issuer.poll.get() })
    }

    /// The keys of the last run. Blocks on the disk.
    pub(crate) fn saved_keyring(&mut self) -> Keyring {
        self.saved.as_mut().map(|saved| saved.load(&mut self.acceptance.read())).unwrap_or_default()
    }
}

/// The file of the issuer's keys, where they come from its directory.
fn saved_keys(config: &Config, source: &Source) -> Option<Saved> {
    let directory = source.url()?.to_owned();
    let beside = (config.store.kind == StoreKind::Embedded).then(|| saved::beside(&config.store.path));
    Some(Saved::new(config.issuer.saved.clone().or(beside)?, directory))
}

/// The issuer's keys of one gateway.
pub(crate) struct Refresh {
    core: Arc<Core>,
    source: Source,
    /// To the issuer, unless the keys come from a file.
    issuer: Option<Link>,
    lifetimes: Lifetimes,
    acceptance: Acceptance,
    saved: Option<Saved>,
    /// What a reload puts in the place of those.
    supplies: mpsc::UnboundedReceiver<Supply>,
    gate: LoggedGate,
    schedule: Schedule,
    clock: Clock,
    /// Why a listed key cannot be used, as it was logged.
    passed_over: Option<String>,
    /// Why the last fetch failed, and when it was logged.
    failure: Option<(String, Instant)>,
}

impl Refresh {
    pub(crate) fn new(
        core: Arc<Core>,
        supply: Supply,
        supplies: mpsc::UnboundedReceiver<Supply>,
        gate: LoggedGate,
    ) -> Self {
        let Supply { source, issuer, lifetimes, acceptance, saved, poll } = supply;
        let schedule = Schedule::new(poll, source.is_polled());
        Self {
            core,
            source,
            issuer,
            lifetimes,
            acceptance,
            saved,
            supplies,
            gate,
            schedule,
            clock: Clock::default(),
            passed_over: None,
            failure: None,
        }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut reloads = self.core.shutdown.reloads();
        let (core, mut ticks) = (Arc::clone(&self.core), interval(TICK));
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.schedule.look_at_the_clock(Instant::now(), UnixSeconds::now());
                    self.report();
                }
                () = sleep_until(self.schedule.next()) => self.fetch().await,
                () = core.unknown_key.notified(), if !self.schedule.is_soon() => self.schedule.soon(),
                () = reloads.next() => self.schedule.now(),
                Some(supply) = self.supplies.recv() => self.replace(supply),
            }
        }
    }

    /// Fetches from there now. The known keys stay in use until that answers; those that it does not list are good for
    /// `removed_grace` more, as those that a directory has dropped.
    fn replace(&mut self, supply: Supply) {
        let Supply { source, issuer, lifetimes, acceptance, saved, poll } = supply;
        self.acceptance = acceptance;
        self.schedule = Schedule::new(poll, source.is_polled());
        (self.source, self.issuer, self.lifetimes, self.saved) = (source, issuer, lifetimes, saved);
        self.failure = None;
    }

    /// Fetches the keys. On failure the known ones stay.
    async fn fetch(&mut self) {
        let (asked_at, asked) = (UnixSeconds::now(), Instant::now());
        self.schedule.asked(asked);
        let fetched = self.source.fetch().await;
        let now = UnixSeconds::now();
        match (&self.issuer, &fetched) {
            (Some(issuer), Err(FetchError::Request { .. })) => issuer.lost(1),
            (Some(issuer), _) => issuer.answered(asked.elapsed()),
            (None, _) => {}
        }
        let max_age = fetched.as_ref().ok().and_then(|answer| answer.max_age);
        let acceptance = self.acceptance.clone();
        let accepted = tokio::task::spawn_blocking(move || acceptance.read()).await;
        match fetched
            .map_err(|error| error.to_string())
            .and_then(|answer| Ok((answer, accepted.map_err(|error| error.to_string())?)))
            .and_then(|(answer, accepted)| self.take_in(answer, accepted, asked_at, now))
        {
            Ok(()) => {
                gauge!(catalogue::KEYS_FETCHED).set(now.0 as f64);
                self.failure = None;
                self.schedule.succeeded(
                    Instant::now(),
                    now,
                    max_age,
                    self.core.keyring.load().next_change(now),
                );
                if let Some(saved) = &mut self.saved {
                    let keyring = self.core.keyring.load_full();
                    saved.keep(&keyring).await;
                }
            }
            Err(reason) => {
                self.schedule.failed(Instant::now(), now, self.core.keyring.load().next_change(now));
                self.failed(reason, now);
            }
        }
        self.report();
    }

    /// Updates the keys from an answer.
    fn take_in(
        &mut self,
        answer: Answer,
        mut accepted: Accepted,
        asked: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<(), String> {
        if let Some(theirs) = answer.date {
            self.clock.compare(theirs, asked, now);
        }
        let Some(Fetched { directory, etag }) = answer.fresh else { return Ok(()) };
        let updated = self.core.keyring.load().updated(&directory, &mut accepted, self.lifetimes, now);
        let keyring = updated.map_err(|error| error.to_string())?;
        self.core.use_keys(&keyring, now);
        // A key that cannot be used now may be so once its secret is there: a 304 would hide it.
        self.source.used(etag.filter(|_| accepted.passed_over.is_none()));
        self.pass_over(accepted.passed_over);
        Ok(())
    }

    /// Logs why a listed key cannot be used, once per reason.
    fn pass_over(&mut self, why: Option<String>) {
        if let Some(reason) = why.as_ref().filter(|_| why != self.passed_over) {
            tracing::warn!(
                %reason,
                "one key of the issuer's directory cannot be used: its tokens are refused, those of the other keys are not"
            );
        }
        self.passed_over = why;
    }

    /// Logs the cause, once per cause and then every few minutes.
    fn failed(&mut self, reason: String, now: UnixSeconds) {
        let known =
            self.failure.as_ref().filter(|(logged, when)| *logged == reason && when.elapsed() < REMINDER);
        let when = known.map(|(_, when)| *when);
        if when.is_none() {
            let meaning = if self.core.keyring.load().is_usable(now) {
                "the known keys stay in use until they retire"
            } else {
                "there is none in use, so every request is refused with 503 until this succeeds"
            };
            tracing::warn!(%reason, "the issuer's keys could not be refreshed; {meaning}. It is tried again");
        }
        self.failure = Some((reason, when.unwrap_or_else(Instant::now)));
    }

    /// Sets gate and gauges.
    fn report(&mut self) {
        let (now, keyring) = (UnixSeconds::now(), self.core.keyring.load());
        publish(&keyring, now);
        let condition = self.condition(&keyring, now);
        self.gate.set(condition);
    }

    fn condition(&self, keyring: &Keyring, now: UnixSeconds) -> Condition {
        let clock = self.clock.differs();
        let mut reasons = match keyring.outlook(now) {
            Outlook::Usable => return clock.map_or(Condition::Ready, Condition::Degraded),
            Outlook::None => match (self.core.withdrawn.lock().len(), &self.failure) {
                (0, Some(_)) => Vec::new(),
                (0, None) => vec!["the issuer's directory lists no key that is in use now".to_owned()],
                (withdrawn, _) => vec![self.all_withdrawn(withdrawn)],
            },
            Outlook::Upcoming { known, first } => {
                let (first, known) = (rough(now.until(first).as_secs()), plural(known, "token key"));
                let advice = self.unless_the_clock_explains(
                    false,
                    "if they should be in use now, check this machine's clock",
                );
                vec![format!("{known} of the issuer: none is in use yet, the first in {first}{advice}")]
            }
            Outlook::Retired { known, last } => {
                let (last, known) = (rough(last.until(now).as_secs()), plural(known, "token key"));
                let advice = self.unless_the_clock_explains(true, "the issuer has to publish a newer one");
                vec![format!("{known} of the issuer: all have retired, the last {last} ago{advice}")]
            }
        };
        reasons.extend(clock);
        reasons.extend(self.failure.as_ref().map(|(reason, _)| reason.clone()));
        Condition::NotReady(reasons.join("; "))
    }

    fn all_withdrawn(&self, withdrawn: usize) -> String {
        let keys = plural(withdrawn, "token key");
        match *self.core.generation.load().backend {
            Backend::Embedded(_) => format!(
                "the store has retired {keys}, every one that the issuer lists: every request is refused with 503; rotate \
                 the issuer's keys, and check this machine's clock"
            ),
            Backend::Memcached(_) => format!(
                "the store has retired {keys}, every one that the issuer lists, because they have expired in it: every request is \
                 refused with 503; rotate the issuer's keys"
            ),
        }
    }

    /// Advice if the keys' times are the cause; empty if the clock is, which has its own sentence.
    fn unless_the_clock_explains(&self, ahead: bool, advice: &str) -> String {
        let explains = self.clock.differs().is_some() && self.clock.is_ahead() == ahead;
        if explains { String::new() } else { format!("; {advice}") }
    }
}

/// Sets the gauges of the keys.
fn publish(keyring: &Keyring, now: UnixSeconds) {
    let keys = keyring.view(now);
    for phase in KeyPhase::ALL {
        let number = keys.iter().filter(|key| key.phase == *phase).count();
        gauge!(catalogue::KEYS, KeyPhase::LABEL => phase.as_str()).set(number as f64);
    }
    let newest = keys.iter().find(|key| key.phase == KeyPhase::Newest);
    let age = newest.and_then(|newest| newest.age).unwrap_or_default();
    gauge!(catalogue::KEY_AGE).set(age.as_secs_f64());
    let last = keys.iter().map(|key| key.retires).max().unwrap_or_default();
    gauge!(catalogue::KEYS_RETIRE).set(last.0 as f64);
}
