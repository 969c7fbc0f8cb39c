//! The `PrivateToken` authentication scheme (RFC 9577, section 2): `Proxy-Authenticate` and `Proxy-Authorization`, and the
//! `WWW-Authenticate` and `Authorization` pair, which have the same grammar.

pub(crate) mod scan;

pub use scan::{GrammarError, SCHEME};

use crate::challenge::TokenChallenge;
use crate::encoding::{Base64Error, WireError, decode_base64url, decode_base64url_vec, encode_base64url};
use crate::token::{MAX_TOKEN_LEN, Token};
use scan::{Item, Scanner, escape_in, is_ours};
use std::fmt::Write as _;

/// Credentials in a header value.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request; a box would be an allocation"
)]
pub enum Presentation {
    Token(Token),
    /// Credentials of other schemes only, or none.
    OtherScheme,
}

/// Error of a header value whose `PrivateToken` credentials hold no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizationError {
    #[error("the header value is malformed: {0}")]
    Grammar(#[from] GrammarError),
    #[error("the PrivateToken credentials have no token parameter; write PrivateToken token=\"…\"")]
    NoToken,
    #[error("the token parameter is empty; write PrivateToken token=\"…\" with a base64url token")]
    EmptyToken,
    #[error("more than one token is presented; send exactly one")]
    /// With the position of the second one.
    SeveralTokens(usize),
    #[error("the token parameter is not base64url: {0}")]
    Base64(Base64Error),
    #[error("the token parameter does not hold a token: {0}")]
    Wire(WireError),
}

/// Parses one value of `Proxy-Authorization: PrivateToken token="…"` (RFC 9577, section 2.2.2). Ignores unknown parameters, as RFC 9577 requires, and other schemes. Does not allocate; takes about a
/// microsecond for a token of type 2.
pub fn parse_authorization(value: &[u8]) -> Result<Presentation, AuthorizationError> {
    match find_token(value)? {
        Some((text, offset)) => decode_token(text, offset).map(Presentation::Token),
        None => Ok(Presentation::OtherScheme),
    }
}

/// Returns the value of the only `token` parameter of our scheme, and its position.
pub(crate) fn find_token(value: &[u8]) -> Result<Option<(&[u8], usize)>, AuthorizationError> {
    let mut scanner = Scanner::new(value);
    let (mut in_ours, mut seen_ours) = (false, false);
    let mut found = None;
    while let Some(item) = scanner.next()? {
        match item {
            Item::Scheme(scheme) => {
                in_ours = is_ours(scheme);
                seen_ours |= in_ours;
            }
            Item::Param { name, value, offset } if in_ours && name.eq_ignore_ascii_case(b"token") => {
                if found.replace((value, offset)).is_some() {
                    return Err(AuthorizationError::SeveralTokens(offset));
                }
            }
            Item::Param { .. } | Item::Token68 => {}
        }
    }
    if found.is_none() && seen_ours { Err(AuthorizationError::NoToken) } else { Ok(found) }
}

/// Decodes a base64url token. The buffer holds a few bytes more than the longest token, so that trailing bytes are reported as
/// such.
pub(crate) fn decode_token(text: &[u8], offset: usize) -> Result<Token, AuthorizationError> {
    if text.is_empty() {
        return Err(AuthorizationError::EmptyToken);
    }
    let mut buffer = [0; MAX_TOKEN_LEN + 32];
    let bytes = decode_base64url(text, &mut buffer).map_err(|error| match escape_in(text) {
        Some(backslash) => GrammarError::Escape(offset + backslash).into(),
        None if matches!(error, Base64Error::TooLong { .. }) => {
            AuthorizationError::Base64(Base64Error::TooLong { max: MAX_TOKEN_LEN })
        }
        None => AuthorizationError::Base64(error),
    })?;
    Token::parse(bytes).map_err(AuthorizationError::Wire)
}

/// Formats the header value that presents `token`: quoted and padded (493 characters for type 2).
pub fn format_authorization(token: &Token) -> String {
    format!("{SCHEME} token=\"{}\"", encode_base64url(token.as_bytes()))
}

/// One challenge of `Proxy-Authenticate: PrivateToken challenge="…", token-key="…", max-age=…` (RFC 9577, section 2.1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Exact bytes of the `TokenChallenge`. Tokens carry their digest, so they are never re-serialized.
    pub bytes: Vec<u8>,
    /// The issuer's public key, from `token-key`. `None` if the client should fetch it from the directory.
    pub token_key: Option<Vec<u8>>,
    /// Validity of the challenge in seconds.
    pub max_age: Option<u64>,
}

/// Error of a header value without a usable challenge. An `offset` is that of the wrong value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    #[error("the header value is malformed: {0}")]
    Grammar(#[from] GrammarError),
    #[error(
        "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it"
    )]
    NoChallenge,
    #[error("the {parameter} parameter occurs twice in one PrivateToken challenge")]
    Duplicate { parameter: &'static str, offset: usize },
    #[error("the {parameter} parameter is not base64url: {error}")]
    Base64 { parameter: &'static str, error: Base64Error, offset: usize },
    #[error("the max-age parameter is not a whole number of seconds")]
    MaxAge(usize),
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

    /// Formats the header value, with quoted, padded base64url (RFC 9577, section 2.1.2).
    pub fn format(&self) -> String {
        let mut value = format!("{SCHEME} challenge=\"{}\"", encode_base64url(&self.bytes));
        if let Some(key) = &self.token_key {
            // Writing to a string cannot fail.
            let _ = write!(value, ", token-key=\"{}\"", encode_base64url(key));
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
            set(&mut self.challenge, "challenge", decode("challenge", value, offset)?, offset)?;
        } else if name.eq_ignore_ascii_case(b"token-key") {
            set(&mut self.token_key, "token-key", decode("token-key", value, offset)?, offset)?;
        } else if name.eq_ignore_ascii_case(b"max-age") {
            set(&mut self.max_age, "max-age", seconds(value, offset)?, offset)?;
        }
        Ok(self)
    }

    fn finish(self) -> Result<Challenge, AuthenticateError> {
        let bytes = self.challenge.filter(|bytes| !bytes.is_empty()).ok_or(AuthenticateError::NoChallenge)?;
        Ok(Challenge { bytes, token_key: self.token_key, max_age: self.max_age })
    }
}

fn set<T>(
    field: &mut Option<T>,
    parameter: &'static str,
    value: T,
    offset: usize,
) -> Result<(), AuthenticateError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(AuthenticateError::Duplicate { parameter, offset }),
    }
}

fn decode(parameter: &'static str, value: &[u8], offset: usize) -> Result<Vec<u8>, AuthenticateError> {
    decode_base64url_vec(value).map_err(|error| match escape_in(value) {
        Some(backslash) => GrammarError::Escape(offset + backslash).into(),
        None => AuthenticateError::Base64 { parameter, error, offset },
    })
}

/// Parses a number of seconds, which saturates at `u64::MAX`.
fn seconds(digits: &[u8], offset: usize) -> Result<u64, AuthenticateError> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(AuthenticateError::MaxAge(offset));
    }
    let append = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Ok(digits.iter().fold(0, append))
}
