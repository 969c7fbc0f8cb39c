use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

fn key() -> Arc<SigningKey> {
    Arc::new(SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap())
}

fn pool(threads: usize, queue: usize) -> SigningPool {
    SigningPool::new(NonZeroUsize::new(threads), queue, Arc::new(Recorder::new())).unwrap()
}

/// Occupies one thread of `pool`, and its place, until the sender is dropped.
fn occupy(pool: &SigningPool, key: &Arc<SigningKey>) -> (mpsc::Sender<()>, Signature) {
    let (release, released) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let signed = move || {
        started.send(()).unwrap();
        let _ = released.recv();
    };
    let signature = pool.submit(0, key.clone(), request, signed).unwrap();
    running.recv().unwrap();
    (release, signature)
}

#[tokio::test]
async fn beyond_its_places_it_refuses_at_once_and_places_come_back() {
    let (pool, key) = (pool(1, 2), key());
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let submit = || pool.submit(0, key.clone(), request.clone(), || {});
    let (release, first) = occupy(&pool, &key);
    let waiting = [submit().unwrap(), submit().unwrap()];
    assert_eq!(submit().unwrap_err(), Unsigned::Full);
    drop(release);
    for signature in waiting {
        assert!(signature.await.is_ok());
    }
    assert!(first.await.is_ok());
    assert!(submit().unwrap().await.is_ok());
}

#[tokio::test]
async fn an_account_that_floods_makes_room_for_others_and_is_served_in_turn() {
    let (pool, key) = (pool(1, 4), key());
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let order = Arc::new(Mutex::new(Vec::new()));
    let submit = |caller: u64| {
        let order = order.clone();
        pool.submit(caller, key.clone(), request.clone(), move || order.lock().push(caller))
    };
    let (release, _first) = occupy(&pool, &key);
    let mut flood: Vec<_> = (0..4).map(|_| submit(1).unwrap()).collect();
    assert_eq!(submit(1).unwrap_err(), Unsigned::Crowded);
    let honest = [2, 3, 4].map(|caller| submit(caller).unwrap());
    for _ in &honest {
        assert_eq!(flood.pop().unwrap().await, Err(Unsigned::Crowded), "the newest made room");
    }
    assert_eq!(submit(5).unwrap_err(), Unsigned::Full, "none has more than one");
    drop(release);
    for signature in flood.into_iter().chain(honest) {
        assert!(signature.await.is_ok());
    }
    assert_eq!(*order.lock(), [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_request_whose_client_is_gone_is_not_signed_and_leaves_its_place() {
    let recorder = Arc::new(Recorder::new());
    let pool = SigningPool::new(NonZeroUsize::new(1), 2, recorder.clone()).unwrap();
    assert_eq!(recorder.queue(), (0, 0), "its configuration may still be refused");
    pool.show_places();
    let key = key();
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let signed = Arc::new(AtomicUsize::new(0));
    let submit = || {
        let signed = signed.clone();
        let count = move || {
            signed.fetch_add(1, Ordering::SeqCst);
        };
        pool.submit(7, key.clone(), request.clone(), count)
    };
    let (release, _first) = occupy(&pool, &key);
    let (gone, kept) = (submit().unwrap(), submit().unwrap());
    assert_eq!(recorder.queue(), (3, 3));
    drop(gone);
    assert_eq!(recorder.queue(), (2, 3));
    let next = submit().unwrap();
    drop(release);
    assert!(kept.await.is_ok() && next.await.is_ok());
    assert_eq!(signed.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_queue_is_empty_after_answers_and_panics() {
    let recorder = Arc::new(Recorder::new());
    let pool = SigningPool::new(NonZeroUsize::new(1), 5, recorder.clone()).unwrap();
    pool.show_places();
    let key = key();
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let submit = |signed: fn()| pool.submit(0, key.clone(), request.clone(), signed).unwrap();
    let (release, first) = occupy(&pool, &key);
    let (waiting, failing) = (submit(|| {}), submit(|| panic!("a test of panics")));
    assert_eq!(recorder.queue(), (3, 6));
    drop(release);
    assert!(first.await.is_ok() && waiting.await.is_ok());
    assert_eq!(failing.await, Err(Unsigned::Failed));
    assert!(submit(|| {}).await.is_ok(), "the thread survives");
    assert_eq!(recorder.queue(), (0, 6));
}

#[tokio::test]
async fn a_pool_that_is_replaced_signs_what_waits() {
    let (pool, key) = (pool(1, 8), key());
    let request = Work::Token(TokenRequest::new(key.id(), [1; 256]));
    let (release, first) = occupy(&pool, &key);
    let waiting: Vec<_> =
        (0..8).map(|_| pool.submit(0, key.clone(), request.clone(), || {}).unwrap()).collect();
    drop(pool);
    drop(release);
    for signature in waiting.into_iter().chain([first]) {
        assert!(signature.await.is_ok());
    }
}

#[tokio::test]
async fn what_cannot_be_signed_is_not_counted() {
    let (pool, key) = (pool(1, 8), key());
    let request = Work::Token(TokenRequest::new(key.id(), [0xff; 256]));
    let signature = pool.submit(0, key, request, || panic!("it was counted")).unwrap();
    assert_eq!(signature.await, Err(Unsigned::Refused(SignError::OutOfRange)));
}
