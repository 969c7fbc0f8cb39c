//! Key rotation as users of agents meet it: not at all. Twenty scheduled rotations of each token type under load, with agents
//! that are busy, idle and away; the procedure "rotate now" of `docs/operate/change.md`, step by step as it stands there; and the
//! commands on keys, on an issuer that runs and on one that does not.
//!
//! Key times are seconds here instead of days, so a rotation takes `ROTATE_EVERY`, and nothing in it is
//! otherwise different. The whole file takes about two and a half minutes, most of it sleeping.
//!
//! POSTERN_ROTATIONS   how many scheduled rotations there are (20)

mod commands;
mod keys;
mod now;
mod procedure;
mod scheduled;
