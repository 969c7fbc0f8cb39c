//! The pool that signs: a fixed number of threads, a fixed number of places, and no queue beyond them.
//!
//! A signature is hundreds of microseconds of CPU (measured by `cargo bench -p postern-issuer`). On the runtime it
//! would hold up every other connection; in a queue without end a burst would be answered long after its clients have
//! gone.

use crate::recorder::{Part, Recorder};
use postern_token::{SignError, SigningKey, TokenRequest, TokenResponse};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, oneshot};

/// Threads that sign.
#[derive(Debug)]
pub(crate) struct SigningPool {
    threads: ThreadPool,
    /// One for each request that is being signed or waits for it.
    places: Arc<Semaphore>,
    recorder: Arc<Recorder>,
}

/// Every thread is busy and every place to wait is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The signature to come. An error of the receiver means that signing failed.
pub(crate) type Signature = oneshot::Receiver<Result<TokenResponse, SignError>>;

impl SigningPool {
    /// A pool of `threads`, by default one for each core, and of `queue` places to wait.
    pub(crate) fn new(
        threads: Option<NonZeroUsize>,
        queue: usize,
        recorder: Arc<Recorder>,
    ) -> Result<Self, ThreadPoolBuildError> {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let count = threads.unwrap_or_else(cores).get();
        let threads = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("sign-{index}"))
            // The default is to abort the process. The request that failed sees its sender gone and answers 500.
            .panic_handler(|_| {
                tracing::error!(
                    "a signing thread panicked: its request is answered 500, others \
                     go on. Please report this line"
                )
            })
            .build()?;
        let places = count.saturating_add(queue).min(Semaphore::MAX_PERMITS);
        recorder.set_queue_limit(places);
        Ok(Self { threads, places: Arc::new(Semaphore::new(places)), recorder })
    }

    /// Signs `request` when a thread is free. Its turn is skipped if the receiver is gone by then; `signed` is called
    /// once the signature is made, and dropped uncalled otherwise.
    pub(crate) fn submit(
        &self,
        key: Arc<SigningKey>,
        request: TokenRequest,
        signed: impl FnOnce() + Send + 'static,
    ) -> Result<Signature, Full> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| Full)?;
        let place = (self.recorder.queued(), place);
        let (answer, signature) = oneshot::channel();
        let (recorder, asked) = (self.recorder.clone(), Instant::now());
        self.threads.spawn_fifo(move || {
            if answer.is_closed() {
                return; // the client hung up while it waited
            }
            let started = Instant::now();
            recorder.took(Part::Wait, started - asked);
            let response = key.sign(&request);
            if response.is_ok() {
                recorder.signed(started.elapsed());
                signed();
            }
            drop(place); // not later than this: a client that retries immediately must find the place free
            let _ = answer.send(response); // the client may have hung up meanwhile
        });
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn key() -> Arc<SigningKey> {
        Arc::new(SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap())
    }

    fn pool(threads: usize, queue: usize) -> SigningPool {
        SigningPool::new(NonZeroUsize::new(threads), queue, Arc::new(Recorder::new())).unwrap()
    }

    /// Occupies one thread of `pool` until the sender is dropped.
    fn occupy(pool: &SigningPool) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        pool.threads.spawn_fifo(move || {
            started.send(()).unwrap();
            let _ = released.recv();
        });
        running.recv().unwrap();
        release
    }

    #[tokio::test]
    async fn beyond_its_places_it_refuses_at_once_and_places_come_back() {
        let (pool, key) = (pool(1, 2), key());
        let request = TokenRequest::new(key.id(), [1; 256]);
        let submit = || pool.submit(key.clone(), request.clone(), || {});
        let release = occupy(&pool);
        let waiting: Vec<_> = (0..3).map(|_| submit().unwrap()).collect();
        assert_eq!(submit().unwrap_err(), Full);
        drop(release);
        for signature in waiting {
            assert!(signature.await.unwrap().is_ok());
        }
        assert!(submit().unwrap().await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_request_whose_client_is_gone_is_not_signed() {
        let (pool, key) = (pool(1, 8), key());
        let request = TokenRequest::new(key.id(), [1; 256]);
        let signed = Arc::new(AtomicUsize::new(0));
        let submit = || {
            let signed = signed.clone();
            pool.submit(key.clone(), request.clone(), move || {
                signed.fetch_add(1, Ordering::SeqCst);
            })
        };
        let release = occupy(&pool);
        drop(submit().unwrap());
        let kept = submit().unwrap();
        drop(release);
        assert!(kept.await.unwrap().is_ok());
        assert_eq!(signed.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn the_queue_is_seen_and_empties_after_answers_hang_ups_and_panics() {
        let recorder = Arc::new(Recorder::new());
        let pool = SigningPool::new(NonZeroUsize::new(1), 5, recorder.clone()).unwrap();
        let key = key();
        let request = TokenRequest::new(key.id(), [1; 256]);
        let submit = |signed: fn()| pool.submit(key.clone(), request.clone(), signed).unwrap();
        assert_eq!(recorder.queue(), (0, 6));
        let release = occupy(&pool); // takes a thread, and no place
        let waiting = submit(|| {});
        drop(submit(|| {}));
        let failing = submit(|| panic!("a test of panics"));
        assert_eq!(recorder.queue(), (3, 6), "one that hung up is there until its turn has come");
        drop(release);
        assert!(waiting.await.unwrap().is_ok());
        assert!(failing.await.is_err());
        assert!(submit(|| {}).await.unwrap().is_ok()); // the one thread has dropped everything before this
        assert_eq!(recorder.queue(), (0, 6));
    }

    #[tokio::test]
    async fn what_cannot_be_signed_is_not_counted() {
        let (pool, key) = (pool(1, 8), key());
        let request = TokenRequest::new(key.id(), [0xff; 256]);
        let signature = pool.submit(key, request, || panic!("it was counted")).unwrap();
        assert_eq!(signature.await.unwrap(), Err(SignError::OutOfRange));
    }
}
