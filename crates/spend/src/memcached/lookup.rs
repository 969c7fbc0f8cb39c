//! Looks up the host of an address of the store.
//!
//! The system's resolver may take longer than an attempt to connect may: while the first name server of two is down, it waits five
//! seconds for it, each time. So a lookup goes on when the attempt that began it has given up, and the next attempt takes its
//! result. No result is kept for longer than that needs: an address may be another server's a minute later, and two replicas that
//! lead to one server would be one.

use super::world::{instant, since};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a result may wait for the next attempt to connect: longer than the longest pause between two.
const FRESH: Duration = Duration::from_secs(1);

/// The lookups of one host, of which one at most runs.
#[derive(Debug, Default)]
pub(super) struct Lookup(Mutex<Option<watch::Receiver<Option<Found>>>>);

/// The addresses of a host, and since when they are known.
#[derive(Clone, Debug)]
struct Found {
    addresses: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
    at: Instant,
}

impl Lookup {
    /// The addresses of a host, of which a literal address has one. Cancel safe.
    ///
    /// # Errors
    ///
    /// Those of the resolver.
    pub(super) async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(literal) = host.parse() {
            return Ok(vec![SocketAddr::new(literal, port)]);
        }
        let host = host.to_owned();
        self.join(async move { Ok(tokio::net::lookup_host((host.as_str(), port)).await?.collect()) }).await
    }

    /// What the lookup that runs has found, or has found just now; of `begin` otherwise.
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
        let mut last = self.0.lock();
        if let Some(receiver) = last.as_ref().filter(|receiver| is_of_use(receiver)) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let addresses = begin.await.map_err(|error| (error.kind(), error.to_string()));
            sender.send_replace(Some(Found { addresses, at: instant() }));
        });
        *last = Some(receiver.clone());
        receiver
    }
}

/// Whether the lookup runs, or has just found addresses. An error is not worth to be repeated.
fn is_of_use(receiver: &watch::Receiver<Option<Found>>) -> bool {
    match &*receiver.borrow() {
        Some(found) => found.addresses.is_ok() && since(found.at) < FRESH,
        None => receiver.has_changed().is_ok(), // its sender is there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::time::{sleep, timeout};

    const ATTEMPT: Duration = Duration::from_secs(1);

    fn slow(begun: &Arc<AtomicUsize>) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static {
        let begun = Arc::clone(begun);
        async move {
            let port = u16::try_from(begun.fetch_add(1, SeqCst)).unwrap();
            sleep(5 * ATTEMPT).await;
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_longer_than_an_attempt_serves_a_later_one_and_no_result_is_old() {
        let (lookup, begun) = (Lookup::default(), Arc::default());
        let mut attempts = 0;
        let found = loop {
            attempts += 1;
            if let Ok(found) = timeout(ATTEMPT, lookup.join(slow(&begun))).await {
                break found.unwrap();
            }
            sleep(ATTEMPT / 3).await;
        };
        assert_eq!((attempts, begun.load(SeqCst), found[0].port()), (4, 1, 0));
        // Whoever asks at once gets the same, and later a lookup of its own.
        assert_eq!(lookup.join(slow(&begun)).await.unwrap(), found);
        sleep(FRESH).await;
        assert_eq!(lookup.join(slow(&begun)).await.unwrap()[0].port(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_reported_and_not_kept() {
        let lookup = Lookup::default();
        let failing = || async { Err(io::Error::new(io::ErrorKind::NotFound, "no such host")) };
        let error = lookup.join(failing()).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no such host"));
        assert!(lookup.join(async { Ok(Vec::new()) }).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn literal_addresses_need_no_lookup() {
        let lookup = Lookup::default();
        assert_eq!(lookup.find("::1", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(lookup.0.lock().is_none());
    }

    #[test]
    fn a_lookup_whose_runtime_ended_is_begun_again() {
        let (lookup, begun) = (Lookup::default(), Arc::default());
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
        };
        let given_up = runtime().block_on(async { timeout(ATTEMPT, lookup.join(slow(&begun))).await });
        assert!(given_up.is_err());
        assert!(runtime().block_on(lookup.join(slow(&begun))).is_ok());
        assert_eq!(begun.load(SeqCst), 2);
    }
}
