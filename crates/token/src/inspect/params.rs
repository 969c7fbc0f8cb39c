//! Where the parameters of our scheme stand in a header value.

use crate::header::is_ours;
use crate::header::scan::{Item, Scanner};

pub(super) struct Param<'a> {
    /// Of which credentials or challenge of our scheme, counted from 0.
    pub(super) index: usize,
    pub(super) name: &'a [u8],
    /// Where its value begins.
    pub(super) offset: usize,
}

/// The parameters of our scheme, up to the first error of grammar.
pub(super) fn params(text: &[u8]) -> impl Iterator<Item = Param<'_>> {
    let mut scanner = Scanner::new(text);
    let (mut in_ours, mut seen) = (false, 0);
    std::iter::from_fn(move || {
        loop {
            match scanner.next().ok().flatten()? {
                Item::Scheme(scheme) => {
                    in_ours = is_ours(scheme);
                    seen += usize::from(in_ours);
                }
                Item::Param { name, offset, .. } if in_ours => {
                    return Some(Param { index: seen - 1, name, offset });
                }
                Item::Param { .. } | Item::Token68 => {}
            }
        }
    })
}

/// Where the value of the last parameter of this name begins.
pub(super) fn offset_of(text: &str, index: usize, name: &str) -> Option<usize> {
    params(text.as_bytes())
        .filter(|param| param.index == index && param.name.eq_ignore_ascii_case(name.as_bytes()))
        .map(|param| param.offset)
        .last()
}
