//! The gateways in order of preference: chooses the one to use, and probes those that failed.
//!
//! A gateway that fails a request, or answers 503, gets no more tokens until it has answered a **probe**: the CONNECT without a
//! token that also learns its challenge. While a gateway is away, the next in the list is used; a preferred gateway that comes
//! back takes over again. An idle, healthy gateway is not probed, so an idle agent sends nothing.

mod marked;
mod probes;

use super::gateway::Gateway;
use super::health::{Health, Outage};
use crate::hop::marks::saved::Ledger;
use crate::sentence::full_stop;
use crate::wallet::challenge::{CurrentChallenge, SavedChallenges};
use crate::wallet::supply::Supply;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_daemon::readiness::Gate;
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait of a request for a gateway that serves.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Silence after which a request makes its gateway doubtful.
const SILENCE: Duration = Duration::from_secs(1);

pub(crate) struct Gateways {
    /// In order of preference. A reload replaces the list.
    list: ArcSwap<Vec<Arc<Endpoint>>>,
    supply: Arc<Supply>,
    /// Locked before any endpoint's challenge.
    marks: Mutex<Ledger>,
    gate: Gate,
    /// Held while the challenge in use is read and passed on: otherwise an older one could be passed on last.
    settling: Mutex<()>,
    /// Wakes `keep`: a probe may be due.
    due: Notify,
    /// Wakes the requests that wait for a gateway.
    progress: watch::Sender<u64>,
}

/// A gateway in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// The URL as configured.
    pub url: String,
    /// `true` if tunnels go through this gateway now.
    pub is_in_use: bool,
    /// A description of its health.
    pub state: String,
}

/// A gateway, its health, and its present challenge.
pub(crate) struct Endpoint {
    pub(crate) gateway: Arc<Gateway>,
    health: Mutex<Health>,
    current: Mutex<Option<Arc<CurrentChallenge>>>,
}

impl Gateways {
    /// Takes the gateways of the configuration, with the challenges and marks that an earlier run saved.
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
        let settling = Mutex::default();
        let made = Self { list: ArcSwap::default(), supply, marks, gate, settling, due, progress };
        made.use_those(gateways, |gateway| Some((saved.challenge(gateway.url())?.into(), false)));
        made
    }

    /// Replaces the list. A gateway that stays keeps its challenge and marks; requests under way finish on the old connections.
    pub(crate) fn replace(&self, gateways: Vec<Arc<Gateway>>) {
        let before = self.list.load_full();
        self.use_those(gateways, |gateway| {
            let known = before.iter().find(|known| known.gateway.url() == gateway.url())?;
            let current = known.current.lock().clone()?;
            Some((current, known.gateway.ledger_name() == gateway.ledger_name()))
        });
        // A gateway may be unreachable with the new settings: a probe precedes the next token.
        self.list.load().iter().for_each(|endpoint| endpoint.health.lock().doubt());
        self.due.notify_one();
    }

    /// Sets the list; `known` returns the challenge learned from a gateway, and whether its marks have recorded this already:
    /// recorded again, those of one fleet would count as changes.
    fn use_those(
        &self,
        gateways: Vec<Arc<Gateway>>,
        known: impl Fn(&Gateway) -> Option<(Arc<CurrentChallenge>, bool)>,
    ) {
        let endpoint = |gateway: Arc<Gateway>| {
            let known = known(&gateway);
            let health = Health::new(known.is_some());
            let health = if gateway.costs_a_token() { health.with_paid_probes() } else { health };
            let endpoint = Endpoint { gateway, health: Mutex::new(health), current: Mutex::default() };
            match known {
                Some((current, true)) => *endpoint.current.lock() = Some(current),
                Some((current, false)) => drop(self.take_in(&endpoint, current)), // a rejected one is fetched again
                None => {}
            }
            Arc::new(endpoint)
        };
        self.list.store(Arc::new(gateways.into_iter().map(endpoint).collect()));
        self.settle();
    }

    /// Chooses the first gateway that serves. Waits [`PATIENCE`] at most, and not at all if none can come back by then.
    pub(crate) async fn choose(&self) -> Result<Arc<Endpoint>, Outage> {
        let deadline = Instant::now() + PATIENCE;
        let mut progress = self.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if let Some(endpoint) = self.serving() {
                return Ok(endpoint);
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
                // A probe may have succeeded since the look above.
                return self.serving().ok_or_else(|| self.outage());
            }
        }
    }

    /// Runs an exchange with the gateway. Requests a probe if the exchange takes long, so that a gateway that hangs does not
    /// receive one token after the other.
    pub(crate) async fn watch<T>(&self, chosen: &Endpoint, exchange: impl Future<Output = T>) -> T {
        let mut exchange = pin!(exchange);
        tokio::select! {
            answered = exchange.as_mut() => answered,
            () = sleep(SILENCE) => {
                if chosen.health.lock().suspect(SILENCE, Instant::now()) {
                    self.due.notify_one();
                }
                exchange.await
            }
        }
    }

    /// Records an answer, whatever its status.
    pub(crate) fn heard(&self, chosen: &Endpoint) {
        chosen.health.lock().heard(Instant::now());
    }

    /// Requires a probe before the next token, because the gateway broke off a request.
    pub(crate) fn doubt(&self, chosen: &Endpoint) {
        chosen.health.lock().doubt();
        self.due.notify_one();
    }

    /// Learns the challenge of a 407.
    ///
    /// # Errors
    /// A sentence with the reason why the challenge is rejected.
    pub(crate) fn learn(&self, chosen: &Endpoint, current: CurrentChallenge) -> Result<(), String> {
        self.take_in(chosen, current.into())?;
        self.settle();
        Ok(())
    }

    /// Fetches the present challenge of the gateway in use, for a refill whose challenge is too old or no longer accepted for
    /// signing.
    pub(crate) async fn fetch_challenge(&self) -> Result<Arc<CurrentChallenge>, Outage> {
        let chosen = self.choose().await?;
        self.probe(&chosen).await?;
        let current = chosen.current.lock().clone();
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
        let is_in_use =
            |endpoint: &Arc<Endpoint>| in_use.as_ref().is_some_and(|serving| Arc::ptr_eq(serving, endpoint));
        let used = list.iter().position(is_in_use).unwrap_or(list.len());
        let status = list.iter().enumerate().map(|(place, endpoint)| {
            let health = endpoint.health.lock();
            let is_in_use = place == used;
            let next = health.next_probe(now).map(|next| next.saturating_duration_since(now).as_secs());
            let state = match health.outage() {
                Some(outage) if place > used => format!(
                    "was away at its last probe: {outage}; the next probe is when those before it are away"
                ),
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

    /// Records a failure of the gateway rather than of a request.
    pub(crate) fn fail(&self, endpoint: &Endpoint, outage: Outage, was_probe: bool) {
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

    /// Passes the challenge of the gateway in use to the supply, publishes readiness, and wakes the waiting tasks.
    fn settle(&self) {
        let settling = self.settling.lock();
        let in_use = self.serving().or_else(|| self.list.load().first().cloned());
        let current = in_use.as_ref().and_then(|endpoint| endpoint.current.lock().clone());
        if let (Some(current), Some(endpoint)) = (current, in_use) {
            let is_taken = self.may_sign(&current).is_ok();
            self.supply.adopt(current, self.older(&endpoint), is_taken);
        }
        drop(settling);
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
            // Doubted, or never probed: the probe that is due will set the state.
            (None, true) => {}
        }
    }
}

#[cfg(test)]
mod tests;
