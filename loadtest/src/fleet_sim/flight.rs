//! What a gateway does at one time for one presentation, or for one canary.

use super::queue::Nanos;
use super::route::Gathered;
use super::stores::Name;

/// What a gateway is doing for a presentation, or for a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Hint,
    Verdict,
    Whose,
    Canary,
    Rewrite,
}

/// A presentation, or a canary, between its first command and its verdict.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    /// Of its command: what belongs to an earlier one does not count any more.
    pub(super) serial: u32,
    pub(super) name: Name,
    pub(super) attempt: u8,
    pub(super) gateway: u16,
    pub(super) stage: Stage,
    pub(super) gathered: Gathered,
    pub(super) began: Nanos,
}
