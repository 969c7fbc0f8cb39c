//! Defects that were mended, and that a simulation puts back to show that it finds them. In other builds none can be.

/// A mended defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Undo {
    /// The clocks of store and gateway are not compared.
    ClockCanary,
    /// Canaries of which one has no answer in time say nothing, and no round need ever say anything.
    BlindWatch,
    /// A connection is accepted when it reads some of the probes.
    SomeProbes,
    /// Every canary that is missing counts as lost, whether it was ever written or not.
    PlantedCanaries,
    /// What was found while the record was on its way does not matter once it is stored.
    PermitsAfterStored,
    /// Connections that older probes have proven stay in use, wherever the new ones were written.
    OlderProbes,
    /// The witness of one replica speaks for the record of another, as behind a majority route.
    WitnessApart,
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
