//! The issuer of each run, and tokens for the mark of the run's store.

use crate::support::daemon::{Daemon, issuer_config};
use crate::support::{admin, tokens};
use std::time::Instant;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// Tokens that are raced for in one run, without `POSTERN_RACES`.
const RACES: usize = 5_000;
/// Tokens for what comes after a race.
pub const RESERVE: usize = 400;

/// Tokens that are raced for in one run.
pub fn races() -> usize {
    std::env::var("POSTERN_RACES").map_or(RACES, |text| text.parse().unwrap())
}

static RUNS: Mutex<()> = Mutex::const_new(());

/// An issuer, for one run at a time: simultaneous runs would exceed deadlines without a fault.
pub struct Turn {
    /// Not shared by the runs: what a static has is not dropped, and a process would outlive the tests.
    issuer: Daemon,
    /// For gateways to read from a file.
    pub directory: String,
    _home: TempDir,
    _run: MutexGuard<'static, ()>,
}

impl Turn {
    pub async fn take() -> Self {
        let run = RUNS.lock().await;
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let directory = admin::page(issuer.address, "/.well-known/private-token-issuer-directory").await;
        Self { issuer, directory, _home: home, _run: run }
    }

    /// This many tokens for the mark that a gateway offers.
    pub fn mint(&self, gateway: &Daemon, count: usize) -> Vec<String> {
        let began = Instant::now();
        let tokens = tokens::mint(&self.issuer.http(), &gateway.http(), count);
        assert_eq!(tokens.len(), count);
        println!("{count} tokens minted in {:.1?}", began.elapsed());
        tokens
    }
}
