//! The probes: the gateway in use and those before it in the list are asked for their challenge when they are due.

use super::{Endpoint, Gateways};
use crate::hop::connection::fetch_challenge_from;
use crate::hop::health::Outage;
use crate::wallet::challenge::CurrentChallenge;
use crate::wallet::supply::PATIENCE as PATIENCE_FOR_A_TOKEN;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Time limit for a probe, for which no target is dialled.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for a probe through the previous hop, which may have to get a token first.
const PAID_PROBE_TIMEOUT: Duration = PROBE_TIMEOUT.saturating_add(PATIENCE_FOR_A_TOKEN);
/// Duration of a probe after which the next gateway of the list is probed as well.
const HEAD_START: Duration = Duration::from_millis(500);
/// Maximum age of the last answer when readiness is queried; older answers cause a probe.
const NEWS: Duration = Duration::from_secs(5);
/// The same for a gateway whose probes may cost a token.
const PAID_NEWS: Duration = Duration::from_mins(1);

impl Gateways {
    /// Probes gateways that are due, and the one in use when `readiness` is queried, until the state of `shutdown` is *stopped*.
    pub(crate) async fn keep(self: Arc<Self>, readiness: Readiness, shutdown: Shutdown) {
        let work = async {
            // Challenges of an earlier run are used at once, and checked at once.
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

    /// Returns the gateways to probe now, and the time of the next look. Gateways before the one in use are probed so that they
    /// can take over again. With none in use, they are probed one after the other: the next when the previous one is away or
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

    /// Spawns a probe, unless one is under way. The probe is marked as begun before its task starts: otherwise a late task would
    /// send a second probe.
    fn begin_probe(self: &Arc<Self>, endpoint: Arc<Endpoint>, probes: &mut JoinSet<()>) {
        if endpoint.health.lock().begin_probe(Instant::now()) {
            let gateways = self.clone();
            probes.spawn(async move {
                let _probing = Probing { gateways: &gateways, endpoint: &endpoint };
                // The outcome is recorded in the gateway's health.
                let _ = gateways.probe_alone(&endpoint).await;
            });
        }
    }

    /// Probes once. Concurrent callers share the outcome; if the probe is dropped without one, another caller probes.
    pub(super) async fn probe(&self, endpoint: &Endpoint) -> Result<(), Outage> {
        let mut progress = self.progress.subscribe();
        let outcomes = endpoint.health.lock().outcomes;
        loop {
            if endpoint.health.lock().begin_probe(Instant::now()) {
                let _probing = Probing { gateways: self, endpoint };
                return self.probe_alone(endpoint).await;
            }
            while endpoint.health.lock().is_probing {
                if progress.changed().await.is_err() {
                    break; // unreachable: `self` holds the sender
                }
            }
            let health = endpoint.health.lock();
            if health.outcomes != outcomes {
                return health.outage().cloned().map_or(Ok(()), Err);
            }
        }
    }

    async fn probe_alone(&self, endpoint: &Endpoint) -> Result<(), Outage> {
        let Endpoint { gateway, health, .. } = endpoint;
        let url = gateway.url();
        let limit = if gateway.costs_a_token() { PAID_PROBE_TIMEOUT } else { PROBE_TIMEOUT };
        let unread = || Outage::no_answer(format_args!("the challenge of the gateway {url} cannot be read"));
        let unfit = |reason| Outage::no_answer(format_args!("the gateway {url} cannot be used: {reason}"));
        let fetched = timeout(limit, fetch_challenge_from(gateway)).await;
        let learned = fetched
            .unwrap_or_else(|_| Err(Outage::silent(url, limit)))
            .and_then(|challenge| CurrentChallenge::new(challenge).ok_or_else(unread))
            .and_then(|learned| self.take_in(endpoint, learned.into()).map_err(unfit));
        match &learned {
            Ok(()) => {
                if health.lock().served(Instant::now()) {
                    tracing::info!("the gateway {url} serves again");
                }
                self.settle();
            }
            Err(outage) => self.fail(endpoint, outage.clone(), true),
        }
        learned
    }
}

impl Endpoint {
    /// Returns `true` if the last answer is too old to judge the gateway by.
    fn is_old_news(&self) -> bool {
        let news = if self.gateway.costs_a_token() { PAID_NEWS } else { NEWS };
        self.health.lock().heard.is_none_or(|heard| heard.elapsed() >= news)
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
