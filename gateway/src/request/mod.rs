//! The life of a request: one file per stage, `session`, which calls the stages in order, and shared types. Stages do not call
//! each other. `deny` selects every status; `egress` decides which targets may be reached.

pub(crate) mod answer;
pub(crate) mod check;
pub(crate) mod dear;
pub(crate) mod deny;
pub(crate) mod dial;
pub(crate) mod egress;
pub(crate) mod forward;
pub(crate) mod hops;
pub(crate) mod parse;
pub(crate) mod peer;
pub(crate) mod resolve;
pub(crate) mod session;
pub(crate) mod spend;
pub(crate) mod tunnel;
pub(crate) mod verify;
