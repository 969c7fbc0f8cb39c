//! Grammar of `Proxy-Authenticate` and `Proxy-Authorization` (RFC 9110, section 11), parsed leniently: values quoted or bare,
//! padded or not; parameters separated by commas or spaces; any other scheme next to ours.

use memchr::{memchr, memchr2, memchr3};
use std::ops::Range;

/// Name of the scheme, compared without regard to case (RFC 9110, section 11.1).
pub const SCHEME: &str = "PrivateToken";

pub(crate) fn is_ours(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
}

/// Returns the position of a backslash in a value that is not base64url. A backslash has a separate error.
pub(super) fn escape_in(value: &[u8]) -> Option<usize> {
    value.iter().position(|&byte| byte == b'\\')
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// Name of a scheme; the items up to the next scheme belong to it.
    Scheme(&'a [u8]),
    /// Opaque value that some schemes have instead of parameters; ours has none.
    Token68,
    /// A parameter; `offset` is the position of its value. A quoted value is the text between the quotation marks, escapes
    /// included: no value of our scheme has any.
    Param { name: &'a [u8], value: &'a [u8], offset: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("the quotation mark at byte {0} is never closed")]
    UnclosedQuote(usize),
    #[error(
        "byte {offset} ({}) cannot stand there; separate parameters with commas",
        char::from(*byte).escape_default()
    )]
    Unexpected {
        /// Its position, counted from 0.
        offset: usize,
        byte: u8,
    },
    #[error("the parameter at byte {0} belongs to no scheme; begin with PrivateToken and a space")]
    NoScheme(usize),
    #[error("byte {0} is a backslash inside a quoted value; base64url needs none")]
    Escape(usize),
}

/// Iterator over the items of a header value. Borrows, never allocates.
pub(crate) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    seen_scheme: bool,
    /// `true` if the last scheme is ours, which has no token68: `PrivateToken token=` is a parameter without a value.
    in_ours: bool,
    /// `true` from a scheme to the next comma: a bare word is the scheme's token68.
    after_scheme: bool,
}

impl<'a> Scanner<'a> {
    pub(crate) const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, seen_scheme: false, in_ours: false, after_scheme: false }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Item<'a>>, GrammarError> {
        self.skip_separators();
        let Some(&byte) = self.text.get(self.at) else { return Ok(None) };
        let offset = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(GrammarError::Unexpected { offset, byte });
        }
        let name_end = self.at;
        self.skip_spaces();
        if self.peek() != Some(b'=') {
            return Ok(Some(self.scheme_or_token68(word)));
        }
        if self.after_scheme && !self.in_ours && self.is_padding_of_token68(name_end) {
            self.advance_while(|byte| byte == b'=');
            self.after_scheme = false;
            return Ok(Some(Item::Token68));
        }
        if !self.seen_scheme {
            return Err(GrammarError::NoScheme(offset));
        }
        self.at += 1;
        self.skip_spaces();
        self.after_scheme = false;
        let value = self.value()?;
        Ok(Some(Item::Param { name: word, value: &self.text[value.clone()], offset: value.start }))
    }

    fn scheme_or_token68(&mut self, word: &'a [u8]) -> Item<'a> {
        if std::mem::replace(&mut self.after_scheme, false) {
            return Item::Token68;
        }
        self.after_scheme = self.peek() != Some(b',');
        self.seen_scheme = true;
        self.in_ours = is_ours(word);
        Item::Scheme(word)
    }

    /// Returns `true` for `Basic Zm9v==, …`: the element ends after the equals signs. No parameter has the form `token==…`,
    /// because no value begins with `=`.
    fn is_padding_of_token68(&self, name_end: usize) -> bool {
        let mut rest = self.text[self.at..].iter().skip_while(|&&byte| byte == b'=');
        name_end == self.at && matches!(rest.next(), None | Some(b',' | b' ' | b'\t'))
    }

    /// Reads a value, and requires a separator or the end after it.
    fn value(&mut self) -> Result<Range<usize>, GrammarError> {
        let value = if self.peek() == Some(b'"') { self.quoted()? } else { self.bare() };
        match self.peek() {
            None | Some(b' ' | b'\t' | b',') => Ok(value),
            Some(byte) => Err(GrammarError::Unexpected { offset: self.at, byte }),
        }
    }

    fn bare(&mut self) -> Range<usize> {
        let rest = &self.text[self.at..];
        let end = memchr3(b' ', b',', b'"', rest).unwrap_or(rest.len());
        let end = memchr(b'\t', &rest[..end]).unwrap_or(end);
        self.at += end;
        self.at - end..self.at
    }

    fn quoted(&mut self) -> Result<Range<usize>, GrammarError> {
        let quote = self.at;
        self.at += 1;
        // Nearly all of a header value is one quoted token, so this search dominates the cost of parsing.
        while let Some(found) = memchr2(b'"', b'\\', self.text.get(self.at..).unwrap_or_default()) {
            self.at += found + 1;
            match self.text[self.at - 1] {
                b'"' => return Ok(quote + 1..self.at - 1),
                _ => self.at += 1, // skips the escaped byte (RFC 9110, section 5.6.4)
            }
        }
        Err(GrammarError::UnclosedQuote(quote))
    }

    /// Reads the characters of a token (RFC 9110, section 5.6.2) or of a token68.
    fn word(&mut self) -> &'a [u8] {
        let start = self.at;
        self.advance_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(&byte));
        &self.text[start..self.at]
    }

    fn skip_separators(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b',')) = self.peek() {
            if byte == b',' {
                self.after_scheme = false;
            }
            self.at += 1;
        }
    }

    fn skip_spaces(&mut self) {
        self.advance_while(|byte| matches!(byte, b' ' | b'\t'));
    }

    fn advance_while(&mut self, belongs: impl Fn(u8) -> bool) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|&byte| !belongs(byte)).unwrap_or(rest.len());
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
}
