mod inspect;
mod mint;

pub(crate) use inspect::{compare, inspect};
pub(crate) use mint::mint;
