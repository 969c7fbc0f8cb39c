//! The life of a request: one file a stage, `session` that calls them in order, and what they need to know. Stages do
//! not call each other. `deny` chooses every status; `egress` decides which targets may be reached.

pub(crate) mod admit;
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
pub(crate) mod upload;
pub(crate) mod verify;
