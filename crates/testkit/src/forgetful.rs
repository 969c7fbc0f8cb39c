//! A disk that forgets at a power cut whatever was not synced: a file system over FUSE, with its contents in memory.
//!
//! It forgets all that POSIX lets it forget. Written bytes, a file's length and its truncation are on disk when the file
//! has been synced; a name that was made, renamed or removed is on disk when its directory has been, whether or not the
//! file itself was. Only a rename is one step, as on every file system with a journal.
//!
//! Needs `/dev/fuse` and root. Tests that use it are ignored with a reason, and `scripts/test` runs them where both are.

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

/// A mounted disk, unmounted when dropped. Drop what has files open there before.
pub struct ForgetfulDisk {
    shared: Arc<Mutex<State>>,
    place: tempfile::TempDir,
}

impl Drop for ForgetfulDisk {
    fn drop(&mut self) {
        mounted::unmount(self.place.path());
    }
}

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug)]
pub enum Survivors {
    /// Nothing.
    None,
    /// A part that this seed chooses: sectors of 512 bytes, lengths and names, each for itself, whatever their order.
    Some(u64),
}

impl ForgetfulDisk {
    /// Mounts an empty disk, which is on.
    ///
    /// # Panics
    /// If it cannot be mounted.
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// From now on only these syncs have an effect.
    pub fn set_syncs(&self, syncs: Syncs) {
        self.state().syncs = syncs;
    }

    /// Lets the power fail after this number of further steps: a write, a sync, and whatever changes a name or a length is one.
    pub fn cut_after(&self, steps: u64) {
        let mut state = self.state();
        state.last = state.steps + steps;
    }

    /// Cuts the power now. From here on every call fails, also on files that are open.
    pub fn cut(&self) {
        self.state().on = false;
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        self.state().on
    }

    /// Whether a power cut now would cost nothing.
    pub fn has_all_synced(&self) -> bool {
        self.state().contents.is_synced()
    }

    /// Turns the power on again, after cutting it if it was not. Drop what had files open before the cut first.
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
