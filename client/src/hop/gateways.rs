//! The gateways in order of preference: chooses the one to use, and probes those that failed.
//!
//! A gateway that fails a request, or answers 503, gets no more tokens until it has answered a **probe**: the CONNECT
//! without a token that also learns its challenge. While one is away the next in the list is used; one that comes back
//! takes over again. An idle, healthy gateway is not probed, so an idle agent sends nothing.

mod marked;

use super::connection::Refused;
use super::fetch_challenge::fetch_challenge_from;
use super::gateway::Gateway;
use super::health::{Health, Outage};
use crate::hop::marks::saved::Ledger;
use crate::sentence::full_stop;
use crate::wallet::challenge::CurrentChallenge;
use crate::wallet::challenge::SavedChallenges;
use crate::wallet::supply::{PATIENCE as PATIENCE_FOR_A_TOKEN, Supply};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::{Gate, Readiness};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// Longest wait of a request for a gateway that serves.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Time limit for a probe, for which no target is dialled.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for a probe through the hop before, which may have to get a token first.
const PAID_PROBE_TIMEOUT: Duration = PROBE_TIMEOUT.saturating_add(PATIENCE_FOR_A_TOKEN);
/// Silence after which a request makes its gateway doubtful.
const SILENCE: Duration = Duration::from_secs(1);
/// Duration of a probe after which the next gateway of the list is probed as well.
const HEAD_START: Duration = Duration::from_millis(500);
/// Maximum age of the last answer when readiness is queried; older answers cause a probe.
const NEWS: Duration = Duration::from_secs(5);
/// The same for a gateway whose probes may cost a token.
const PAID_NEWS: Duration = Duration::from_mins(1);

/// The gateways, shared by all connections.
pub(crate) struct Gateways {
    /// In order of preference. A reload replaces the list.
    list: ArcSwap<Vec<Arc<Endpoint>>>,
    supply: Arc<Supply>,
    /// Locked before any endpoint's challenge.
    marks: Mutex<Ledger>,
    gate: Gate,
    /// Wakes the keeper: a probe may be due.
    due: Notify,
    /// Wakes those who wait for a gateway.
    progress: watch::Sender<u64>,
}

/// A gateway in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// As configured.
    pub url: String,
    /// Whether tunnels go there now.
    pub is_in_use: bool,
    /// Its health, in words.
    pub state: String,
}

struct Endpoint {
    gateway: Arc<Gateway>,
    health: Mutex<Health>,
    current: Mutex<Option<Arc<CurrentChallenge>>>,
}

impl Endpoint {
    /// Tells whether the last answer is too old to judge the gateway by.
    fn is_old_news(&self) -> bool {
        let news = if self.gateway.costs_a_token() { PAID_NEWS } else { NEWS };
        self.health.lock().last_heard().is_none_or(|heard| heard.elapsed() >= news)
    }
}

/// A gateway that serves, as far as the agent knows.
#[derive(Clone)]
pub(crate) struct Chosen {
    endpoint: Arc<Endpoint>,
}

impl Chosen {
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.endpoint.gateway
    }
}

impl Gateways {
    /// Starts with the gateways of the configuration and what an earlier run learned of them.
    pub(crate) fn new(
        gateways: Vec<Arc<Gateway>>,
        saved: &SavedChallenges,
        marks: Ledger,
        supply: Arc<Supply>,
        gate: Gate,
    ) -> Self {
        let (due, progress) = (Notify::new(), watch::Sender::new(0));
        let marks = marks.into_iter().map(|(name, marks)| (name, marks.with_longer_trials(rand::random())));
        let marks = Mutex::new(marks.collect());
        let made = Self { list: ArcSwap::default(), supply, marks, gate, due, progress };
        made.use_those(gateways, |url| saved.challenge(url));
        made
    }

    /// Replaces the list. What was learned of a gateway that stays is kept; requests under way end where they are.
    pub(crate) fn replace(&self, gateways: Vec<Arc<Gateway>>) {
        let before = self.challenges();
        let known =
            |url: &str| before.iter().find(|(known, _)| known == url).map(|(_, current)| current.clone());
        self.use_those(gateways, |url| known(url).map(|current| CurrentChallenge::clone(&current)));
        // By the new settings it may not be reached: no token is sent before that is known.
        self.list.load().iter().for_each(|endpoint| endpoint.health.lock().doubt());
        self.due.notify_one();
    }

    /// Sets the list; `known` returns the challenge learned from a gateway's URL.
    fn use_those(&self, gateways: Vec<Arc<Gateway>>, known: impl Fn(&str) -> Option<CurrentChallenge>) {
        let endpoint = |gateway: Arc<Gateway>| {
            let known = known(gateway.url());
            let health = Health::new(known.is_some());
            let health = if gateway.costs_a_token() { health.with_paid_probes() } else { health };
            let endpoint = Endpoint { gateway, health: Mutex::new(health), current: Mutex::default() };
            // One that is not taken any more is fetched anew.
            let _ = known.map_or(Ok(()), |known| self.take_in(&endpoint, known));
            Arc::new(endpoint)
        };
        self.list.store(Arc::new(gateways.into_iter().map(endpoint).collect()));
        self.settle();
    }

    /// Chooses the first gateway that serves. Waits [`PATIENCE`] at most, and not at all if none can come back by then.
    pub(crate) async fn choose(&self) -> Result<Chosen, Outage> {
        let deadline = Instant::now() + PATIENCE;
        let mut progress = self.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if let Some(endpoint) = self.serving() {
                return Ok(Chosen { endpoint });
            }
            let now = Instant::now();
            let next_probe = |endpoint: &Arc<Endpoint>| {
                let mut health = endpoint.health.lock();
                health.hurry(now);
                health.next_probe(now)
            };
            let next = self.list.load().iter().filter_map(next_probe).min();
            let is_hopeless = next.is_none_or(|next| next >= deadline);
            self.due.notify_one();
            if is_hopeless || timeout_at(deadline, progress.changed()).await.is_err() {
                return Err(self.outage());
            }
        }
    }

    /// Runs an exchange with the gateway. Probes the gateway if the exchange takes long, so that one that hangs is not sent
    /// one token after the other.
    pub(crate) async fn watch<T>(&self, chosen: &Chosen, exchange: impl Future<Output = T>) -> T {
        let mut exchange = pin!(exchange);
        tokio::select! {
            answered = exchange.as_mut() => answered,
            () = sleep(SILENCE) => {
                if chosen.endpoint.health.lock().suspect(SILENCE, Instant::now()) {
                    self.due.notify_one();
                }
                exchange.await
            }
        }
    }

    /// Records an answer, whatever its status.
    pub(crate) fn heard(&self, chosen: &Chosen) {
        chosen.endpoint.health.lock().heard(Instant::now());
    }

    /// Records a failure of the gateway rather than of a request.
    pub(crate) fn failed(&self, chosen: &Chosen, outage: Outage) {
        self.fail(&chosen.endpoint, outage, false);
    }

    /// Has a gateway probed that broke off a request, before another token is sent.
    pub(crate) fn doubt(&self, chosen: &Chosen) {
        chosen.endpoint.health.lock().doubt();
        self.due.notify_one();
    }

    /// Records a 503 or 429 to a request with a token.
    pub(crate) fn unavailable(&self, chosen: &Chosen, refused: &Refused) {
        self.failed(chosen, Outage::unavailable(chosen.gateway().url(), refused));
    }

    /// Learns the challenge of a 407.
    ///
    /// # Errors
    /// A sentence about why the challenge is not accepted.
    pub(crate) fn learn(&self, chosen: &Chosen, current: CurrentChallenge) -> Result<(), String> {
        self.take_in(&chosen.endpoint, current)?;
        self.settle();
        Ok(())
    }

    /// Fetches the present challenge of the gateway in use, for a refill whose challenge is too old or no longer signed
    /// for.
    pub(crate) async fn fetch_challenge(&self) -> Result<Arc<CurrentChallenge>, Outage> {
        let chosen = self.choose().await?;
        self.probe(&chosen.endpoint).await?;
        let current = chosen.endpoint.current.lock().clone();
        current.ok_or_else(|| Outage::no_answer("the gateway's challenge was withdrawn"))
    }

    /// Returns the challenges by gateway URL, for the next start.
    pub(crate) fn challenges(&self) -> Vec<(String, Arc<CurrentChallenge>)> {
        let known = |endpoint: &Arc<Endpoint>| {
            Some((endpoint.gateway.url().to_owned(), endpoint.current.lock().clone()?))
        };
        self.list.load().iter().filter_map(known).collect()
    }

    /// Reports each gateway in order of preference, with its health in words.
    pub(crate) fn status(&self) -> Vec<GatewayStatus> {
        let in_use = self.serving();
        let now = Instant::now();
        let list = self.list.load();
        let status = list.iter().map(|endpoint| {
            let health = endpoint.health.lock();
            let is_in_use = in_use.as_ref().is_some_and(|serving| Arc::ptr_eq(serving, endpoint));
            let next = health.next_probe(now).map(|next| next.saturating_duration_since(now).as_secs());
            let state = match health.outage() {
                Some(outage) => {
                    format!("away: {outage}; it is probed again in {} s", next.unwrap_or_default())
                }
                None if is_in_use => "serves".to_owned(),
                None if health.is_serving() => "serves, and is used when those before it are away".to_owned(),
                None => "is being probed".to_owned(),
            };
            GatewayStatus { url: endpoint.gateway.url().to_owned(), is_in_use, state }
        });
        status.collect()
    }

    /// Probes what is due, and the gateway in use when `readiness` is queried, until the state of `shutdown` is *stopped*.
    pub(crate) async fn keep(self: Arc<Self>, readiness: Readiness, shutdown: Shutdown) {
        let work = async {
            // What an earlier run learned is used at once, and checked at once.
            let (mut probes, mut looks) = (JoinSet::new(), readiness.looks());
            let first = self.list.load().first().cloned();
            first.into_iter().for_each(|first| self.begin_probe(first, &mut probes));
            loop {
                let now = Instant::now();
                let (due, next) = self.plan(now);
                for endpoint in due {
                    self.begin_probe(endpoint, &mut probes);
                }
                tokio::select! {
                    () = self.due.notified() => {}
                    () = async { sleep_until(next.unwrap_or(now)).await }, if next.is_some() => {}
                    Ok(()) = looks.changed() => {
                        if let Some(endpoint) = self.serving().filter(|endpoint| endpoint.is_old_news()) {
                            self.begin_probe(endpoint, &mut probes);
                        }
                    }
                    Some(_) = probes.join_next() => {}
                }
            }
        };
        shutdown.until_stopped(work).await;
    }

    /// Returns the gateways to probe now, and when to look again. Gateways before the one in use are probed so that they
    /// can take over again. Without one in use they are probed one after the other: the next when the one before is away or
    /// slow.
    fn plan(&self, now: Instant) -> (Vec<Arc<Endpoint>>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for endpoint in self.list.load().iter() {
            if endpoint.health.lock().is_serving() {
                break;
            }
            let health = endpoint.health.lock();
            let look_at = match health.slow_at(HEAD_START) {
                Some(slow_at) => slow_at,
                None => match health.next_probe(now) {
                    Some(moment) if moment <= now => {
                        due.push(endpoint.clone());
                        now + HEAD_START
                    }
                    Some(moment) => moment,
                    None => continue,
                },
            };
            if look_at > now {
                next = Some(next.map_or(look_at, |next| next.min(look_at)));
            }
            if health.outage().is_none() && look_at > now {
                break;
            }
        }
        (due, next)
    }

    /// Begins a probe in a task of its own, unless one is under way. The decision is made before the task starts: a late
    /// task would send a second probe.
    fn begin_probe(self: &Arc<Self>, endpoint: Arc<Endpoint>, probes: &mut JoinSet<()>) {
        if endpoint.health.lock().begin_probe(Instant::now()) {
            let gateways = self.clone();
            probes.spawn(async move {
                let _probing = Probing { gateways: &gateways, endpoint: &endpoint };
                // The outcome is in the gateway's health.
                let _ = gateways.probe_alone(&endpoint).await;
            });
        }
    }

    /// Probes once. Concurrent callers share the outcome.
    async fn probe(&self, endpoint: &Endpoint) -> Result<(), Outage> {
        if endpoint.health.lock().begin_probe(Instant::now()) {
            let _probing = Probing { gateways: self, endpoint };
            return self.probe_alone(endpoint).await;
        }
        let mut progress = self.progress.subscribe();
        while endpoint.health.lock().is_probing() {
            if progress.changed().await.is_err() {
                break; // the sender lives in `self`
            }
        }
        let outage = endpoint.health.lock().outage().cloned();
        outage.map_or(Ok(()), Err)
    }

    async fn probe_alone(&self, endpoint: &Endpoint) -> Result<(), Outage> {
        let Endpoint { gateway, health, .. } = endpoint;
        let url = gateway.url();
        let limit = if gateway.costs_a_token() { PAID_PROBE_TIMEOUT } else { PROBE_TIMEOUT };
        let learned = match timeout(limit, fetch_challenge_from(gateway)).await {
            Ok(Ok(challenge)) => CurrentChallenge::new(challenge).ok_or_else(|| {
                Outage::no_answer(format_args!("the challenge of the gateway {url} cannot be read"))
            }),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Outage::no_answer(format_args!(
                "the gateway {url} did not answer within {limit:?}: it hangs, or the way to it does"
            ))),
        };
        let unfit = |reason| Outage::no_answer(format_args!("the gateway {url} cannot be used: {reason}"));
        match learned.and_then(|learned| self.take_in(endpoint, learned).map_err(unfit)) {
            Ok(()) => {
                if health.lock().served(Instant::now()) {
                    tracing::info!("the gateway {url} serves again");
                }
                self.settle();
                Ok(())
            }
            Err(outage) => {
                self.fail(endpoint, outage.clone(), true);
                Err(outage)
            }
        }
    }

    fn fail(&self, endpoint: &Endpoint, outage: Outage, was_probe: bool) {
        let sentence = outage.sentence.clone();
        let is_news = endpoint.health.lock().failed(outage, was_probe, Instant::now(), rand::random());
        if is_news {
            let meaning = match self.serving() {
                Some(_) => "The next gateway of the list is used meanwhile",
                None => "Programs are refused, and tokens are kept, until it answers again",
            };
            tracing::warn!("{} {meaning}", full_stop(&sentence));
        }
        self.settle();
    }

    fn serving(&self) -> Option<Arc<Endpoint>> {
        self.list.load().iter().find(|endpoint| endpoint.health.lock().is_serving()).cloned()
    }

    fn outage(&self) -> Outage {
        let list = self.list.load();
        let first = list.iter().find_map(|endpoint| endpoint.health.lock().outage().cloned());
        first.unwrap_or_else(|| Outage::no_answer("the gateway has not answered yet"))
    }

    /// Hands the challenge of the gateway in use to the supply, and wakes everyone concerned.
    fn settle(&self) {
        let in_use = self.serving().or_else(|| self.list.load().first().cloned());
        let current = in_use.as_ref().and_then(|endpoint| endpoint.current.lock().clone());
        if let (Some(current), Some(endpoint)) = (current, in_use) {
            let is_taken = self.may_sign(&current).is_ok();
            self.supply.adopt(current, self.older(&endpoint), is_taken);
        }
        self.publish_readiness();
        self.due.notify_one();
        self.supply.look();
        self.progress.send_modify(|count| *count += 1);
    }

    fn publish_readiness(&self) {
        let outage = |endpoint: &Arc<Endpoint>| endpoint.health.lock().outage().cloned();
        let list = self.list.load();
        let serving = list.iter().position(|endpoint| endpoint.health.lock().is_serving());
        // Gateways after the one in use are not probed, so their health may be out of date.
        let preferred = list.iter().take(serving.unwrap_or(list.len()));
        let away: Vec<Outage> = preferred.filter_map(outage).collect();
        let sentences = || match away.as_slice() {
            [one] => one.to_string(),
            several => several.iter().map(full_stop).collect::<Vec<_>>().join(" "),
        };
        match (serving, away.is_empty()) {
            (Some(_), true) => self.gate.set_ready(),
            (Some(_), false) => {
                self.gate.set_degraded(format!("another gateway of the list is used: {}", sentences()));
            }
            (None, false) => self.gate.set_not_ready(sentences()),
            // Doubted, or never probed: the probe that is due decides.
            (None, true) => {}
        }
    }
}

/// A probe that is under way, until the value is dropped.
struct Probing<'a> {
    gateways: &'a Gateways,
    endpoint: &'a Endpoint,
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.endpoint.health.lock().end_probe();
        self.gateways.progress.send_modify(|count| *count += 1);
    }
}
