//! Errors of every layer, and the parameters of a header value, each with its position in the whole value.

use crate::encoding::{Base64Error, WireError, decode_base64url_vec};
use crate::header::scan::{Item, Scanner};
use crate::header::{AuthenticateError, AuthorizationError, GrammarError, is_ours};
use std::fmt;

/// Error in an inspected value. Displays as a sentence and, if the position is known, the surrounding part of the value with a
/// caret below.
#[derive(Clone, PartialEq, Eq)]
pub struct InspectError {
    sentence: String,
    /// Position in `value`, in bytes.
    offset: Option<usize>,
    value: String,
}

impl InspectError {
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Returns the position of the error in the inspected value, in bytes from 0; `None` if it has none.
    pub const fn offset(&self) -> Option<usize> {
        self.offset
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const AROUND: usize = 30;
        f.write_str(&self.sentence)?;
        let Some(offset) = self.offset else { return Ok(()) };
        // Counts characters, not bytes, so that the caret is below the right one, and replaces characters that could control a
        // terminal.
        let before: Vec<char> =
            self.value.char_indices().filter(|&(at, _)| at < offset).map(|(_, c)| c).collect();
        let after = self.value.char_indices().filter(|&(at, _)| at >= offset).map(|(_, c)| c);
        let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let before: String =
            before[before.len().saturating_sub(AROUND)..].iter().map(|&c| shown(c)).collect();
        let after: String = after.take(AROUND).map(shown).collect();
        write!(f, "\n  {before}{after}\n  {:>width$} byte {offset}", "^", width = before.chars().count() + 1)
    }
}

impl std::error::Error for InspectError {}

/// Omits the value, which may contain a token: it is for the terminal, never for a log.
impl fmt::Debug for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InspectError({:?}, byte {:?})", self.sentence, self.offset)
    }
}

impl InspectError {
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), offset: None, value: String::new() }
    }

    pub(super) fn at(self, offset: impl Into<Option<usize>>) -> Self {
        Self { offset: offset.into(), ..self }
    }

    pub(super) fn within(self, value: &str) -> Self {
        Self { value: value.to_owned(), ..self }
    }

    pub(super) fn of_grammar(error: GrammarError) -> Self {
        let (GrammarError::UnclosedQuote(offset)
        | GrammarError::Unexpected { offset, .. }
        | GrammarError::NoScheme(offset)
        | GrammarError::Escape(offset)) = error;
        Self::new(format!("the value is malformed: {error}")).at(offset)
    }

    /// Converts a base64url error; `offset` is the position of the base64url text.
    pub(super) fn of_base64(error: Base64Error, what: &str, offset: usize) -> Self {
        let place = match error {
            Base64Error::Character { offset: inner, .. }
            | Base64Error::LastCharacter { offset: inner, .. } => inner,
            Base64Error::Length(length) => length.saturating_sub(1),
            Base64Error::TooLong { max } => max.div_ceil(3) * 4,
        };
        Self::new(format!("{what}: {error}")).at(offset + place)
    }

    /// Converts a wire error. Four base64url characters carry three bytes, which locates a byte in the text.
    pub(super) fn of_wire(error: WireError, what: &str, offset: usize) -> Self {
        let (WireError::Truncated { offset: byte, .. }
        | WireError::Trailing { offset: byte, .. }
        | WireError::Field { offset: byte, .. }) = error;
        Self::new(format!("{what}: {error}")).at(offset + byte * 4 / 3)
    }

    pub(super) fn of_authorization(error: AuthorizationError, text: &str, offset: usize) -> Self {
        match error {
            AuthorizationError::Grammar(error) => Self::of_grammar(error),
            AuthorizationError::Base64(error) => {
                Self::of_base64(error, "the token parameter is not base64url", offset)
            }
            AuthorizationError::Wire(error) => {
                Self::of_wire(error, "the token parameter does not hold a token", offset)
            }
            AuthorizationError::EmptyToken => Self::new(error.to_string()).at(offset),
            AuthorizationError::SeveralTokens => {
                let tokens =
                    params(text.as_bytes()).filter(|param| param.name.eq_ignore_ascii_case(b"token"));
                Self::new(error.to_string()).at(tokens.map(|param| param.offset).nth(1))
            }
            AuthorizationError::NoToken => Self::new(error.to_string()),
        }
    }

    pub(super) fn of_authenticate(error: AuthenticateError, text: &str, index: usize) -> Self {
        match error {
            AuthenticateError::Grammar(error) => Self::of_grammar(error),
            AuthenticateError::Base64 { parameter, error } => {
                let what = format!("the {parameter} parameter is not base64url");
                let wrong =
                    named(text, index, parameter).find(|param| decode_base64url_vec(param.value).is_err());
                Self::of_base64(error, &what, wrong.map_or(0, |param| param.offset))
            }
            AuthenticateError::Duplicate(parameter) => {
                let second = named(text, index, parameter).nth(1);
                Self::new(error.to_string()).at(second.map(|param| param.offset))
            }
            AuthenticateError::MaxAge => {
                let is_number = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let wrong = named(text, index, "max-age").find(|param| !is_number(param.value));
                Self::new(error.to_string()).at(wrong.map(|param| param.offset))
            }
            AuthenticateError::NoChallenge => Self::new(error.to_string()),
        }
    }
}

/// A parameter of our scheme in a header value.
pub(super) struct Param<'a> {
    /// Index of the credentials or challenge of our scheme, counted from 0.
    pub(super) index: usize,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// Position of the value.
    pub(super) offset: usize,
}

/// Iterates over the parameters of our scheme, up to the first violation of the grammar.
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

/// Iterates over the parameters of this name in the `index`th credentials or challenge of our scheme.
pub(super) fn named<'a>(text: &'a str, index: usize, name: &str) -> impl Iterator<Item = Param<'a>> {
    params(text.as_bytes())
        .filter(move |param| param.index == index && param.name.eq_ignore_ascii_case(name.as_bytes()))
}
