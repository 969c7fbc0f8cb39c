//! The conformance suite: what every store must do, whatever it is made of.
//!
//! [`check`] is handed a way to open a store, runs every rule of [`SpendStore`]'s contract against it, and returns the
//! first [`Violation`]. It draws its own keys and epochs, so it may be run repeatedly against one store.
//!
//! ```
//! # use postern_spend::{Embedded, Fsync, conformance};
//! # use postern_token::UnixSeconds;
//! # use std::sync::Arc;
//! # let directory = tempfile::tempdir().unwrap();
//! let store = Arc::new(Embedded::open(directory.path(), Fsync::default(), UnixSeconds::now()).unwrap());
//! conformance::check(|| async { Arc::clone(&store) }, &|epoch| epoch).unwrap();
//! ```

mod rules;
mod storm;

pub use rules::{Begin, Rule, Violation};

use crate::{Epoch, Spend, SpendStore};
use postern_token::{SpentKey, UnixSeconds};
use rules::{Answer, admissions, epoch, fresh};
use std::future::Future;
use std::sync::{Arc, Barrier};
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// How many presentations of one key race.
const RACERS: usize = 64;
/// Over how many keys, on each kind of runtime.
const RACED_KEYS: usize = 200;
/// How many single-threaded runtimes race.
const RUNTIMES: usize = 4;

/// Runs every rule against the store that `open` opens, and returns the first violation.
///
/// `open` is called several times, each time inside the runtime that will use the result, and must give handles on
/// **one** store: clones of one embedded store, or connections to one server. `begin` gives an epoch the mark that the store
/// wants, if it wants one. The suite makes its own runtimes: call it outside any. It takes a few seconds, uses the system's
/// clock, and expects a store that nothing disturbs.
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
    // And the cancellations once more where a dropped future is never running on another thread.
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

/// The answers to `racers` presentations of one key at once. A task that panicked has none.
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
