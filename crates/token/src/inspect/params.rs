//! Where the parameters of our scheme stand in a header value.

use crate::header::is_ours;
use crate::header::scan::{Item, Scanner};

pub(super) struct Param<'a> {
    /// Of which credentials or challenge of our scheme, counted from 0.
    pub(super) index: usize,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
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
                Item::Param { name, value, offset } if in_ours => {
                    return Some(Param { index: seen - 1, name, value, offset });
                }
                Item::Param { .. } | Item::Token68 => {}
            }
        }
    })
}

/// The parameters of this name in our `index`th credentials or challenge.
pub(super) fn named<'a>(text: &'a str, index: usize, name: &str) -> impl Iterator<Item = Param<'a>> {
    params(text.as_bytes())
        .filter(move |param| param.index == index && param.name.eq_ignore_ascii_case(name.as_bytes()))
}
