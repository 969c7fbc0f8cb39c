//! A disk that loses all unsynced data in a power cut: a file system over FUSE with its contents in memory.
//!
//! The disk loses everything that POSIX allows it to lose. Written bytes, a file's length and its truncation are on disk once the
//! file is synced. A created, renamed or removed name is on disk once its directory is synced, regardless of syncs of the file.
//! Only a rename is atomic, as on every file system with a journal.
//!
//! Requires `/dev/fuse` and root. Tests that use it are ignored with a reason, and `scripts/test` runs them where both are
//! available.

mod contents;
mod mounted;
#[cfg(test)]
mod power_loss;

pub use contents::Syncs;
use contents::{Contents, State};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// A mounted disk, unmounted when dropped. Close its open files first.
pub struct ForgetfulDisk {
    shared: Arc<Mutex<State>>,
    place: tempfile::TempDir,
}

impl Drop for ForgetfulDisk {
    fn drop(&mut self) {
        mounted::unmount(self.place.path());
    }
}

/// Unsynced data that survives a power cut.
#[derive(Clone, Copy, Debug)]
pub enum Survivors {
    /// Nothing.
    None,
    /// A part chosen by this seed: sectors of 512 bytes, lengths and names, each independently and in any order.
    Some(u64),
}

impl ForgetfulDisk {
    /// Mounts an empty disk with its power on.
    ///
    /// # Panics
    /// Panics if the disk cannot be mounted.
    pub fn mount() -> Self {
        let place = tempfile::tempdir().unwrap();
        let state = State {
            contents: Contents::new(),
            syncs: Syncs::Kept,
            boot: 1,
            on: true,
            steps: 0,
            last: u64::MAX,
        };
        let shared = Arc::new(Mutex::new(state));
        if let Err(error) = mounted::mount(&shared, place.path()) {
            panic!("no file system can be mounted: this needs root and /dev/fuse ({error})");
        }
        Self { shared, place }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Sets the syncs that have an effect from now on.
    pub fn set_syncs(&self, syncs: Syncs) {
        self.state().syncs = syncs;
    }

    /// Lets the power fail after this number of further steps: each write, each sync and each change of a name or a length is a
    /// step.
    pub fn cut_after(&self, steps: u64) {
        let mut state = self.state();
        state.last = state.steps + steps;
    }

    /// Cuts the power now. Every later call fails, also on open files.
    pub fn cut(&self) {
        self.state().on = false;
    }

    /// Returns `true` if the power is on.
    pub fn is_on(&self) -> bool {
        self.state().on
    }

    /// Returns `true` if a power cut now would lose nothing.
    pub fn has_all_synced(&self) -> bool {
        self.state().contents.is_synced()
    }

    /// Turns the power on, after cutting it if it is on. Close the files that were open before the cut first.
    pub fn restart(&self, survivors: Survivors) {
        let mut state = self.state();
        match survivors {
            Survivors::None => state.contents.forget(&mut || false),
            Survivors::Some(seed) => {
                let mut random = StdRng::seed_from_u64(seed);
                let share = random.random_range(0.0..1.0);
                state.contents.forget(&mut || random.random_bool(share));
            }
        }
        state.boot += 1;
        (state.on, state.last) = (true, u64::MAX);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap()
    }
}
