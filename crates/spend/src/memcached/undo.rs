//! Fixed defects that a simulation restores to prove that it finds them. Other builds cannot have them.

/// A fixed defect.
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

#[cfg(feature = "simulation")]
pub(super) use switch::is_undone;
#[cfg(feature = "simulation")]
pub use switch::undo;

#[cfg(feature = "simulation")]
mod switch {
    use super::Undo;
    use std::cell::Cell;

    thread_local!(static UNDONE: Cell<Option<Undo>> = const { Cell::new(None) });

    /// Gives stores on this thread this defect from now on, or none.
    pub fn undo(defect: Option<Undo>) {
        UNDONE.set(defect);
    }

    pub(in crate::memcached) fn is_undone(defect: Undo) -> bool {
        UNDONE.get() == Some(defect)
    }
}
