//! A URL of a next hop: its health, as observed by tunnels and checks, its counters, and the choice among several.

use crate::config::{Balance, HopKind, HopTls, HopUrl};
use crate::observe::catalogue::NEXT_HOP_FAILURES;
use aws_lc_rs::digest::{Context, SHA256};
use metrics::counter;
use parking_lot::Mutex;
use postern_daemon::backoff::{Backoff, jittered};
use postern_proxy::target::Host;
use postern_telemetry::catalogue::ADDRESS;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Time for which a next hop counts as part of a circle after it refused a tunnel, unless it opens another one.
const LOOP_STANDS: Duration = Duration::from_secs(600);
/// Time for which no UDP is requested after an answer that showed that the server knows none. The next request then spends a token.
const UDP_STANDS: Duration = Duration::from_secs(600);
/// Pauses between checks of a URL that is down.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };

pub(crate) struct Member {
    pub(crate) url: HopUrl,
    /// `None` for a URL without TLS.
    pub(super) tls: Option<HopTls>,
    /// Tunnels that are open or being opened.
    pub(super) tunnels: AtomicUsize,
    pub(super) health: Mutex<Health>,
}

/// Health of a URL. No I/O; time and jitter are arguments.
#[derive(Debug)]
pub(super) struct Health {
    failures: u32,
    down: Option<String>,
    check_at: Instant,
    is_checking: bool,
    /// Time of the last answer of any kind.
    heard: Instant,
    /// Time of the last refusal of a tunnel that would come back.
    looped: Option<Instant>,
    /// `true` if the last check found that every tunnel through the URL would come back.
    pub(super) is_in_circle: bool,
    /// `true` if a tunnel was opened since the last check.
    has_opened: bool,
    /// `true` if the last connection carried no UDP.
    pub(super) lacks_udp: bool,
    /// `true` if the URL has carried UDP since it was last down.
    has_carried_udp: bool,
    /// Time of the last request for UDP whose answer showed that the server knows none.
    refused_udp: Option<Instant>,
}

impl Member {
    pub(super) fn new(url: &HopUrl, tls: Option<&HopTls>, has_udp: bool) -> Self {
        let lacks_udp = match url.kind {
            HopKind::Socks5 => true,
            HopKind::Http => !has_udp,
            HopKind::Https => false, // until a connection shows it
        };
        Self {
            url: url.clone(),
            tls: tls.filter(|_| url.kind == HopKind::Https).cloned(),
            tunnels: AtomicUsize::default(),
            health: Mutex::new(Health { lacks_udp, ..Health::new(Instant::now()) }),
        }
    }

    /// Returns `false` if UDP cannot be requested through the URL, as far as is known.
    pub(crate) fn may_carry_udp(&self) -> bool {
        let health = self.health.lock();
        !health.lacks_udp && health.refused_udp.is_none_or(|at| at.elapsed() >= UDP_STANDS)
    }

    pub(crate) fn carried_udp(&self) {
        let health = &mut *self.health.lock();
        (health.has_carried_udp, health.refused_udp) = (true, None);
    }

    /// Returns `true` if the URL has carried UDP since it was last down: a path that it does not know is then one target's.
    pub(crate) fn has_carried_udp(&self) -> bool {
        self.health.lock().has_carried_udp
    }

    /// Records an answer of a server that knows no UDP, although its SETTINGS or the operator promised it.
    pub(crate) fn refused_udp(&self) {
        let health = &mut *self.health.lock();
        (health.has_carried_udp, health.refused_udp) = (false, Some(Instant::now()));
    }

    pub(super) fn choice(&self, now: Instant) -> Choice<'_> {
        let health = self.health.lock();
        let down_until = health.down.as_ref().map(|_| health.check_at.max(now));
        let tunnels = self.tunnels.load(Ordering::Relaxed);
        Choice { url: &self.url.text, tunnels, down_until }
    }

    /// Returns the reason why the URL is down; `None` if it is up.
    pub(super) fn down(&self) -> Option<String> {
        self.health.lock().down.clone()
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Through {
        self.tunnels.fetch_add(1, Ordering::Relaxed);
        Through(Arc::clone(self))
    }

    pub(crate) fn opened(&self) {
        self.heard(|health| (health.looped, health.has_opened) = (None, true));
    }

    /// Records the refusal of a tunnel that would come back to a gateway that it has passed.
    pub(crate) fn looped(&self) {
        self.health.lock().looped = Some(Instant::now());
    }

    /// Returns `true` if the last check found a circle, or if a tunnel was refused as a loop recently and none was opened since.
    pub(super) fn is_loop(&self) -> bool {
        let health = self.health.lock();
        health.is_in_circle || health.looped.is_some_and(|at| at.elapsed() < LOOP_STANDS)
    }

    /// Returns `true` if the next hop is shown a certificate, as gateways are, and other proxies hardly.
    pub(super) fn demands_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.own.is_some())
    }

    /// Returns `true` if a check must look for a circle. Only next hops that demand a certificate are gateways, and one that has
    /// opened a tunnel since the last check leads in no circle, unless the last check found one. Resets the record of opened
    /// tunnels.
    pub(super) fn may_lead_in_a_circle(&self) -> bool {
        let health = &mut *self.health.lock();
        let has_opened = std::mem::take(&mut health.has_opened);
        self.demands_certificate() && (!has_opened || health.is_in_circle)
    }

    pub(crate) fn served(&self) {
        self.heard(|_| {});
    }

    pub(super) fn checked(&self) {
        self.heard(|health| health.is_checking = false);
    }

    fn heard(&self, change: impl FnOnce(&mut Health)) {
        let was_down = {
            let health = &mut *self.health.lock();
            change(health);
            health.served(Instant::now())
        };
        if was_down {
            tracing::info!("the next hop {} is up again", self.url);
        }
    }

    /// Records a tunnel that failed through the URL's fault.
    pub(crate) fn failed(&self, reason: &str) {
        counter!(NEXT_HOP_FAILURES, ADDRESS.name => self.url.text.to_string()).increment(1);
        self.found(reason, false);
    }

    /// Records a missing answer since `began`, as a failure only if no other tunnel got an answer either: the target may be at
    /// fault.
    pub(crate) fn was_silent(&self, began: Instant) {
        let is_silent = self.health.lock().silent_since(began);
        if is_silent {
            self.failed("it gave no answer in time, nor to any other request since");
        }
    }

    pub(super) fn found(&self, reason: &str, is_check: bool) {
        let is_news = self.health.lock().failed(reason.to_owned(), is_check, Instant::now(), rand::random());
        if is_news {
            tracing::warn!("the next hop {} is down, and used only where all others are: {reason}", self.url);
        }
    }
}

impl Health {
    /// Creates the health of an unused URL: up, with a check due immediately.
    fn new(now: Instant) -> Self {
        Self {
            failures: 0,
            down: None,
            check_at: now,
            is_checking: false,
            heard: now,
            looped: None,
            is_in_circle: false,
            has_opened: false,
            lacks_udp: false,
            has_carried_udp: false,
            refused_udp: None,
        }
    }

    /// Returns `true` if the URL has answered nothing since `began`.
    fn silent_since(&self, began: Instant) -> bool {
        self.heard < began
    }

    /// Records a success; returns `true` if the URL was down.
    fn served(&mut self, now: Instant) -> bool {
        (self.failures, self.heard) = (0, now);
        self.down.take().is_some()
    }

    /// Begins a check if one is due; the next one is due after `every`, or earlier if this one fails.
    pub(super) fn begin_check(&mut self, every: Duration, now: Instant) -> bool {
        let begins = !self.is_checking && self.check_at <= now;
        if begins {
            (self.is_checking, self.check_at) = (true, now + every);
        }
        begins
    }

    /// Records a failed tunnel or check; returns `true` if the URL was up. `jitter` as in [`jittered`].
    fn failed(&mut self, reason: String, is_check: bool, now: Instant, jitter: f64) -> bool {
        if is_check {
            self.is_checking = false;
        } else if self.down.is_some() {
            return false; // several tunnels can fail at once; only checks count from now on
        }
        self.has_carried_udp = false; // another program may come up there
        self.check_at = now + jittered(BACKOFF.pause(self.failures), Duration::ZERO, jitter);
        self.failures = self.failures.saturating_add(1);
        self.down.replace(reason).is_none()
    }
}

pub(crate) struct Through(Arc<Member>);

impl Drop for Through {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) url: &'a str,
    /// Tunnels that are open or being opened.
    pub(super) tunnels: usize,
    /// Time of the next attempt; `None` if the URL is up.
    pub(super) down_until: Option<Instant>,
}

impl Choice<'_> {
    /// Returns the score of rendezvous hashing: the URL with the highest score takes the host. A change of the list
    /// moves only the hosts of added or removed URLs.
    fn score(&self, host: &str) -> u64 {
        let mut digest = Context::new(&SHA256);
        // A prefix of fixed length, and a separator that neither part contains, make the text unambiguous.
        for part in ["postern next hop v1\n", self.url, "\n", host] {
            digest.update(part.as_bytes());
        }
        let digest = digest.finish();
        digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Returns the indices of `choices` in the order of attempts. URLs that are down come last, the one with the earliest next
/// attempt first.
pub(super) fn order(
    balance: Balance,
    choices: &[Choice<'_>],
    target: &Host,
    mut random: impl FnMut() -> u32,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    match balance {
        Balance::Load => {
            // Fisher-Yates shuffle.
            for last in (1..order.len()).rev() {
                let chosen = random() as usize % (last + 1);
                order.swap(last, chosen);
            }
        }
        Balance::Target => {
            let host = match target {
                Host::Name(name) => name.to_ascii_lowercase(),
                Host::Address(address) => address.to_canonical().to_string(),
            };
            order.sort_by_cached_key(|index| Reverse(choices[*index].score(&host)));
        }
    }
    order.sort_by_key(|index| choices[*index].down_until); // stable, and `None` sorts first
    if let (Balance::Load, [first, second, ..]) = (balance, &mut order[..]) {
        let [one, other] = [&choices[*first], &choices[*second]];
        if one.down_until.is_none() && other.down_until.is_none() && other.tunnels < one.tunnels {
            std::mem::swap(first, second);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn one_that_failed_is_checked_sooner_and_ever_less_often() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(health.down.is_none() && health.check_at == now, "a new one is up, and checked at once");
        assert!(health.begin_check(EVERY, now) && !health.begin_check(EVERY, now + EVERY), "one at a time");
        health.is_checking = false;
        assert_eq!(health.check_at, now + EVERY);
        let mut failed = |is_check| health.failed("it hung up".to_owned(), is_check, now, 1.0);
        assert!(failed(false), "news");
        assert!(!failed(false) && !failed(true), "no news");
        assert_eq!(health.down.as_deref(), Some("it hung up"));
        assert_eq!(health.check_at, now + 2 * BACKOFF.first, "tunnels that fail together are one failure");
        for _ in 0..20 {
            health.failed("it hung up".to_owned(), true, now, 1.0);
        }
        assert_eq!(health.check_at, now + BACKOFF.longest);
        assert!(health.served(now) && !health.served(now));
        assert!(health.down.is_none());
        health.failed("again".to_owned(), true, now, 1.0);
        assert_eq!(health.check_at, now + BACKOFF.first);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_answer() {
        let now = Instant::now();
        let mut health = Health::new(now);
        assert!(health.silent_since(now + EVERY));
        health.served(now + 2 * EVERY);
        assert!(!health.silent_since(now + EVERY));
    }

    fn choice(url: &str) -> Choice<'_> {
        Choice { url, tunnels: 0, down_until: None }
    }

    fn host(number: usize) -> Host {
        Host::Name(format!("host-{number}.example").into())
    }

    #[test]
    fn of_two_the_one_with_fewer_tunnels_takes_the_next() {
        let first = |choices: &[Choice<'_>]| {
            let mut counts = vec![0_usize; choices.len()];
            for seed in 0..6_000_u32 {
                let mut state = seed.wrapping_mul(2_654_435_761);
                let random = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 8
                };
                counts[order(Balance::Load, choices, &host(0), random)[0]] += 1;
            }
            counts
        };
        let busy = Choice { tunnels: 9, ..choice("b") };
        let counts = first(&[choice("a"), busy, choice("c")]);
        assert_eq!(counts[1], 0, "with two others the busiest is never the less loaded of two");
        assert!(counts[0].abs_diff(counts[2]) < 600, "{counts:?}");
        assert_eq!(first(&[Choice { tunnels: 1, ..choice("a") }, choice("b")]), [0, 6_000]);
    }

    #[test]
    fn each_host_has_its_url_and_keeps_it_when_others_come_and_go() {
        let urls = ["https://a:1", "https://b:1", "https://c:1"];
        let all: Vec<_> = urls.map(choice).to_vec();
        let takes = |choices: &[Choice<'_>], number| {
            let first = order(Balance::Target, choices, &host(number), || panic!("no chance in it"))[0];
            choices[first].url.to_owned()
        };
        let of_all: Vec<String> = (0..3_000).map(|number| takes(&all, number)).collect();
        for url in urls {
            let share = of_all.iter().filter(|taken| *taken == url).count();
            assert!((850..1_150).contains(&share), "{url} {share}");
        }
        let without_b = [all[0], all[2]];
        for (number, before) in of_all.iter().enumerate().filter(|(_, before)| *before != "https://b:1") {
            assert_eq!(takes(&without_b, number), *before);
        }
        let upper = Host::Name("HOST-7.example".into());
        let of_upper = order(Balance::Target, &all, &upper, || 0);
        assert_eq!(of_upper, order(Balance::Target, &all, &host(7), || 0));
    }

    /// Gateways of other versions and machines must make the same choice.
    #[test]
    fn the_choice_is_a_fixed_one() {
        let all = ["https://a:1", "https://b:1", "https://c:1"].map(choice);
        let taken: Vec<usize> =
            (0..12).map(|number| order(Balance::Target, &all, &host(number), || 0)[0]).collect();
        assert_eq!(taken, [0, 1, 1, 1, 0, 0, 0, 1, 2, 0, 2, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_down_comes_last_and_the_next_to_be_tried_before_the_others() {
        let now = Instant::now();
        let down = |url, seconds| {
            let down_until = Some(now + Duration::from_secs(seconds));
            Choice { down_until, ..choice(url) }
        };
        let choices = [down("a", 5), down("b", 1), choice("c"), Choice { tunnels: 100, ..choice("d") }];
        for balance in [Balance::Load, Balance::Target] {
            let order = order(balance, &choices, &host(1), || 7);
            assert_eq!(order[2..], [1, 0], "{balance:?}");
        }
    }
}
