//! Hosts of our own configurations, looked up by the system's resolver: its name servers, search domains, files and modules.

use crate::dial::{connect_found, from_any};
use crate::{Families, RESOLUTION_DELAY};
use dns_lookup::{AddrFamily, AddrInfoHints, SockType, getaddrinfo};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

/// Time for which a result serves every attempt: several connections to one host begin with one lookup.
const FRESH: Duration = Duration::from_secs(8);

/// The lookups of one host, of which at most one of each kind is in progress.
#[derive(Clone, Debug)]
pub struct Lookup(Arc<Questions>);

#[derive(Debug)]
struct Questions {
    /// Both families, as other programs query. Files answer this query for a host that they list with one family only, while a
    /// query for the other family would go to a name server, which may mean another host.
    both: Shared,
    /// One family, for the case that the other one keeps the answer from arriving.
    v6: Shared,
    v4: Shared,
}

impl Lookup {
    /// Creates lookups whose late results wait this long for the next attempt. It must be longer than the pause between two
    /// attempts, and so short that the host does not move within it.
    pub fn keeping(keeps: Duration) -> Self {
        let [both, v6, v4] = [(); 3].map(|()| Shared::keeping(keeps));
        Self(Arc::new(Questions { both, v6, v4 }))
    }

    /// Looks up the addresses of a host; a literal address is its own.
    pub fn find(&self, host: &str, port: u16) -> Families<'static, SocketAddr> {
        if let Ok(literal) = host.parse() {
            return Families::known(vec![SocketAddr::new(literal, port)]);
        }
        let (this, host) = (self.clone(), host.to_owned());
        let name = host.clone();
        let both = self.0.both.ask(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) });
        let v4 = this.clone().family(AddrFamily::Inet, host.clone(), port, both.clone());
        Families::asked(RESOLUTION_DELAY, this.family(AddrFamily::Inet6, host, port, both), v4)
    }

    /// Connects to a host. The caller limits the time to `limit`. Shortly before the limit, if only the answer for the other
    /// family is awaited, the error of the addresses tried so far is returned.
    ///
    /// # Errors
    /// Those of the resolver, and of [`connect_found`].
    pub async fn connect(&self, host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
        let deadline = Instant::now() + limit * 9 / 10;
        let mut families = self.find(host, port);
        let Some(first) = families.first(|found| Some(found.to_vec())).await else {
            return Err(families.error());
        };
        connect_found(from_any(first), families, deadline, from_any).await
    }

    /// Returns the addresses of one family, from the answer for both if it arrives soon.
    async fn family(
        self,
        family: AddrFamily,
        host: String,
        port: u16,
        mut both: Coming,
    ) -> io::Result<Vec<SocketAddr>> {
        let is_v6 = family == AddrFamily::Inet6;
        let of_family = |found: io::Result<Vec<SocketAddr>>| -> io::Result<Vec<SocketAddr>> {
            Ok(found?.into_iter().filter(|address| address.is_ipv6() == is_v6).collect())
        };
        if let Ok(found) = timeout(RESOLUTION_DELAY, both.answer()).await {
            return of_family(found);
        }
        let question = if is_v6 { &self.0.v6 } else { &self.0.v4 };
        let mut alone = question.ask(ask(family, host, port));
        tokio::select! {
            biased;
            found = both.answer() => return of_family(found),
            found = alone.answer() => if let Ok(found) = found {
                return Ok(found);
            },
        }
        of_family(both.answer().await)
    }
}

async fn ask(family: AddrFamily, host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let hints = AddrInfoHints {
        address: family.into(),
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    let asking = spawn_blocking(move || {
        getaddrinfo(Some(&host), None, Some(hints))?
            .map(|found| Ok(found?.sockaddr))
            .collect::<io::Result<Vec<_>>>()
    });
    let mut found = asking.await.map_err(io::Error::other)??;
    found.iter_mut().for_each(|address| address.set_port(port));
    Ok(found)
}

/// The lookups of any hosts. It holds no host for longer than the host's lookup runs, or its result is kept.
#[derive(Debug)]
pub struct Lookups {
    keeps: Duration,
    by_host: Mutex<HashMap<String, Lookup>>,
}

impl Lookups {
    /// Creates lookups as [`Lookup::keeping`] does.
    pub fn keeping(keeps: Duration) -> Self {
        Self { keeps, by_host: Mutex::default() }
    }

    /// Looks up a host as [`Lookup::find`] does.
    pub fn find(&self, host: &str, port: u16) -> Families<'static, SocketAddr> {
        self.of(host).find(host, port)
    }

    fn of(&self, host: &str) -> Lookup {
        let mut by_host = self.by_host.lock();
        // An attempt holds another reference.
        by_host.retain(|_, lookup| Arc::strong_count(&lookup.0) > 1 || lookup.0.is_of_use());
        by_host.entry(host.to_owned()).or_insert_with(|| Lookup::keeping(self.keeps)).clone()
    }
}

impl Questions {
    fn is_of_use(&self) -> bool {
        [&self.both, &self.v6, &self.v4].into_iter().any(Shared::is_of_use)
    }
}

/// One query to the system's resolver, of which at most one is in progress. Its answer outlives the attempt that needed it.
///
/// The system's resolver may take longer than an attempt to connect: while the first of two name servers is down, it waits five
/// seconds for it on each query, and with search domains several times five. If a lookup ended with the attempt that began it, no
/// attempt would ever succeed. So the lookup continues, and the next attempt takes its result.
///
/// A result serves attempts for [`FRESH`] from the first one on.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Time that a result waits for the next attempt, if none waited for it.
    keeps: Duration,
    last: Mutex<Option<Last>>,
}

/// The last lookup.
#[derive(Debug)]
struct Last {
    answer: watch::Receiver<Option<Found>>,
    /// The time at which an attempt first took the result after it came.
    taken: Option<Instant>,
}

/// The addresses of a host, and the time of the answer.
#[derive(Clone, Debug)]
struct Found {
    addresses: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
    at: Instant,
    /// `true` if an attempt waited for them.
    is_taken: bool,
}

/// A pending answer. Each clone receives it.
#[derive(Clone, Debug)]
pub(crate) struct Coming(watch::Receiver<Option<Found>>);

impl Coming {
    /// Waits for the answer. Cancel safe.
    pub(crate) async fn answer(&mut self) -> io::Result<Vec<SocketAddr>> {
        // The lookup's runtime may end before the lookup, when the process stops.
        let found = self.0.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        let addresses = found.map_or_else(|| Ok(Vec::new()), |found| found.addresses);
        addresses.map_err(|(kind, text)| io::Error::new(kind, text))
    }
}

impl Shared {
    pub(crate) const fn keeping(keeps: Duration) -> Self {
        Self { keeps, last: Mutex::new(None) }
    }

    /// Returns the answer of the lookup in progress, or a result that still serves; otherwise that of `begin`.
    pub(crate) fn ask(
        &self,
        begin: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> Coming {
        let mut last = self.last.lock();
        if let Some(last) = last.as_mut().filter(|last| last.is_running() || self.serves(last)) {
            if !last.is_running() {
                last.taken.get_or_insert_with(Instant::now);
            }
            return Coming(last.answer.clone());
        }
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let addresses = begin.await.map_err(|error| (error.kind(), error.to_string()));
            let is_taken = sender.receiver_count() > 1; // one is `last`
            sender.send_replace(Some(Found { addresses, at: Instant::now(), is_taken }));
        });
        Coming(last.insert(Last { answer: receiver, taken: None }).answer.clone())
    }

    /// `true` if the next attempt takes the result. An error serves none: it may be over by then.
    fn serves(&self, last: &Last) -> bool {
        let found = last.answer.borrow();
        let Some(found) = found.as_ref().filter(|found| found.addresses.is_ok()) else { return false };
        let taken = if found.is_taken { Some(found.at) } else { last.taken };
        match taken {
            Some(taken) => taken.elapsed() < self.keeps.min(FRESH),
            None => found.at.elapsed() < self.keeps,
        }
    }

    /// `true` if the next attempt will take an answer of this query.
    pub(crate) fn is_of_use(&self) -> bool {
        self.last.lock().as_ref().is_some_and(|last| last.is_running() || self.serves(last))
    }
}

impl Last {
    fn is_running(&self) -> bool {
        self.answer.borrow().is_none() && self.answer.has_changed().is_ok() // the sender exists
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::time::sleep;

    const KEPT: Duration = Duration::from_secs(2);
    const ATTEMPT: Duration = Duration::from_secs(1);

    /// Returns `found` after this time.
    async fn after(time: Duration, found: &[&str]) -> io::Result<Vec<SocketAddr>> {
        sleep(time).await;
        Ok(found.iter().map(|address| address.parse().unwrap()).collect())
    }

    #[tokio::test]
    async fn literal_addresses_need_no_lookup() {
        let lookup = Lookup::keeping(KEPT);
        assert_eq!(lookup.find("::1", 7).found(), ["[::1]:7".parse().unwrap()]);
        assert!(!lookup.0.is_of_use());
    }

    #[tokio::test]
    async fn one_family_is_asked_for_by_itself() {
        for (family, expected) in [(AddrFamily::Inet, "127.0.0.1:7"), (AddrFamily::Inet6, "[::1]:7")] {
            let found =
                ask(family, if expected.starts_with('[') { "::1" } else { "127.0.0.1" }.into(), 7).await;
            assert_eq!(found.unwrap(), [expected.parse().unwrap()]);
        }
        for (family, other) in [(AddrFamily::Inet, "::1"), (AddrFamily::Inet6, "127.0.0.1")] {
            assert!(ask(family, other.into(), 7).await.is_err(), "{other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_that_is_answered_does_not_wait_for_the_answer_for_both() {
        const BOTH: [&str; 2] = ["[::1]:1", "127.0.0.1:1"];
        let (soon, late) = (Duration::from_millis(9), Duration::from_secs(10));
        let failed = || Err(io::ErrorKind::NotFound.into());
        for (both, alone, fails, expected) in [
            (soon, late, false, ("127.0.0.1:1", 9)),
            (late, soon, false, ("127.0.0.2:1", 59)),
            (late, soon, true, ("127.0.0.1:1", 10_000)),
            (late, 2 * late, false, ("127.0.0.1:1", 10_000)),
        ] {
            let (lookup, began) = (Lookup::keeping(KEPT), Instant::now());
            let coming = lookup.0.both.ask(after(both, &BOTH));
            lookup.0.v4.ask(async move {
                let found = after(RESOLUTION_DELAY + alone, &["127.0.0.2:1"]).await;
                if fails { failed() } else { found }
            });
            let found =
                lookup.family(AddrFamily::Inet, "not-asked-for.invalid".into(), 1, coming).await.unwrap();
            assert_eq!((found[0].to_string().as_str(), began.elapsed().as_millis()), expected);
            assert_eq!(found.len(), 1, "those of the other family are the other question's");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_are_forgotten_when_nothing_of_theirs_is_kept() {
        let lookups = Lookups::keeping(KEPT);
        for host in ["one", "two"] {
            let mut coming = lookups.of(host).0.both.ask(after(KEPT, &["127.0.0.1:1"]));
            timeout(KEPT / 2, coming.answer()).await.unwrap_err();
        }
        sleep(KEPT / 2).await;
        let mut kept = lookups.of("one").0.both.ask(after(KEPT, &[]));
        assert_eq!(kept.answer().await.unwrap().len(), 1);
        sleep(KEPT * 2).await;
        let _held = lookups.of("three");
        assert_eq!(lookups.by_host.lock().keys().collect::<Vec<_>>(), ["three"]);
    }

    /// Takes as long as five attempts. The port counts the lookups.
    fn slow(begun: &Arc<AtomicUsize>) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static {
        let begun = Arc::clone(begun);
        async move {
            let port = u16::try_from(begun.fetch_add(1, SeqCst)).unwrap();
            sleep(5 * ATTEMPT).await;
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_longer_than_an_attempt_serves_a_later_one_and_then_no_other() {
        let (shared, begun) = (Shared::keeping(KEPT), Arc::default());
        let mut attempts = 0;
        let found = loop {
            attempts += 1;
            if let Ok(found) = timeout(ATTEMPT, shared.ask(slow(&begun)).answer()).await {
                break found.unwrap();
            }
            sleep(ATTEMPT / 3).await;
        };
        assert_eq!((attempts, begun.load(SeqCst), found[0].port()), (4, 1, 0));
        sleep(FRESH).await;
        assert_eq!(shared.ask(slow(&begun)).answer().await.unwrap()[0].port(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_comes_between_two_attempts_serves_the_next_one_and_those_soon_after_it() {
        for (pause, port) in [(KEPT / 2, 0), (KEPT * 2, 1)] {
            let (shared, begun) = (Shared::keeping(KEPT), Arc::default());
            timeout(ATTEMPT, shared.ask(slow(&begun)).answer()).await.unwrap_err();
            sleep(4 * ATTEMPT + pause).await;
            for _ in 0..2 {
                assert_eq!(shared.ask(slow(&begun)).answer().await.unwrap()[0].port(), port);
                sleep(FRESH.min(KEPT) / 2).await;
            }
            assert_eq!(shared.ask(slow(&begun)).answer().await.unwrap()[0].port(), port + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_at_one_time_share_a_lookup() {
        let (shared, begun) = (Shared::keeping(KEPT), Arc::default());
        let [mut one, mut other] = [(); 2].map(|()| shared.ask(slow(&begun)));
        let (one, other) = tokio::join!(one.answer(), other.answer());
        assert_eq!((one.unwrap(), begun.load(SeqCst)), (other.unwrap(), 1));
    }

    /// As the watch of a store, which connects three times to a router, and the connections of eight workers.
    #[tokio::test(start_paused = true)]
    async fn a_result_serves_every_attempt_for_a_while() {
        for (keeps, after, begins) in [
            (2 * FRESH, FRESH - Duration::from_millis(1), 1),
            (2 * FRESH, FRESH, 2),
            (KEPT, KEPT, 2),
            (Duration::ZERO, Duration::ZERO, 2),
        ] {
            let (shared, begun) = (Shared::keeping(keeps), Arc::default());
            shared.ask(slow(&begun)).answer().await.unwrap();
            sleep(after).await;
            for _ in 0..2 {
                let _ = timeout(ATTEMPT, shared.ask(slow(&begun)).answer()).await;
            }
            assert_eq!(begun.load(SeqCst), begins, "{keeps:?} {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_reported_and_not_kept() {
        let shared = Shared::keeping(KEPT);
        let failing = || async {
            sleep(5 * ATTEMPT).await;
            Err(io::Error::new(io::ErrorKind::NotFound, "no such host"))
        };
        let error = shared.ask(failing()).answer().await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no such host"));
        timeout(ATTEMPT, shared.ask(failing()).answer()).await.unwrap_err();
        sleep(5 * ATTEMPT).await;
        assert!(shared.ask(async { Ok(Vec::new()) }).answer().await.unwrap().is_empty());
    }

    #[test]
    fn a_lookup_whose_runtime_ended_is_begun_again() {
        let (shared, begun) = (Shared::keeping(KEPT), Arc::default());
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
        };
        let given_up =
            runtime().block_on(async { timeout(ATTEMPT, shared.ask(slow(&begun)).answer()).await });
        assert!(given_up.is_err());
        assert!(runtime().block_on(async { shared.ask(slow(&begun)).answer().await }).is_ok());
        assert_eq!(begun.load(SeqCst), 2);
    }
}
