//! Lookups of names that outlive whoever began them.
//!
//! The system's resolver may take longer than an attempt to connect may: while the first name server of two is down it waits five
//! seconds for it, each time, and with search domains several times five. If a lookup ended with the attempt that began it, no attempt
//! would ever succeed. So it goes on, and the next attempt takes its result.
//!
//! This is no cache: a result that an attempt waited for is not kept, and one that came too late serves one attempt.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The lookups of one host, of which one at most runs.
#[derive(Debug)]
pub struct Lookup {
    /// How long a result waits for the next attempt, if none waited for it.
    keeps: Duration,
    last: Mutex<Option<watch::Receiver<Option<Found>>>>,
}

/// The addresses of a host, and since when they are known.
#[derive(Clone, Debug)]
struct Found {
    addresses: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
    at: Instant,
    /// An attempt waited for them.
    is_taken: bool,
}

impl Lookup {
    /// A result that came too late for every attempt waits this long for the next one. It has to be longer than the pause between
    /// two attempts, and so short that the host has not moved meanwhile.
    #[must_use]
    pub const fn keeping(keeps: Duration) -> Self {
        Self { keeps, last: Mutex::new(None) }
    }

    /// The addresses of a host, of which a literal address has one. Cancel safe.
    ///
    /// # Errors
    /// Those of the resolver.
    pub async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(literal) = host.parse() {
            return Ok(vec![SocketAddr::new(literal, port)]);
        }
        let host = host.to_owned();
        self.join(async move { Ok(tokio::net::lookup_host((host.as_str(), port)).await?.collect()) }).await
    }

    /// What the lookup that runs will find, or one has found too late; else what `begin` finds.
    async fn join(
        &self,
        begin: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut running = self.running(begin);
        // Its runtime may end before it does, when the process stops.
        let found = running.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        let addresses = found.map_or_else(|| Ok(Vec::new()), |found| found.addresses);
        addresses.map_err(|(kind, text)| io::Error::new(kind, text))
    }

    fn running(
        &self,
        begin: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let mut last = self.last.lock();
        match last.take() {
            Some(receiver) if is_running(&receiver) => return last.insert(receiver).clone(),
            Some(receiver) if self.is_kept(&receiver) => return receiver,
            _ => {}
        }
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let addresses = begin.await.map_err(|error| (error.kind(), error.to_string()));
            let is_taken = sender.receiver_count() > 1; // one is ours
            sender.send_replace(Some(Found { addresses, at: Instant::now(), is_taken }));
        });
        last.insert(receiver).clone()
    }

    /// Whether a result waits for the next attempt. An error does not: it may be over by then.
    fn is_kept(&self, receiver: &watch::Receiver<Option<Found>>) -> bool {
        let found = receiver.borrow();
        found.as_ref().is_some_and(|found| {
            !found.is_taken && found.addresses.is_ok() && found.at.elapsed() < self.keeps
        })
    }

    /// Whether the next attempt will take something from it.
    fn is_of_use(&self) -> bool {
        self.last.lock().as_ref().is_some_and(|last| is_running(last) || self.is_kept(last))
    }
}

fn is_running(receiver: &watch::Receiver<Option<Found>>) -> bool {
    receiver.borrow().is_none() && receiver.has_changed().is_ok() // its sender is there
}

/// The lookups of any hosts. It holds no host for longer than its lookup runs, or its result is kept.
#[derive(Debug)]
pub struct Lookups {
    keeps: Duration,
    by_host: Mutex<HashMap<String, Arc<Lookup>>>,
}

impl Lookups {
    /// As [`Lookup::keeping`].
    #[must_use]
    pub fn keeping(keeps: Duration) -> Self {
        Self { keeps, by_host: Mutex::default() }
    }

    /// As [`Lookup::find`]. Cancel safe.
    ///
    /// # Errors
    /// Those of the resolver.
    pub async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let lookup = self.of(host);
        lookup.find(host, port).await
    }

    fn of(&self, host: &str) -> Arc<Lookup> {
        let mut by_host = self.by_host.lock();
        // What an attempt has and has not begun yet is another reference.
        by_host.retain(|_, lookup| Arc::strong_count(lookup) > 1 || lookup.is_of_use());
        Arc::clone(by_host.entry(host.to_owned()).or_insert_with(|| Arc::new(Lookup::keeping(self.keeps))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::time::{sleep, timeout};

    const ATTEMPT: Duration = Duration::from_secs(1);
    const KEPT: Duration = Duration::from_secs(2);

    /// Takes five attempts' time. The port counts the lookups.
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
        let (lookup, begun) = (Lookup::keeping(KEPT), Arc::default());
        let mut attempts = 0;
        let found = loop {
            attempts += 1;
            if let Ok(found) = timeout(ATTEMPT, lookup.join(slow(&begun))).await {
                break found.unwrap();
            }
            sleep(ATTEMPT / 3).await;
        };
        assert_eq!((attempts, begun.load(SeqCst), found[0].port()), (4, 1, 0));
        assert_eq!(lookup.join(slow(&begun)).await.unwrap()[0].port(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_comes_between_two_attempts_serves_the_next_one_alone() {
        for (pause, port) in [(KEPT / 2, 0), (KEPT * 2, 1)] {
            let (lookup, begun) = (Lookup::keeping(KEPT), Arc::default());
            timeout(ATTEMPT, lookup.join(slow(&begun))).await.unwrap_err();
            sleep(4 * ATTEMPT + pause).await;
            assert_eq!(lookup.join(slow(&begun)).await.unwrap()[0].port(), port);
            assert_eq!(lookup.join(slow(&begun)).await.unwrap()[0].port(), port + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_at_one_time_share_a_lookup() {
        let (lookup, begun) = (Lookup::keeping(KEPT), Arc::default());
        let (one, other) = tokio::join!(lookup.join(slow(&begun)), lookup.join(slow(&begun)));
        assert_eq!((one.unwrap(), begun.load(SeqCst)), (other.unwrap(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_reported_and_not_kept() {
        let lookup = Lookup::keeping(KEPT);
        let failing = || async {
            sleep(5 * ATTEMPT).await;
            Err(io::Error::new(io::ErrorKind::NotFound, "no such host"))
        };
        let error = lookup.join(failing()).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no such host"));
        timeout(ATTEMPT, lookup.join(failing())).await.unwrap_err();
        sleep(5 * ATTEMPT).await;
        assert!(lookup.join(async { Ok(Vec::new()) }).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn literal_addresses_need_no_lookup() {
        let lookup = Lookup::keeping(KEPT);
        assert_eq!(lookup.find("::1", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(lookup.last.lock().is_none());
    }

    #[test]
    fn a_lookup_whose_runtime_ended_is_begun_again() {
        let (lookup, begun) = (Lookup::keeping(KEPT), Arc::default());
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
        };
        let given_up = runtime().block_on(async { timeout(ATTEMPT, lookup.join(slow(&begun))).await });
        assert!(given_up.is_err());
        assert!(runtime().block_on(lookup.join(slow(&begun))).is_ok());
        assert_eq!(begun.load(SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_are_forgotten_when_nothing_of_theirs_is_kept() {
        let (lookups, begun) = (Lookups::keeping(KEPT), Arc::default());
        for host in ["one", "two"] {
            timeout(ATTEMPT, lookups.of(host).join(slow(&begun))).await.unwrap_err();
        }
        sleep(4 * ATTEMPT).await;
        assert_eq!(lookups.of("one").join(slow(&begun)).await.unwrap()[0].port(), 0);
        sleep(KEPT * 2).await;
        lookups.of("three");
        assert_eq!(lookups.by_host.lock().keys().collect::<Vec<_>>(), ["three"]);
    }
}
