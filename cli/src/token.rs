mod inspect;
mod mint;
mod output;

pub(crate) use inspect::{compare, inspect};
pub(crate) use mint::mint;
