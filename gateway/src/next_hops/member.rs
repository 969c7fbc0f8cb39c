//! One URL of a next hop.

use super::choose::Choice;
use super::health::{Finder, Health};
use crate::config::{HopKind, HopTls, HopUrl};
use parking_lot::Mutex;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// For how long it is said that a next hop leads in a circle, if no other tunnel shows it meanwhile.
const LOOP_STANDS: Duration = Duration::from_secs(600);

/// One URL of a next hop.
pub(crate) struct Member {
    pub(crate) url: HopUrl,
    text: String,
    weight: u16,
    /// How it is spoken to over TLS, or why it cannot be; `None` where it is not.
    tls: Option<Result<HopTls, String>>,
    tunnels: AtomicUsize,
    failures: AtomicU64,
    health: Mutex<Health>,
    /// When it last refused a tunnel that would come back.
    looped: Mutex<Option<Instant>>,
    /// The last check found that it leads in a circle.
    is_in_circle: AtomicBool,
    /// It has opened a tunnel since the last check.
    has_opened: AtomicBool,
}

impl Member {
    pub(super) fn new(
        url: &HopUrl,
        weight: Option<NonZeroU16>,
        tls: &Result<Option<HopTls>, String>,
    ) -> Self {
        let tls = (url.kind() == HopKind::Https).then(|| tls.clone().transpose()).flatten();
        Self {
            url: url.clone(),
            text: url.to_string(),
            weight: weight.map_or(1, NonZeroU16::get),
            tls,
            tunnels: AtomicUsize::default(),
            failures: AtomicU64::default(),
            health: Mutex::new(Health::new(Instant::now())),
            looped: Mutex::default(),
            is_in_circle: AtomicBool::default(),
            has_opened: AtomicBool::default(),
        }
    }

    /// Its URL, for metrics.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// How it is spoken to over TLS; `None` where it is not.
    pub(crate) const fn tls(&self) -> Option<&Result<HopTls, String>> {
        self.tls.as_ref()
    }

    pub(super) fn choice(&self, now: Instant) -> Choice<'_> {
        let health = self.health.lock();
        let down_until = health.down().map(|_| health.check_at().max(now));
        Choice { url: &self.text, weight: self.weight, tunnels: self.tunnels(), down_until }
    }

    /// Why it is down.
    pub(crate) fn down(&self) -> Option<String> {
        self.health.lock().down().map(str::to_owned)
    }

    /// Counts a tunnel through it for as long as the value lives.
    pub(crate) fn begin(self: &Arc<Self>) -> Through {
        self.tunnels.fetch_add(1, Ordering::Relaxed);
        Through(Arc::clone(self))
    }

    /// Tunnels through it that are open, or being opened.
    pub(super) fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// Tunnels that failed by its fault, ever.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// It opened a tunnel.
    pub(crate) fn opened(&self) {
        *self.looped.lock() = None;
        self.has_opened.store(true, Ordering::Relaxed);
        self.served();
    }

    /// It refused a tunnel that would come back to a gateway that it has passed.
    pub(crate) fn looped(&self) {
        *self.looped.lock() = Some(Instant::now());
    }

    /// Whether it did so lately, and has opened no tunnel since.
    pub(super) fn is_loop(&self) -> bool {
        self.is_in_circle() || self.looped.lock().is_some_and(|at| at.elapsed() < LOOP_STANDS)
    }

    /// Whether every tunnel through it would come back.
    pub(super) fn is_in_circle(&self) -> bool {
        self.is_in_circle.load(Ordering::Relaxed)
    }

    /// Whether a check is to find that out: of another gateway, which demands a certificate, unless it has opened a tunnel since the
    /// last check.
    pub(super) fn may_lead_in_a_circle(&self) -> bool {
        let demands_certificate = matches!(&self.tls, Some(Ok(tls)) if tls.own.is_some());
        let has_opened = self.has_opened.swap(false, Ordering::Relaxed);
        demands_certificate && (!has_opened || self.is_in_circle())
    }

    /// A check has found it out.
    pub(super) fn leads_in_a_circle(&self, it_does: bool) {
        self.is_in_circle.store(it_does, Ordering::Relaxed);
    }

    /// It opened a tunnel, or answered otherwise.
    pub(crate) fn served(&self) {
        if self.health.lock().served(Instant::now()) {
            tracing::info!("the next hop {} is up again", self.url);
        }
    }

    /// A tunnel was not opened, by its fault.
    pub(crate) fn failed(&self, reason: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.found(reason, Finder::Tunnel);
    }

    /// It gave no answer since `began`. That may be the target's fault, unless others had no answer, either.
    pub(crate) fn was_silent(&self, began: Instant) {
        if self.health.lock().silent_since(began) {
            self.failed("it gave no answer in time, and no other one meanwhile");
        }
    }

    /// A check of it succeeded.
    pub(super) fn checked(&self) {
        self.health.lock().end_check();
        self.served();
    }

    pub(super) fn found(&self, reason: &str, by: Finder) {
        let is_news = {
            let mut health = self.health.lock();
            if by == Finder::Check {
                health.end_check();
            }
            health.failed(reason.to_owned(), by, Instant::now(), rand::random())
        };
        if is_news {
            tracing::warn!("the next hop {} is down, and used only where all others are: {reason}", self.url);
        }
    }

    /// Whether a check is due; the next one then follows after `every`.
    pub(super) fn begin_check(&self, every: Duration, now: Instant) -> bool {
        self.health.lock().begin_check(every, now)
    }
}

/// A tunnel through a next hop, as far as it is counted.
pub(crate) struct Through(Arc<Member>);

impl Drop for Through {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}
