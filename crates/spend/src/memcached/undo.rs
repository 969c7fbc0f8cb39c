//! Defects that were mended, and that a simulation puts back to show that it finds them. In other builds none can be.

/// A mended defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Undo {
    /// The witness of one replica speaks for the record of another, as behind a majority route.
    WitnessApart,
    /// The arrangement is no part of a witness's and an offer's name.
    SharedNames,
    /// A witness outlives the records that it stands for.
    LastingWitness,
    /// A witness that is missing is written again.
    WitnessAgain,
    /// A record is admitted without its witness.
    NoWitness,
    /// Four marks in an hour at most, whatever is void meanwhile.
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

    /// From now on stores on this thread have this defect, or none.
    pub fn undo(defect: Option<Undo>) {
        UNDONE.set(defect);
    }

    pub(in crate::memcached) fn is_undone(defect: Undo) -> bool {
        UNDONE.get() == Some(defect)
    }
}
