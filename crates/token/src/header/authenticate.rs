//! `Proxy-Authenticate: PrivateToken challenge="…", token-key="…", max-age=…` (RFC 9577, section 2.1.2).

use super::scan::{GrammarError, Item, Scanner};
use super::{SCHEME, escape_in, is_ours};
use crate::challenge::TokenChallenge;
use crate::encoding::{Base64Error, WireError, decode_base64url_vec, encode_base64url};
use std::fmt::Write as _;

/// Quotation marks around base64url values, which may contain `=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quoting {
    /// Quoted, as in RFC 9577's grammar.
    #[default]
    Quoted,
    /// Unquoted, for clients of 2023 that reject quotation marks.
    Bare,
}

/// One `PrivateToken` challenge of a header value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Exact bytes of the `TokenChallenge`. Tokens carry their digest, so they are never re-serialized.
    pub bytes: Vec<u8>,
    /// The issuer's public key, from `token-key`. `None` if the client should fetch it from the directory.
    pub token_key: Option<Vec<u8>>,
    /// Validity of the challenge in seconds.
    pub max_age: Option<u64>,
}

/// Error of a header value without a usable challenge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    #[error("the header value is malformed: {0}")]
    Grammar(#[from] GrammarError),
    #[error(
        "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it"
    )]
    NoChallenge,
    #[error("the {0} parameter occurs twice in one PrivateToken challenge")]
    Duplicate(&'static str),
    #[error("the {parameter} parameter is not base64url: {error}")]
    Base64 { parameter: &'static str, error: Base64Error },
    #[error("the max-age parameter is not a whole number of seconds")]
    MaxAge,
}

impl Challenge {
    /// Parses the `PrivateToken` challenges of one header value, in the server's order of preference. Skips other schemes,
    /// unknown parameters, and a malformed challenge next to a valid one: a client answers one that it understands (RFC 9577,
    /// section 2.1.3).
    ///
    /// # Errors
    /// [`AuthenticateError`], with the position: a violation of the grammar, or the first malformed challenge if none is valid.
    pub fn parse_all(value: &[u8]) -> Result<Vec<Self>, AuthenticateError> {
        let mut found = Vec::new();
        let mut first_error = None;
        for outcome in Self::parse_each(value)? {
            match outcome {
                Ok(challenge) => found.push(challenge),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Parses every `PrivateToken` challenge, valid or malformed.
    pub(crate) fn parse_each(value: &[u8]) -> Result<Vec<Result<Self, AuthenticateError>>, GrammarError> {
        let mut scanner = Scanner::new(value);
        let mut found = Vec::new();
        let mut open: Option<Result<Parameters, AuthenticateError>> = None;
        while let Some(item) = scanner.next()? {
            match item {
                Item::Scheme(scheme) => {
                    let next = is_ours(scheme).then(|| Ok(Parameters::default()));
                    found.extend(std::mem::replace(&mut open, next));
                }
                Item::Param { name, value, offset } => {
                    open = open.map(|challenge| challenge?.with(name, value, offset));
                }
                Item::Token68 => {}
            }
        }
        found.extend(open);
        Ok(found.into_iter().map(|challenge| challenge?.finish()).collect())
    }

    /// Formats the header value, with padded base64url (RFC 9577, section 2.1.2).
    pub fn format(&self, quoting: Quoting) -> String {
        let mark = if quoting == Quoting::Quoted { "\"" } else { "" };
        let mut value = format!("{SCHEME} challenge={mark}{}{mark}", encode_base64url(&self.bytes));
        if let Some(key) = &self.token_key {
            // Writing to a string cannot fail.
            let _ = write!(value, ", token-key={mark}{}{mark}", encode_base64url(key));
        }
        if let Some(seconds) = self.max_age {
            let _ = write!(value, ", max-age={seconds}");
        }
        value
    }

    /// Parses the challenge's bytes.
    pub fn token_challenge(&self) -> Result<TokenChallenge, WireError> {
        TokenChallenge::parse(&self.bytes)
    }
}

#[derive(Default)]
struct Parameters {
    challenge: Option<Vec<u8>>,
    token_key: Option<Vec<u8>>,
    max_age: Option<u64>,
}

impl Parameters {
    fn with(mut self, name: &[u8], value: &[u8], offset: usize) -> Result<Self, AuthenticateError> {
        if name.eq_ignore_ascii_case(b"challenge") {
            set(&mut self.challenge, "challenge", decode("challenge", value, offset)?)?;
        } else if name.eq_ignore_ascii_case(b"token-key") {
            set(&mut self.token_key, "token-key", decode("token-key", value, offset)?)?;
        } else if name.eq_ignore_ascii_case(b"max-age") {
            set(&mut self.max_age, "max-age", seconds(value)?)?;
        }
        Ok(self)
    }

    fn finish(self) -> Result<Challenge, AuthenticateError> {
        let bytes = self.challenge.filter(|bytes| !bytes.is_empty()).ok_or(AuthenticateError::NoChallenge)?;
        Ok(Challenge { bytes, token_key: self.token_key, max_age: self.max_age })
    }
}

fn set<T>(field: &mut Option<T>, parameter: &'static str, value: T) -> Result<(), AuthenticateError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(AuthenticateError::Duplicate(parameter)),
    }
}

fn decode(parameter: &'static str, value: &[u8], offset: usize) -> Result<Vec<u8>, AuthenticateError> {
    decode_base64url_vec(value).map_err(|error| match escape_in(value) {
        Some(backslash) => GrammarError::Escape(offset + backslash).into(),
        None => AuthenticateError::Base64 { parameter, error },
    })
}

/// Parses a number of seconds, which saturates at `u64::MAX`.
fn seconds(digits: &[u8]) -> Result<u64, AuthenticateError> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(AuthenticateError::MaxAge);
    }
    let append = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Ok(digits.iter().fold(0, append))
}
