//! The surroundings of the store: network, clocks and randomness. A simulation replaces them and runs the code that ships.

use super::address::{Address, Connection};
use postern_token::UnixSeconds;
#[cfg(not(feature = "simulation"))]
use rand::Rng;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// An attempt to connect in a simulated network.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send + 'a>>;

/// A simulated network, and the wall clock of one machine in it.
///
/// The monotonic clock is tokio's: a runtime with a paused clock simulates it.
pub trait World: Send + Sync {
    fn connect<'a>(&'a self, address: &'a Address) -> Connecting<'a>;

    fn now(&self) -> UnixSeconds;
}

/// Returns the time of the monotonic clock: tokio's, which a simulation can pause.
pub(crate) fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

pub(crate) fn since(earlier: Instant) -> Duration {
    instant().saturating_duration_since(earlier)
}

/// Returns random bytes that no other process can guess.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    with_chance(|chance| chance.fill_bytes(&mut bytes));
    bytes
}

/// Returns a random time between half of `longest` and `longest`, so that a fleet does not act in step.
pub(crate) fn jittered(longest: Duration) -> Duration {
    with_chance(|chance| longest.mul_f64(rand::RngExt::random_range(chance, 0.5..1.0)))
}

/// A fixed defect that a simulation restores to prove that it finds it. Other builds cannot have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Undo {
    /// The witness of one replica counts for the record of another, as behind a majority route.
    WitnessApart,
    /// The names of witnesses and offers do not include the arrangement.
    SharedNames,
    /// A witness outlives the records that it stands for.
    LastingWitness,
    /// A missing witness is written again.
    WitnessAgain,
    /// A record is admitted without its witness.
    NoWitness,
    /// At most four marks in an hour, whatever is void.
    FourAnHour,
}

#[cfg(not(feature = "simulation"))]
pub(super) const fn is_undone(_: Undo) -> bool {
    false
}

#[cfg(not(feature = "simulation"))]
fn with_chance<T>(draw: impl FnOnce(&mut rand::rngs::ThreadRng) -> T) -> T {
    draw(&mut rand::rng())
}

#[cfg(feature = "simulation")]
pub(super) use simulation::{is_undone, with_chance};
#[cfg(feature = "simulation")]
pub use simulation::{seed, undo};

/// Reproducible randomness and restored defects, in builds for simulations only.
#[cfg(feature = "simulation")]
mod simulation {
    use super::Undo;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::cell::{Cell, RefCell};

    thread_local! {
        static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
        static UNDONE: Cell<Option<Undo>> = const { Cell::new(None) };
    }

    /// Seeds all randomness that stores draw on this thread from now on.
    pub fn seed(seed: u64) {
        SEEDED.set(Some(StdRng::seed_from_u64(seed)));
    }

    /// Gives stores on this thread this defect from now on, or none.
    pub fn undo(defect: Option<Undo>) {
        UNDONE.set(defect);
    }

    pub(in crate::memcached) fn is_undone(defect: Undo) -> bool {
        UNDONE.get() == Some(defect)
    }

    pub(in crate::memcached) fn with_chance<T>(draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => draw(seeded),
            None => draw(&mut rand::rng()),
        })
    }
}
