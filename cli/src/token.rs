//! `postern token`: minting and inspecting.

mod inspect;
mod mint;
mod output;
mod stop;

pub(crate) use inspect::inspect;
pub(crate) use mint::mint;
