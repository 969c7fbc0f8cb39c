//! Refresh of the issuer's keys: fetches the directory, updates the keyring, and sets the readiness gate.

use crate::gate::{Condition, LoggedGate, Reason};
use crate::health::plural;
use crate::keys::keyring::{Keyring, Outlook};
use crate::keys::saved::Saved;
use crate::keys::source::{Answer, Clock, FetchError, Fetched, Source};
use crate::observe::catalogue;
use crate::observe::labels::KeyPhase;
use crate::state::Core;
use metrics::gauge;
use postern_daemon::admin::catalogue::LinkKind;
use postern_daemon::admin::live::{Link, Live};
use postern_daemon::utc::rough;
use postern_spend::Backend;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

mod schedule;
use schedule::Schedule;

/// Interval at which the gate and the gauges are set and the clock is checked.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which a persistent failure to fetch is logged again.
const REMINDER: Duration = Duration::from_secs(300);

/// The source of keys, and what the gateway keeps about it.
pub(crate) struct Supply {
    pub(crate) source: Source,
    /// Link to the issuer; `None` if the keys come from a file.
    issuer: Option<Link>,
    saved: Option<Saved>,
}

impl Supply {
    pub(crate) fn of(source: Source, live: &Live) -> Self {
        let issuer = source.address().map(|address| live.link(LinkKind::Issuer, &address));
        let saved = source.saved.clone().zip(source.url()); // keys from a file are not saved
        let saved = saved.map(|(path, directory)| Saved::new(path, directory.to_owned()));
        Self { saved, source, issuer }
    }

    /// Loads the keys of the last run. Blocks on the disk.
    pub(crate) fn saved_keyring(&mut self) -> Keyring {
        let Some(saved) = &mut self.saved else { return Keyring::default() };
        saved.load(&mut self.source.accepted())
    }
}

pub(crate) struct Refresh {
    core: Arc<Core>,
    supply: Supply,
    /// Its replacements, from reloads.
    supplies: mpsc::UnboundedReceiver<Supply>,
    gate: LoggedGate,
    schedule: Schedule,
    clock: Clock,
    /// Last logged reason why a listed key is unusable.
    passed_over: Option<String>,
    /// Reason of the last failed fetch, and the time at which it was logged.
    failure: Option<(String, Instant)>,
}

impl Refresh {
    pub(crate) fn new(
        core: Arc<Core>,
        supply: Supply,
        supplies: mpsc::UnboundedReceiver<Supply>,
        gate: LoggedGate,
    ) -> Self {
        let schedule = Schedule::new(supply.source.poll, supply.source.url().is_some());
        Self {
            core,
            supply,
            supplies,
            gate,
            schedule,
            clock: Clock::default(),
            passed_over: None,
            failure: None,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut reloads = self.core.shutdown.reloads();
        let (core, mut ticks) = (Arc::clone(&self.core), interval(TICK));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // In flight; until it ends, the gate is set and reloads are followed.
        let mut fetching = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.schedule.look_at_the_clock(Instant::now(), UnixSeconds::now());
                    self.report();
                }
                () = sleep_until(self.schedule.next), if fetching.is_none() => {
                    self.schedule.asked(Instant::now());
                    fetching = Some(Box::pin(fetch(self.supply.source.clone())));
                }
                Some(fetch) = async { Some(fetching.as_mut()?.await) } => {
                    fetching = None;
                    self.fetched(fetch).await;
                }
                () = core.unknown_key.notified(), if fetching.is_none() && !self.schedule.is_soon => {
                    self.schedule.soon();
                }
                () = reloads.next() => {
                    fetching = None; // it may have read what was there before
                    self.schedule.next = Instant::now();
                }
                Some(supply) = self.supplies.recv() => {
                    fetching = None; // of the source before
                    self.replace(supply);
                }
            }
        }
    }

    /// Replaces the source and fetches from it immediately. The known keys stay in use until it answers; those that it does not
    /// list are then accepted for `removed_grace` more, like keys dropped from a directory.
    fn replace(&mut self, supply: Supply) {
        self.schedule = Schedule::new(supply.source.poll, supply.source.url().is_some());
        self.supply = supply;
        (self.clock, self.failure) = (Clock::default(), None); // those of the source before
    }

    /// Takes in the keys; on failure the known keys stay in use.
    async fn fetched(&mut self, fetch: Fetch) {
        match (&self.supply.issuer, &fetch.answer) {
            (Some(issuer), Err(FetchError::Unanswered(_))) => issuer.lost(1),
            (Some(issuer), _) => issuer.answered(fetch.took),
            (None, _) => {}
        }
        let max_age = fetch.answer.as_ref().ok().and_then(|answer| answer.max_age);
        let taken = self.take_in(fetch);
        let (now, keyring) = (UnixSeconds::now(), self.core.keyring.load_full());
        match taken {
            Ok(()) => {
                gauge!(catalogue::KEYS_FETCHED).set(now.0 as f64);
                self.failure = None;
                let (change, is_lacking) = (keyring.next_change(now), self.passed_over.is_some());
                self.schedule.succeeded(Instant::now(), now, max_age, change, is_lacking);
                if let Some(saved) = &mut self.supply.saved {
                    saved.keep(&keyring).await;
                }
            }
            Err(reason) => {
                let (change, is_usable) = (keyring.next_change(now), keyring.is_usable(now));
                self.schedule.failed(Instant::now(), now, change, is_usable);
                self.failed(reason, now);
            }
        }
        self.report();
    }

    fn take_in(&mut self, Fetch { asked, answered, answer, .. }: Fetch) -> Result<(), String> {
        let answer = answer.map_err(|error| error.to_string())?;
        if let Some(theirs) = answer.date {
            self.clock.compare(theirs, asked, answered);
        }
        let Some(Fetched { directory, etag, mut accepted }) = answer.fresh else { return Ok(()) };
        let (known, lifetimes) = (self.core.keyring.load(), self.supply.source.lifetimes);
        let keyring = known.updated(&directory, &mut accepted, lifetimes, answered)?;
        self.core.use_keys(&keyring, answered);
        // An unusable key may become usable once its secret is present; a 304 would hide it.
        self.supply.source.used(etag.filter(|_| accepted.passed_over.is_none()));
        self.pass_over(accepted.passed_over);
        Ok(())
    }

    /// Logs why a listed key is unusable, once per reason.
    fn pass_over(&mut self, why: Option<String>) {
        if let Some(reason) = why.as_ref().filter(|_| why != self.passed_over) {
            tracing::warn!(
                %reason,
                "one key of the issuer's directory cannot be used: its tokens are refused, those of the other keys are not"
            );
        }
        self.passed_over = why;
    }

    /// Logs a failure to fetch, once per reason and then every few minutes.
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

    fn report(&mut self) {
        let (now, keyring) = (UnixSeconds::now(), self.core.keyring.load());
        publish(&keyring, now);
        let condition = self.condition(&keyring, now);
        self.gate.set(condition);
    }

    fn condition(&self, keyring: &Keyring, now: UnixSeconds) -> Condition {
        let clock = self.clock.differs();
        let mut reasons = match keyring.outlook(now) {
            Outlook::Usable => {
                return Condition::of(clock.map(|text| Reason::new("clock", text)).into_iter().collect());
            }
            Outlook::None => match (self.core.withdrawn.lock().len(), &self.failure) {
                (0, Some(_)) => Vec::new(),
                (0, None) => vec!["the issuer's directory lists no key that is in use now".to_owned()],
                (withdrawn, _) => vec![self.all_withdrawn(withdrawn)],
            },
            Outlook::Upcoming { known, first } => {
                let (first, known) = (rough(now.until(first).as_secs()), plural(known, "token key"));
                let seen = format!("{known} of the issuer: none is in use yet, the first in {first}");
                let advice = "; if they should be in use now, check this machine's clock";
                vec![if self.clock.ahead < 0 && clock.is_some() { seen } else { seen + advice }]
            }
            Outlook::Retired { known, last } => {
                let (last, known) = (rough(last.until(now).as_secs()), plural(known, "token key"));
                let seen = format!("{known} of the issuer: all have retired, the last {last} ago");
                let advice = "; the issuer has to publish a newer one";
                vec![if self.clock.ahead > 0 && clock.is_some() { seen } else { seen + advice }]
            }
        };
        // A clock difference that explains the state has a separate sentence.
        reasons.extend(clock);
        reasons.extend(self.failure.as_ref().map(|(reason, _)| reason.clone()));
        Condition::NotReady(reasons.join("; "))
    }

    fn all_withdrawn(&self, withdrawn: usize) -> String {
        let keys = plural(withdrawn, "token key");
        let (why, also) = match *self.core.generation.load().backend {
            Backend::Embedded(_) => ("", ", and check this machine's clock"),
            Backend::Memcached(_) => (", because they have expired in it", ""),
        };
        format!(
            "the store has retired {keys}, every one that the issuer lists{why}: every request is refused with 503; rotate the issuer's \
             keys{also}"
        )
    }
}

struct Fetch {
    asked: UnixSeconds,
    answered: UnixSeconds,
    took: Duration,
    answer: Result<Answer, FetchError>,
}

async fn fetch(source: Source) -> Fetch {
    let (asked, began) = (UnixSeconds::now(), Instant::now());
    let answer = source.fetch().await;
    Fetch { asked, answered: UnixSeconds::now(), took: began.elapsed(), answer }
}

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
