//! Renewal with an authority in memory, by a paused clock.

mod fake;

use super::renewal::keep;
use super::{ACCOUNT, CERTIFICATE};
use crate::drain::Shutdown;
use crate::readiness::Readiness;
use crate::tls::identity::{Identity, Report};
use fake::{Fake, Fault, Script};
use rustls_pki_types::CertificateDer;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: i64 = 86_400;
/// 10 of 90 days are left: the renewal is due immediately.
const DUE: [i64; 2] = [-80 * DAY, 10 * DAY];

type Change = fn(&mut Script);

struct Server {
    home: TempDir,
    authority: Fake,
    identity: Arc<Identity>,
    readiness: Readiness,
    shutdown: Shutdown,
}

impl Server {
    /// Starts with a certificate of this period, in seconds from now.
    fn start(authority: &Fake, valid: Option<[i64; 2]>) -> Self {
        let home = TempDir::new().unwrap();
        let file = home.path().join("state").join(CERTIFICATE);
        let identity = Arc::new(Identity::new(file.clone(), file));
        let server = Self {
            home,
            authority: authority.clone(),
            identity,
            readiness: Readiness::new(),
            shutdown: Shutdown::new(),
        };
        if let Some(valid) = valid {
            authority.write(&server.state(), valid);
            server.identity.read_again().unwrap();
        }
        let report = Report::new(server.readiness.gate("certificate"), |_| {});
        let (reached, reloads) = (authority.reached_from(&server.state()), server.shutdown.reloads());
        let identity = Arc::clone(&server.identity);
        tokio::spawn(async move { keep(&identity, &reached, report, reloads).await });
        server
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.state().join(name)).unwrap_or_default()
    }

    fn shown(&self) -> Option<CertificateDer<'static>> {
        self.identity.shown()?.own().cloned()
    }

    /// Waits for a certificate other than `before`.
    async fn gets_another(&self, before: Option<&CertificateDer<'_>>) {
        let start = Instant::now();
        while self.shown().as_ref() == before {
            assert!(start.elapsed() < 48 * HOUR, "{:?}", self.readiness.reasons());
            sleep(SECOND / 10).await;
        }
    }

    /// Returns the pauses between the orders so far.
    fn pauses(&self) -> Vec<Duration> {
        let orders = self.authority.requested("/new-order");
        orders.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_ordered_kept_and_shown() {
    let authority = Fake::new();
    let server = Server::start(&authority, None);
    server.gets_another(None).await;
    sleep(SECOND).await;
    assert!(server.file(CERTIFICATE).contains("PRIVATE KEY"));
    assert!(server.file(ACCOUNT).contains("authority.example"));
    assert_eq!(server.readiness.reasons(), Vec::<String>::new());
    sleep(24 * HOUR).await;
    assert_eq!(authority.requested("/new-order").len(), 1, "it is good for months");
}

/// An issued certificate changes nothing before it is checked, and the retry is late, because it counts in the authority's
/// limits.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_does_not_do_leaves_the_old_one_in_use() {
    let wrong: [(&str, Change); 5] = [
        ("names", |script| script.names = vec!["elsewhere.example".to_owned()]),
        ("ended", |script| script.valid = [-2 * DAY, -DAY]),
        ("does not belong to the key", |script| script.has_wrong_key = true),
        ("no certificate", |script| script.chain = Some("nothing".to_owned())),
        ("not PEM", |script| script.chain = Some("-----BEGIN CERTIFICATE-----\n".to_owned())),
    ];
    for (reason, change) in wrong {
        let authority = Fake::new();
        authority.now(change);
        let server = Server::start(&authority, Some(DUE));
        let (kept, shown) = (server.file(CERTIFICATE), server.shown());
        sleep(2 * HOUR).await;
        assert!(kept == server.file(CERTIFICATE), "{reason}: the file is another");
        assert!(shown == server.shown(), "{reason}: another one is shown");
        assert_eq!(server.readiness.degraded().len(), 1, "{reason}");
        let said = server.readiness.degraded().concat();
        assert!(said.contains("failed") && said.contains(reason), "{reason}: {said}");
        assert_eq!(authority.requested("/new-order").len(), 1, "{reason}");
        sleep(24 * HOUR).await;
        let pauses = server.pauses();
        assert!(!pauses.is_empty() && pauses.iter().all(|pause| *pause > 2 * HOUR), "{reason}: {pauses:?}");
    }
}

/// A certificate may have been issued.
#[tokio::test(start_paused = true)]
async fn after_an_order_was_finalized_a_failure_is_followed_by_the_longest_pause() {
    for (path, late) in
        [("/finalize", true), ("/certificate", true), ("/new-order", false), ("/directory", false)]
    {
        let authority = Fake::new();
        authority.now(|script| script.fault = Some((path, Fault::NoAnswer)));
        let _server = Server::start(&authority, Some(DUE));
        sleep(HOUR).await;
        let attempts = authority.requested(path).len();
        assert_eq!(attempts == 1, late, "{path}: {attempts}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt() {
    for path in ["/new-order", "/certificate"] {
        let authority = Fake::new();
        authority.now(|script| script.fault = Some((path, Fault::Panic)));
        let server = Server::start(&authority, None);
        sleep(5 * SECOND).await;
        let said = server.readiness.reasons().concat();
        assert!(said.contains("failed") && said.contains("panicked"), "{path}: {said}");
        authority.now(|script| script.fault = None);
        server.gets_another(None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_question_when_to_renew_does_not_end_renewal() {
    let authority = Fake::new();
    authority.now(|script| script.fault = Some(("/renewal", Fault::Panic)));
    let server = Server::start(&authority, Some(DUE));
    server.gets_another(server.shown().as_ref()).await;
    let asked = authority.requested("/renewal").len();
    sleep(24 * HOUR).await;
    assert!(authority.requested("/renewal").len() > asked);
}

/// Automation reloads every second while the authority fails.
#[tokio::test(start_paused = true)]
async fn reloads_do_not_bring_attempts_closer_together_than_a_minute() {
    let authority = Fake::new();
    authority.now(|script| script.fault = Some(("/new-order", Fault::NoAnswer)));
    let server = Server::start(&authority, None);
    for _ in 0..1_800 {
        sleep(SECOND).await;
        server.shutdown.reload();
    }
    let pauses = server.pauses();
    assert!(pauses.len() > 20, "else a reload lifts the longer pause: {pauses:?}");
    assert!(pauses.iter().all(|pause| *pause >= MINUTE), "{pauses:?}");
}

/// Automation reloads every second while the authority suggests the immediate renewal of each certificate.
#[tokio::test(start_paused = true)]
async fn reloads_do_not_use_up_certificates() {
    let authority = Fake::new();
    authority.now(|script| script.window = Some(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]));
    let server = Server::start(&authority, None);
    for _ in 0..600 {
        sleep(SECOND).await;
        server.shutdown.reload();
    }
    let pauses = server.pauses();
    assert!(!pauses.is_empty() && pauses.iter().all(|pause| *pause >= MINUTE), "{pauses:?}");
    let questions = authority.requested("/renewal").len();
    assert!(questions <= 2 * pauses.len() + 3, "{questions} questions");
}

/// The machine's clock stands still here, so a certificate is due as soon as it is issued.
#[tokio::test(start_paused = true)]
async fn certificates_that_are_due_as_they_come_are_not_ordered_without_a_pause() {
    for (valid, least) in [([-90 * DAY, 20], MINUTE), ([-19, 1], 5 * SECOND), ([-2, 1], 5 * SECOND)] {
        let authority = Fake::new();
        authority.now(|script| script.valid = valid);
        let server = Server::start(&authority, None);
        sleep(10 * MINUTE).await;
        let pauses = server.pauses();
        assert!(pauses.iter().all(|pause| *pause >= least), "{valid:?}: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_authoritys_text_is_cut_to_one_line() {
    let text = format!("a\r\n\u{1b}[31mline\n{}", "long ".repeat(10_000));
    for path in ["/new-order", "/challenge", "/certificate"] {
        let authority = Fake::new();
        authority.now(|script| script.fault = Some((path, Fault::Problem("malformed", text.clone()))));
        let server = Server::start(&authority, None);
        sleep(5 * SECOND).await;
        let said = server.readiness.reasons().concat();
        assert!(said.contains("[31mline long long"), "{path}: {said:.200}");
        assert!(said.len() < 800 && !said.contains(char::is_control), "{path}: {} bytes", said.len());
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_the_authority_does_not_know_is_replaced() {
    let authority = Fake::new();
    let server = Server::start(&authority, None);
    server.gets_another(None).await;
    let account = server.file(ACCOUNT);
    authority.forget_accounts();
    authority.now(|script| script.window = Some(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]));
    server.gets_another(server.shown().as_ref()).await;
    assert_ne!(server.file(ACCOUNT), account);
    assert_eq!(authority.requested("/new-account").len(), 2);
}

/// The authority suggests a renewal, and does not answer the next request for advice.
#[tokio::test(start_paused = true)]
async fn advice_outlives_a_question_that_failed() {
    let authority = Fake::new();
    authority.now(|script| {
        script.window = Some(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]);
        script.valid = [-50 * DAY, 40 * DAY]; // not due without advice
    });
    let server = Server::start(&authority, None);
    server.gets_another(None).await;
    sleep(HOUR / 2).await;
    authority.now(|script| script.fault = Some(("/", Fault::NoAnswer)));
    sleep(5 * HOUR).await;
    let requests = authority.requested("/").len();
    assert!(requests > 8, "it was asked in vain");
    sleep(HOUR).await; // the rest ends before the next request for advice
    assert!(authority.requested("/").len() > requests, "no attempt");
}
