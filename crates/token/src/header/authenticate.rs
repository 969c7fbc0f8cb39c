//! `Proxy-Authenticate: PrivateToken challenge="…", token-key="…", max-age=…` (RFC 9577, section 2.1.1).

use super::scan::{GrammarError, Item, Scanner};
use super::{SCHEME, is_ours};
use crate::challenge::TokenChallenge;
use crate::encoding::{Base64Error, WireError, decode_base64url_vec, encode_base64url};
use std::fmt::Write as _;

/// Whether values that contain `=` stand in quotation marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quoting {
    /// As RFC 9577's grammar has it.
    #[default]
    Quoted,
    /// For clients of 2023 that refuse quotation marks.
    Bare,
}

/// One `PrivateToken` challenge of a header value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The exact bytes of the `TokenChallenge`: tokens carry their digest, so they are never re-serialized.
    pub bytes: Vec<u8>,
    /// The issuer's public key, as `token-key` gives it. Absent when the client should ask the directory.
    pub token_key: Option<Vec<u8>>,
    /// For how many seconds the challenge is good.
    pub max_age: Option<u64>,
}

/// Why a header value does not hold a challenge that can be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// The value breaks the grammar.
    #[error("the header value is malformed: {0}")]
    Grammar(#[from] GrammarError),
    /// A `PrivateToken` challenge without its `challenge` parameter, or with two.
    #[error("a PrivateToken challenge must have exactly one challenge parameter")]
    ChallengeParameter,
    /// A parameter is not base64url.
    #[error("the {parameter} parameter is not base64url: {error}")]
    Base64 {
        /// Its name.
        parameter: &'static str,
        /// What is wrong with it.
        error: Base64Error,
    },
    /// `max-age` is not a number of seconds.
    #[error("the max-age parameter is not a whole number of seconds")]
    MaxAge,
}

impl Challenge {
    /// The challenges for our scheme in one header value, in the order of the server's preference. Other schemes and
    /// unknown parameters are passed over.
    ///
    /// # Errors
    /// [`AuthenticateError`] says what is wrong, and where.
    pub fn parse_all(value: &[u8]) -> Result<Vec<Self>, AuthenticateError> {
        let mut scanner = Scanner::new(value);
        let mut found = Vec::new();
        let mut open: Option<Parameters> = None;
        while let Some(item) = scanner.next()? {
            match item {
                Item::Scheme(scheme) => {
                    if let Some(done) = open.take() {
                        found.push(done.finish()?);
                    }
                    open = is_ours(scheme).then(Parameters::default);
                }
                Item::Param { name, value, .. } => {
                    if let Some(parameters) = &mut open {
                        parameters.take(name, value)?;
                    }
                }
                Item::Token68 => {}
            }
        }
        if let Some(done) = open {
            found.push(done.finish()?);
        }
        Ok(found)
    }

    /// The header value, base64url padded (RFC 9577, section 2.1.1).
    #[must_use]
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

    /// The challenge's fields.
    ///
    /// # Errors
    /// The bytes are not a `TokenChallenge`.
    pub fn token_challenge(&self) -> Result<TokenChallenge, WireError> {
        TokenChallenge::parse(&self.bytes)
    }
}

/// The parameters of one challenge, while they are collected.
#[derive(Default)]
struct Parameters {
    challenge: Option<Vec<u8>>,
    token_key: Option<Vec<u8>>,
    max_age: Option<u64>,
}

impl Parameters {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), AuthenticateError> {
        if name.eq_ignore_ascii_case(b"challenge") {
            if self.challenge.replace(decode("challenge", value)?).is_some() {
                return Err(AuthenticateError::ChallengeParameter);
            }
        } else if name.eq_ignore_ascii_case(b"token-key") {
            self.token_key = Some(decode("token-key", value)?);
        } else if name.eq_ignore_ascii_case(b"max-age") {
            let digits =
                std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            self.max_age = Some(digits.and_then(|text| text.parse().ok()).ok_or(AuthenticateError::MaxAge)?);
        }
        Ok(())
    }

    fn finish(self) -> Result<Challenge, AuthenticateError> {
        let bytes = self.challenge.ok_or(AuthenticateError::ChallengeParameter)?;
        Ok(Challenge { bytes, token_key: self.token_key, max_age: self.max_age })
    }
}

fn decode(parameter: &'static str, value: &[u8]) -> Result<Vec<u8>, AuthenticateError> {
    decode_base64url_vec(value).map_err(|error| AuthenticateError::Base64 { parameter, error })
}
