//! The file of the counts, which is always ahead of the tokens that are signed.
//!
//! For each account the file says how many tokens it may have used at most: those that are counted, and a reservation
//! ([`crate::quota`]). A request that needs more waits until the file is on the disk with it. All that wait then share one
//! write, and a reservation is renewed before it is used up, so that few wait. After a crash the whole reservation counts as
//! used: the account may lose it, and no token is issued beyond the quota. A stop writes the exact figures.

use super::NoToken;
use crate::StartError;
use crate::health::{Fault, Health};
use crate::quota::{Charge, Meter, NoCharge, Usage, Writing};
use parking_lot::Mutex;
use postern_daemon::files::write_private;
use postern_token::UnixSeconds;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, timeout_at};

/// The name of the file, beside the keys.
pub(crate) const FILE_NAME: &str = "usage.json";
/// How often the file is brought up to date while nothing waits for it, and tried again after a failure.
pub(super) const WRITE_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each account has used at most, by its name.
pub(super) type Usages = BTreeMap<String, Usage>;

/// The file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    /// What the file says; unknown after a failure. The lock is held during a write, so there is one at a time.
    written: Mutex<Option<Usages>>,
    /// A reservation is needed, or soon will be.
    wanted: Notify,
    /// Whether the last attempt to write failed. Every attempt is seen by those who wait.
    is_failing: watch::Sender<bool>,
}

impl Ledger {
    /// The file at `path`, and what it says.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Usages), StartError> {
        let usages = read(&path)?;
        let written = Mutex::new(Some(usages.clone()));
        Ok((Self { path, written, wanted: Notify::new(), is_failing: watch::Sender::new(false) }, usages))
    }

    /// Counts one token, once the file allows for it. Dropped early, it counts nothing.
    pub(super) async fn charge(&self, meter: &Arc<Meter>, now: UnixSeconds) -> Result<Charge, NoToken> {
        let deadline = Instant::now() + PATIENCE;
        let mut attempts = self.is_failing.subscribe();
        loop {
            let is_failing = *attempts.borrow_and_update();
            match meter.charge(now) {
                Ok(charge) => {
                    if meter.is_low() {
                        self.wanted.notify_one();
                    }
                    return Ok(charge);
                }
                Err(NoCharge::Spent(spent)) => return Err(NoToken::Spent(spent)),
                Err(NoCharge::Unreserved) if is_failing => return Err(NoToken::Unrecorded),
                Err(NoCharge::Unreserved) => {}
            }
            let _waiting = meter.wait();
            self.wanted.notify_one();
            // The sender lives in `self`, so it is only the deadline that can end this with an error.
            if timeout_at(deadline, attempts.changed()).await.is_err() {
                return Err(NoToken::Unrecorded);
            }
        }
    }

    /// Completes when the file is to be written: when a reservation is wanted, and at each tick of `upkeep`. Cancel safe; one
    /// listener.
    pub(super) async fn due(&self, upkeep: &mut Interval) -> Writing {
        let is_failing = *self.is_failing.borrow();
        tokio::select! {
            // A disk that fails is not tried again for each request.
            () = self.wanted.notified(), if !is_failing => Writing::Reserve,
            _ = upkeep.tick() => Writing::Settle,
        }
    }

    /// Brings the file up to date with `meters`, if they have changed. Blocks on the disk.
    pub(super) fn write(
        &self,
        meters: &dyn Fn() -> Vec<(String, Arc<Meter>)>,
        writing: Writing,
    ) -> io::Result<()> {
        let mut written = self.written.lock();
        let meters = meters();
        let present: Usages =
            meters.iter().map(|(name, meter)| (name.clone(), meter.to_write(writing))).collect();
        if written.as_ref() != Some(&present) {
            let json = serde_json::to_vec_pretty(&present).map_err(io::Error::other)?;
            // After a failure either version may be in place.
            *written = None;
            write_private(&self.path, &json)?;
            *written = Some(present.clone());
        }
        for (name, meter) in &meters {
            if let Some(usage) = present.get(name) {
                meter.written(*usage);
            }
        }
        Ok(())
    }

    /// How an attempt to write has ended: for those who wait, and for the operator.
    pub(super) fn report(&self, written: io::Result<()>, health: &Health) {
        self.is_failing.send_replace(written.is_err());
        match written {
            Ok(()) => health.clear(Fault::Counts),
            Err(error) => health.raise(
                Fault::Counts,
                format!(
                    "the quota counts cannot be written to {}: {error}. No account gets tokens beyond what was reserved for it \
                     before, for a restart would forget how many: further requests are answered 503. Free some space, or \
                     make the directory writable",
                    self.path.display()
                ),
            ),
        }
    }
}

/// Finds what the issuer would refuse of the file at its start.
pub(crate) fn inspect(path: &Path) -> Result<(), StartError> {
    read(path).map(drop)
}

/// An empty file is damage too: it would hand out every quota anew.
fn read(path: &Path) -> Result<Usages, StartError> {
    let refused = |reason: String| StartError::Usage { path: path.to_owned(), reason };
    match std::fs::read(path) {
        Ok(json) => serde_json::from_slice(&json).map_err(|error| refused(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Usages::new()),
        Err(error) => Err(refused(error.to_string())),
    }
}
