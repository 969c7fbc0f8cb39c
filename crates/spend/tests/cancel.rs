//! Callers that hang up at every point of an exchange, ten thousand times over each transport: no later or concurrent
//! caller gets a wrong answer, and no token is admitted twice.

use crate::support::fake::{Fake, Manner, Step, Verb};
use crate::support::{Server, begun, client, eventually, fresh, options, pipelined, pooled};
use postern_spend::memcached::{Address, Client, Memcached, Options, Transport};
use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::{SpentKey, UnixSeconds};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Callers that hang up, for each transport: one half at the real memcached, a quarter at each of two fakes.
const CANCELLED: u32 = 10_000;
/// Loops of callers at once.
const LOOPS: u32 = 12;

/// Polls `future` until it is done, or until `enough` returns true before a poll; then drops it.
async fn until<F: Future>(future: F, mut enough: impl FnMut(u32) -> bool) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if enough(polls) {
            return Poll::Ready(None);
        }
        polls += 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// One caller that hangs up at a random point: before the first poll, after some, or after some microseconds, however
/// often it was polled then. `None` when it did.
async fn hangs_up<F: Future>(future: F) -> Option<F::Output> {
    if rand::random() {
        let most = rand::random_range(0..5);
        return until(future, |polls| polls >= most).await;
    }
    let end = Instant::now() + Duration::from_micros(rand::random_range(0..300));
    let mut future = pin!(future);
    poll_fn(|cx| {
        if Instant::now() >= end {
            return Poll::Ready(None);
        }
        cx.waker().wake_by_ref(); // so that time is looked at
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A token's known history.
struct Token {
    key: SpentKey,
    /// Spends that were begun.
    begun: Cell<u32>,
    admitted: Cell<u32>,
    /// A caller learned that it is spent.
    spent: Cell<bool>,
}

struct Crowd {
    client: Client,
    epoch: Epoch,
    tokens: RefCell<Vec<Rc<Token>>>,
    cancelled: Cell<u32>,
    target: u32,
}

impl Crowd {
    fn token(&self) -> Rc<Token> {
        let mut tokens = self.tokens.borrow_mut();
        if tokens.len() > 64 && rand::random_ratio(2, 3) {
            return Rc::clone(&tokens[rand::random_range(0..tokens.len())]);
        }
        let (begun, admitted, spent) = (Cell::new(0), Cell::new(0), Cell::new(false));
        let token = Rc::new(Token { key: fresh(&self.epoch), begun, admitted, spent });
        tokens.push(Rc::clone(&token));
        token
    }

    async fn spend(&self, token: &Token, cancel: bool) {
        let (spent, begun) = (token.spent.get(), token.begun.get());
        token.begun.set(begun + 1);
        let spending = self.client.spend(&token.key, &self.epoch, UnixSeconds::now());
        let verdict = if cancel { hangs_up(spending).await } else { Some(spending.await) };
        match verdict {
            None => self.cancelled.set(self.cancelled.get() + 1),
            Some(Ok(Spend::Admitted)) => {
                assert!(!spent, "a token known to be spent was admitted");
                token.admitted.set(token.admitted.get() + 1);
                assert_eq!(token.admitted.get(), 1, "a token was admitted twice");
                token.spent.set(true);
            }
            Some(Ok(Spend::AlreadySpent)) => {
                assert!(token.begun.get() > 1, "a token without another presentation is a replay");
                token.spent.set(true);
            }
            Some(Ok(Spend::Void)) => panic!("a token is void whose mark stands"),
            Some(Err(reason)) => panic!("{reason}: one caller's end is another's trouble"),
        }
    }

    async fn look(&self, token: &Token, cancel: bool) {
        let spent = token.spent.get();
        let seeing = self.client.check(&token.key, &self.epoch);
        let seen = if cancel { hangs_up(seeing).await } else { Some(seeing.await) };
        match seen {
            None => self.cancelled.set(self.cancelled.get() + 1),
            Some(Ok(Hint::Spent)) => {
                assert!(token.begun.get() > 0, "a token that was never presented is a replay")
            }
            Some(Ok(Hint::NotFound)) => assert!(!spent, "a token known to be spent was not seen"),
            Some(Err(reason)) => panic!("{reason}: one caller's end is another's trouble"),
        }
    }

    async fn go_on(self: Rc<Self>) {
        while self.cancelled.get() < self.target {
            let (token, cancel) = (self.token(), rand::random_ratio(3, 4));
            if rand::random_ratio(2, 3) {
                self.spend(&token, cancel).await;
            } else {
                self.look(&token, cancel).await;
            }
        }
    }
}

async fn hang_up(address: Address, transport: Transport, target: u32) {
    let store =
        Memcached::open(Options { timeout: Duration::from_secs(20), ..options(vec![address], transport) })
            .unwrap();
    let (client, epoch) = begun(&store).await;
    let crowd = Rc::new(Crowd { client, epoch, tokens: RefCell::default(), cancelled: Cell::new(0), target });
    // One at least is admitted, wherever the others hang up.
    crowd.spend(&crowd.token(), false).await;
    let local = LocalSet::new();
    for _ in 0..LOOPS {
        local.spawn_local(Rc::clone(&crowd).go_on());
    }
    local.await;
    // In the end every token is spent, and was admitted at most once.
    let tokens = crowd.tokens.borrow().clone();
    for token in &tokens {
        crowd.spend(token, false).await;
        crowd.spend(token, false).await;
        assert!(token.spent.get());
    }
    let admitted: u32 = tokens.iter().map(|token| token.admitted.get()).sum();
    assert!(admitted > 0 && crowd.cancelled.get() >= target);
}

fn hang_up_everywhere(transport: fn() -> Transport) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::tcp(&[]);
        hang_up(server.address(), transport(), CANCELLED / 2).await;
        for manner in [Manner::Late, Manner::InPieces] {
            let fake = Fake::start();
            fake.set_manner(manner);
            hang_up(fake.address(), transport(), CANCELLED / 4).await;
            fake.assert_understood();
        }
    });
}

#[test]
fn pipelined_callers_hang_up() {
    hang_up_everywhere(pipelined);
}

#[test]
fn pooled_callers_hang_up() {
    hang_up_everywhere(|| pooled(8));
}

/// A runtime on its own thread that holds a client's connections, until it is stopped.
struct Elsewhere {
    client: Client,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Elsewhere {
    async fn start(store: &Arc<Memcached>) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let (give, given) = oneshot::channel();
        let store = Arc::clone(store);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                assert!(give.send(client(&store).await).is_ok());
                let _ = ended.await;
            });
        });
        Self { client: given.await.unwrap(), end: Some(end), thread: Some(thread) }
    }

    /// Ends the runtime, with all that it has to do.
    fn end(mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A store with a patience that no test waits for.
fn patient(fake: &Fake, transport: Transport) -> Arc<Memcached> {
    let timeout = Duration::from_secs(3600);
    Arc::new(Memcached::open(Options { timeout, ..options(vec![fake.address()], transport) }).unwrap())
}

const CALLERS: usize = 32;

/// Callers of this runtime who wait for a silent server.
async fn waiting(
    fake: &Fake,
    (client, epoch): (&Client, Epoch),
    transport: &Transport,
) -> tokio::task::JoinSet<Result<Spend, Unknown>> {
    let spend = |client: Client| async move {
        let key = fresh(&epoch);
        client.spend(&key, &epoch, UnixSeconds::now()).await
    };
    assert_eq!(spend(client.clone()).await, Ok(Spend::Admitted));
    let connections = if matches!(transport, Transport::Pooled { .. }) { CALLERS } else { 1 };
    let acted: Vec<_> =
        (0..connections).map(|_| fake.plan(Verb::Add, true, vec![Step::Wait, Step::Honest])).collect();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(spend(client.clone()));
    }
    let asked = || async { acted.iter().all(|acted| acted.begun()).then_some(()) };
    eventually("the fake received it", asked).await;
    callers
}

/// The runtime that holds the connections ends: its callers on other runtimes get an error, and so do later ones.
#[tokio::test]
async fn callers_are_answered_when_the_connections_runtime_ends() {
    for transport in [pipelined(), pooled(CALLERS)] {
        let fake = Fake::start();
        let store = patient(&fake, transport.clone());
        let elsewhere = Elsewhere::start(&store).await;
        let client = elsewhere.client.clone();
        let epoch = begun(&store).await.1;
        let callers = waiting(&fake, (&client, epoch), &transport).await;
        elsewhere.end();
        let verdicts = tokio::time::timeout(crate::support::PATIENCE, callers.join_all()).await.unwrap();
        assert!(
            verdicts.iter().all(|verdict| matches!(verdict, Err(Unknown::Unavailable(_)))),
            "{verdicts:?}"
        );
        let later = fresh(&epoch);
        let later = client.spend(&later, &epoch, UnixSeconds::now());
        assert_ne!(
            tokio::time::timeout(crate::support::PATIENCE, later).await.unwrap(),
            Ok(Spend::AlreadySpent)
        );
    }
}

/// One holder of the connections drops its client while others wait: they still get their answers.
#[tokio::test]
async fn callers_are_answered_when_another_drops_the_client() {
    for transport in [pipelined(), pooled(CALLERS)] {
        let fake = Fake::start();
        let store = patient(&fake, transport.clone());
        let mut elsewhere = Elsewhere::start(&store).await;
        let (own, other) = (elsewhere.client.clone(), Elsewhere::start(&store).await.client.clone());
        let epoch = begun(&store).await.1;
        let callers = waiting(&fake, (&own, epoch), &transport).await;
        elsewhere.client = other;
        drop(own);
        fake.go_on();
        let verdicts = tokio::time::timeout(crate::support::PATIENCE, callers.join_all()).await.unwrap();
        assert!(verdicts.iter().all(|verdict| *verdict == Ok(Spend::Admitted)), "{verdicts:?}");
        elsewhere.end();
    }
}
