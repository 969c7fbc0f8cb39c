//! The conformance suite: the rules that every store must follow, whatever its implementation.
//!
//! [`check`] takes a function that opens a store, runs every rule of [`SpendStore`]'s contract against the store, and returns
//! the first [`Violation`]. It draws its own keys and epochs, so it may run repeatedly against one store.

mod rules;
mod storm;

pub use rules::{Begin, Rule, Violation};

use postern_spend::{Epoch, Spend, SpendStore};
use postern_token::{SpentKey, UnixSeconds};
use rules::{Answer, admissions, epoch, fresh};
use std::future::Future;
use std::sync::{Arc, Barrier};
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Concurrent presentations of one key.
const RACERS: usize = 64;
/// Keys to race for, per kind of runtime.
const RACED_KEYS: usize = 200;
/// Concurrent single-threaded runtimes.
const RUNTIMES: usize = 4;

/// Runs every rule against the store that `open` opens, and returns the first violation.
///
/// `open` is called several times, each time inside the runtime that will use the result, and must return handles to **one**
/// store: clones of one embedded store, or connections to one server. `begin` gives an epoch the mark that the store requires,
/// if any. The suite creates its own runtimes: call it outside any runtime. It takes a few seconds, uses the system clock, and
/// expects an undisturbed store.
///
/// # Errors
/// The first rule that was broken.
pub fn check<S, F, O>(open: F, begin: Begin<'_>) -> Result<(), Violation>
where
    S: SpendStore,
    F: Fn() -> O + Sync,
    O: Future<Output = S>,
{
    let threads = runtime(Builder::new_multi_thread().worker_threads(RUNTIMES));
    threads.block_on(async {
        let store = Arc::new(open().await);
        rules::check(&*store, begin).await?;
        race_on_one_runtime(&store, begin(epoch())).await?;
        storm::check(&store, begin(epoch())).await
    })?;
    race_on_several_runtimes(&open, begin)?;
    // Repeats the cancellations where a dropped future never runs on another thread.
    single().block_on(async { storm::check(&Arc::new(open().await), begin(epoch())).await })
}

async fn race_on_one_runtime<S: SpendStore>(store: &Arc<S>, epoch: Epoch) -> Result<(), Violation> {
    for _ in 0..RACED_KEYS {
        let answers = race(store, fresh(&epoch), epoch, RACERS).await;
        one_winner(&answers)?;
    }
    Ok(())
}

fn race_on_several_runtimes<S, F, O>(open: &F, begin: Begin<'_>) -> Result<(), Violation>
where
    S: SpendStore,
    F: Fn() -> O + Sync,
    O: Future<Output = S>,
{
    let epoch = begin(epoch());
    let keys: Vec<_> = (0..RACED_KEYS).map(|_| fresh(&epoch)).collect();
    let start = Barrier::new(RUNTIMES);
    let answers: Vec<Vec<Vec<Answer>>> = thread::scope(|scope| {
        let run = || {
            single().block_on(async {
                let store = Arc::new(open().await);
                let mut answers = Vec::new();
                for key in &keys {
                    start.wait(); // blocks this runtime, which has nothing else to do
                    answers.push(race(&store, *key, epoch, RACERS / RUNTIMES).await);
                }
                answers
            })
        };
        let threads: Vec<_> = (0..RUNTIMES).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    for key in 0..keys.len() {
        let of_key: Vec<_> =
            answers.iter().filter_map(|runtime| runtime.get(key)).flatten().copied().collect();
        one_winner(&of_key)?;
    }
    Ok(())
}

/// Returns the answers to `racers` concurrent presentations of one key. A task that panicked has no answer.
async fn race<S: SpendStore>(store: &Arc<S>, key: SpentKey, epoch: Epoch, racers: usize) -> Vec<Answer> {
    let start = Arc::new(tokio::sync::Barrier::new(racers));
    let mut tasks = JoinSet::new();
    for _ in 0..racers {
        let (store, start) = (Arc::clone(store), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            store.spend(&key, &epoch, UnixSeconds::now()).await
        });
    }
    let mut answers = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        answers.extend(joined);
    }
    answers
}

fn one_winner(answers: &[Answer]) -> Result<(), Violation> {
    let admitted = admissions(answers);
    let refused = answers.iter().filter(|answer| **answer == Ok(Spend::AlreadySpent)).count();
    if (admitted, refused) == (1, RACERS - 1) {
        return Ok(());
    }
    Err(Rule::OneWinner
        .broken(format!("of {RACERS} presentations {admitted} were admitted and {refused} refused")))
}

fn single() -> Runtime {
    runtime(&mut Builder::new_current_thread())
}

fn runtime(builder: &mut Builder) -> Runtime {
    builder.enable_all().build().expect("a tokio runtime: the system has threads and file descriptors left")
}
