//! Errors of every layer, each with the byte of the whole value at which it happened.

use super::params::{named, params};
use crate::encoding::{Base64Error, WireError, decode_base64url_vec};
use crate::header::{AuthenticateError, AuthorizationError, GrammarError};
use std::fmt;

/// What is wrong with the value, and where. Displays as a sentence and, where the place is known, the part of the
/// value around it with a caret below.
#[derive(Clone, PartialEq, Eq)]
pub struct InspectError {
    sentence: String,
    /// Byte of `value`.
    offset: Option<usize>,
    value: String,
}

impl InspectError {
    /// The sentence alone.
    #[must_use]
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// The byte of the inspected value at which it goes wrong, counted from 0, where one can be named.
    #[must_use]
    pub const fn offset(&self) -> Option<usize> {
        self.offset
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const AROUND: usize = 30;
        f.write_str(&self.sentence)?;
        let Some(offset) = self.offset else { return Ok(()) };
        // By characters, not bytes: the caret shall stand below the right one, and nothing reach a terminal that moves what it shows.
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

/// The value may hold a token: it is for the terminal, never for a log.
impl fmt::Debug for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InspectError({:?}, byte {:?})", self.sentence, self.offset)
    }
}

/// An error in the making: offsets count from the beginning of the whole value.
pub(super) struct Fault {
    sentence: String,
    offset: Option<usize>,
}

impl Fault {
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), offset: None }
    }

    pub(super) fn at(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }

    pub(super) fn within(self, value: &str) -> InspectError {
        InspectError { sentence: self.sentence, offset: self.offset, value: value.to_owned() }
    }

    pub(super) fn of_grammar(error: GrammarError) -> Self {
        let (GrammarError::UnclosedQuote(offset)
        | GrammarError::Unexpected { offset, .. }
        | GrammarError::NoScheme(offset)
        | GrammarError::Escape(offset)) = error;
        Self::new(format!("the value is malformed: {error}")).at(offset)
    }

    /// `offset` is where the base64url begins.
    pub(super) fn of_base64(error: Base64Error, what: &str, offset: usize) -> Self {
        let place = match error {
            Base64Error::Character { offset: inner, .. }
            | Base64Error::LastCharacter { offset: inner, .. } => inner,
            Base64Error::Length(length) => length.saturating_sub(1),
            Base64Error::TooLong { max } => max.div_ceil(3) * 4,
        };
        Self::new(format!("{what}: {error}")).at(offset + place)
    }

    /// Four characters carry three bytes, so a byte is found in its text.
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
                Self { sentence: error.to_string(), offset: tokens.map(|param| param.offset).nth(1) }
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
                Self { sentence: error.to_string(), offset: second.map(|param| param.offset) }
            }
            AuthenticateError::MaxAge => {
                let is_number = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let wrong = named(text, index, "max-age").find(|param| !is_number(param.value));
                Self { sentence: error.to_string(), offset: wrong.map(|param| param.offset) }
            }
            AuthenticateError::NoChallenge => Self::new(error.to_string()),
        }
    }
}
