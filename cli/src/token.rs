mod compare;
mod inspect;
mod mint;
mod output;

pub(crate) use compare::compare;
pub(crate) use inspect::inspect;
pub(crate) use mint::mint;
