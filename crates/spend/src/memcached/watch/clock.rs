//! Compares the store's clock with this process's, by records that end soon.
//!
//! memcached answers `STORED` to an `add` whose expiry has passed by its own clock, and keeps no record. A clock that is
//! ahead by more than the margin between a token's end and its record's would so admit a token each time. A gateway that
//! is behind has the same effect, and is found in the same way.

use super::Rounds;
use crate::Unknown;
use crate::memcached::protocol::{Command, Kind, RecordKey, Reply, Value};
use crate::memcached::undo::{Undo, is_undone};
use crate::memcached::world::{self, random_bytes};
use std::time::Duration;

/// Records that compare the clocks before the store is used: they spread over the servers behind a router.
pub(super) const AT_START: usize = 64;
/// In each round, and in each while a clock is ahead: by then every server has to be met again.
const A_ROUND: usize = 1;
const WHILE_AHEAD: usize = 16;
/// A clock is right again when none was ahead for so long.
const SETTLED: Duration = Duration::from_secs(30);
/// Between which of these the difference lies, in minutes. A server that keeps no record at all is no matter of clocks.
const STEPS: [u64; 8] = [60, 3 * 60, 12 * 60, 48 * 60, 7 * 1_440, 30 * 1_440, 365 * 1_440, 20 * 365 * 1_440];

impl Rounds {
    /// Compares the clocks by as many records as the state asks for.
    pub(super) async fn watch_clocks(&mut self, endpoint: usize) -> Result<(), Unknown> {
        let count = if self.ahead_since.is_some() { WHILE_AHEAD } else { A_ROUND };
        self.compare_clocks(endpoint, count).await
    }

    /// Writes `count` records that end after the difference of clocks that is tolerated, and reads them back.
    pub(super) async fn compare_clocks(&mut self, endpoint: usize, count: usize) -> Result<(), Unknown> {
        if is_undone(Undo::ClockCanary) {
            return Ok(());
        }
        let keys: Vec<_> = (0..count).map(|_| RecordKey::new(Kind::Probe, &random_bytes())).collect();
        let tolerance = self.store.options.clock_tolerance;
        let mut gone = self.short_lived(endpoint, &keys, tolerance).await?;
        if !gone.is_empty() {
            // A router may report a miss for a server that has gone down since. Where a clock is ahead, the same records
            // are stored once more and are gone again.
            gone = self.short_lived(endpoint, &gone, tolerance).await?;
        }
        let Some(key) = gone.first() else {
            if self.ahead_since.is_some_and(|since| world::since(since) > SETTLED) {
                self.ahead_since = None;
                self.store.watched.set_ahead(None);
                tracing::info!("the clock of the double-spend store is right again");
            }
            return Ok(());
        };
        let mut at_least = tolerance;
        for below in STEPS.map(|minutes| Duration::from_secs(minutes * 60)) {
            if self.short_lived(endpoint, &[*key], below).await?.is_empty() {
                self.ahead(Unknown::ClockAhead { at_least, below });
                break;
            }
            at_least = below;
        }
        Ok(())
    }

    fn ahead(&mut self, ahead: Unknown) {
        if self.ahead_since.replace(world::instant()).is_none() {
            tracing::error!(
                "{ahead}: a token could be spent again and again, so every request is refused with 503. Set the clocks of \
                 this machine and of the store's servers"
            );
        }
        self.store.watched.set_ahead(Some(ahead));
    }

    /// Of records that were stored with this expiry, those that cannot be read afterwards. The second command is sent
    /// when the first was answered: a router may let one overtake the other.
    async fn short_lived(
        &mut self,
        endpoint: usize,
        keys: &[RecordKey],
        expiry: Duration,
    ) -> Result<Vec<RecordKey>, Unknown> {
        let (value, expires) = (Value::unique(), self.now().saturating_add(expiry));
        let adds: Vec<_> = keys.iter().map(|&key| Command::Add { key, value, expires }).collect();
        let stored = self.request(endpoint, &adds).await?;
        let gets: Vec<_> = keys.iter().map(|&key| Command::Get(key)).collect();
        let read = self.request(endpoint, &gets).await?;
        let pairs = keys.iter().zip(stored.iter().zip(&read));
        let gone = pairs.filter(|(_, replies)| matches!(replies, (Reply::Stored, Reply::Miss)));
        Ok(gone.map(|(key, _)| *key).collect())
    }
}
