//! What is done every few seconds: accounts leave memory, changes by `sqlite3` are noticed, old periods go.

use super::{Accounts, AccountsError, usage};
use crate::recorder::Recorder;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often past periods are merged and removed.
const UPKEEP_EVERY: Duration = Duration::from_secs(3_600);

/// What upkeep remembers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upkeep {
    /// When past periods are looked at next.
    pub(super) due: Instant,
    /// SQLite's count of the changes that other connections have made.
    pub(super) seen: Option<i64>,
}

impl Accounts {
    pub(super) async fn keep_up(self: Arc<Self>, recorder: &Recorder, mut upkeep: Upkeep) -> Upkeep {
        recorder.set_active_accounts(self.active.let_go());
        let keeping = tokio::task::spawn_blocking(move || {
            let kept = self.upkeep(&mut upkeep);
            if let Err(error) = kept {
                tracing::warn!(
                    "past periods of usage cannot be removed: {error}; it is tried again in an hour"
                );
                upkeep.due = Instant::now() + UPKEEP_EVERY;
            }
            upkeep
        });
        keeping.await.unwrap_or(upkeep)
    }

    pub(super) fn upkeep(&self, upkeep: &mut Upkeep) -> Result<(), AccountsError> {
        let version: i64 = self
            .store
            .with(|connection| connection.pragma_query_value(None, "data_version", |row| row.get(0)))?;
        if upkeep.seen.replace(version).is_some_and(|seen| seen != version) {
            self.take_up_database()?; // another program has changed something
        }
        let now = UnixSeconds::now();
        if upkeep.due <= Instant::now() {
            let kept_since = now.saturating_sub(Duration::from_secs(self.kept_for.load(Ordering::Relaxed)));
            let has_more = self.store.with(|connection| usage::upkeep(connection, now, kept_since))?;
            if !has_more {
                upkeep.due = Instant::now() + UPKEEP_EVERY;
            }
        }
        Ok(())
    }
}
