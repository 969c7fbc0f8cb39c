//! One query to the system's resolver, whose answer outlives the attempt that needed it.
//!
//! The system's resolver may take longer than an attempt to connect: while the first of two name servers is down, it waits five
//! seconds for it on each query, and with search domains several times five. If a lookup ended with the attempt that began it, no
//! attempt would ever succeed. So the lookup continues, and the next attempt takes its result.
//!
//! This is not a cache: a result that an attempt waited for is not kept, and one that came too late serves one attempt.

use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A query, of which at most one is in progress.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Time that a result waits for the next attempt, if none waited for it.
    keeps: Duration,
    last: Mutex<Option<watch::Receiver<Option<Found>>>>,
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

    /// Returns the answer of the lookup in progress, or one that came too late for its attempts; otherwise that of `begin`.
    pub(crate) fn ask(
        &self,
        begin: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> Coming {
        let mut last = self.last.lock();
        match last.take() {
            Some(receiver) if is_running(&receiver) => return Coming(last.insert(receiver).clone()),
            Some(receiver) if self.is_kept(&receiver) => return Coming(receiver),
            _ => {}
        }
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let addresses = begin.await.map_err(|error| (error.kind(), error.to_string()));
            let is_taken = sender.receiver_count() > 1; // one is `last`
            sender.send_replace(Some(Found { addresses, at: Instant::now(), is_taken }));
        });
        Coming(last.insert(receiver).clone())
    }

    /// `true` if a result waits for the next attempt. An error does not: it may be over by then.
    fn is_kept(&self, receiver: &watch::Receiver<Option<Found>>) -> bool {
        let found = receiver.borrow();
        found.as_ref().is_some_and(|found| {
            !found.is_taken && found.addresses.is_ok() && found.at.elapsed() < self.keeps
        })
    }

    /// `true` if the next attempt will take an answer of this query.
    pub(crate) fn is_of_use(&self) -> bool {
        self.last.lock().as_ref().is_some_and(|last| is_running(last) || self.is_kept(last))
    }
}

fn is_running(receiver: &watch::Receiver<Option<Found>>) -> bool {
    receiver.borrow().is_none() && receiver.has_changed().is_ok() // the sender exists
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::time::{sleep, timeout};

    const ATTEMPT: Duration = Duration::from_secs(1);
    const KEPT: Duration = Duration::from_secs(2);

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
        assert_eq!(shared.ask(slow(&begun)).answer().await.unwrap()[0].port(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_comes_between_two_attempts_serves_the_next_one_alone() {
        for (pause, port) in [(KEPT / 2, 0), (KEPT * 2, 1)] {
            let (shared, begun) = (Shared::keeping(KEPT), Arc::default());
            timeout(ATTEMPT, shared.ask(slow(&begun)).answer()).await.unwrap_err();
            sleep(4 * ATTEMPT + pause).await;
            assert_eq!(shared.ask(slow(&begun)).answer().await.unwrap()[0].port(), port);
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
