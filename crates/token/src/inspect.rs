//! Description of a header value or token, field by field, with the position of its error: for people who debug a client or a
//! gateway.

use crate::challenge::TokenChallenge;
use crate::encoding::{Base64Error, WireError, decode_base64url_vec};
use crate::header::scan::{Item, Scanner, is_ours};
use crate::header::{
    AuthenticateError, AuthorizationError, Challenge, GrammarError, SCHEME, decode_token, find_token,
};
use crate::ids::{ChallengeDigest, TokenKeyId, TokenType};
use crate::spki;
use crate::token::Token;
use std::fmt;

/// Result of [`inspect`]: sections with a heading, and a name and a value for each field.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Inspection {
    sections: Vec<Section>,
}

#[derive(Clone, PartialEq, Eq)]
struct Section {
    heading: String,
    fields: Vec<(&'static str, String)>,
}

/// Describes a value: that of `Proxy-Authorization` or `Authorization`, of `Proxy-Authenticate` or `WWW-Authenticate`, with or
/// without the header's name and a colon before it; or one token, challenge or type 2 token key in base64url.
pub fn inspect(value: &str) -> Result<Inspection, InspectError> {
    let (header, start) = split_header_name(value);
    let text = value[start..].trim_end();
    // Blanks replace the header's name, so that every offset counts from the start of the whole value.
    let header_value = " ".repeat(start) + text;
    let found = match header {
        _ if text.is_empty() => Err(InspectError::new("there is nothing to inspect", None)),
        Some(Header::Authorization) => credentials(&header_value),
        Some(Header::Authenticate) => challenges(&header_value),
        None if is_bare(text) => bare(text, start),
        None if holds_challenges(text) => challenges(&header_value),
        None => credentials(&header_value),
    };
    found.map_err(|error| InspectError { value: value.to_owned(), ..error })
}

#[derive(Clone, Copy)]
enum Header {
    Authorization,
    Authenticate,
}

/// Returns the header named at the start, if any, and the position of its value.
fn split_header_name(value: &str) -> (Option<Header>, usize) {
    const NAMES: [(&str, Header); 4] = [
        ("proxy-authorization", Header::Authorization),
        ("authorization", Header::Authorization),
        ("proxy-authenticate", Header::Authenticate),
        ("www-authenticate", Header::Authenticate),
    ];
    let blanks = |text: &str| text.len() - text.trim_start().len();
    let header = value.split_once(':').and_then(|(name, rest)| {
        let known = NAMES.iter().find(|(known, _)| name.trim().eq_ignore_ascii_case(known))?;
        Some((known.1, name.len() + 1 + blanks(rest)))
    });
    match header {
        Some((header, start)) => (Some(header), start),
        None => (None, blanks(value)),
    }
}

/// Returns `true` for a single base64url value.
fn is_bare(text: &str) -> bool {
    let unpadded = text.trim_end_matches('=');
    !is_ours(text.as_bytes()) && !unpadded.contains([' ', '\t', '"', ',', '='])
}

/// Returns `true` if a `challenge` parameter is present; credentials have a `token` parameter instead.
fn holds_challenges(text: &str) -> bool {
    params(text.as_bytes()).any(|param| param.name.eq_ignore_ascii_case(b"challenge"))
}

fn credentials(text: &str) -> Result<Inspection, InspectError> {
    let (value, offset) = find_token(text.as_bytes())
        .map_err(|error| InspectError::of_authorization(error, 0))?
        .ok_or_else(|| no_scheme(text))?;
    let token = decode_token(value, offset).map_err(|error| InspectError::of_authorization(error, offset))?;
    let mut fields = token_fields(&token);
    fields.push(("spelling", spelling(value)));
    fields.extend(ignored(text, 0, &["token"]));
    Ok(Inspection::one(format!("{SCHEME} credentials: a token of {} bytes", token.as_bytes().len()), fields))
}

fn challenges(text: &str) -> Result<Inspection, InspectError> {
    let each = Challenge::parse_each(text.as_bytes())
        .map_err(|error| InspectError::of_authenticate(&error.into()))?;
    if each.is_empty() {
        return Err(no_scheme(text));
    }
    let count = each.len();
    let mut sections = Vec::new();
    for (index, outcome) in each.into_iter().enumerate() {
        let challenge = outcome.map_err(|error| InspectError::of_authenticate(&error))?;
        let at = |name| named(text, index, name).next().map_or(0, |param| param.offset);
        let mut fields = challenge_fields(&challenge.bytes, at("challenge"))?;
        match &challenge.token_key {
            Some(key) => {
                let is_type2 = challenge.bytes.starts_with(&TokenType::BlindRsa2048.code().to_be_bytes());
                fields.extend(key_fields(key, is_type2, at("token-key"))?);
            }
            None => fields.push(("token key", "absent; the client fetches it from the directory".to_owned())),
        }
        let seconds = challenge.max_age.map(|seconds| format!("{seconds} seconds"));
        fields.push(("max-age", seconds.unwrap_or_else(|| "absent".to_owned())));
        fields.extend(ignored(text, index, &["challenge", "token-key", "max-age"]));
        let heading = format!("{SCHEME} challenge {} of {count}: {} bytes", index + 1, challenge.bytes.len());
        sections.push(Section { heading, fields });
    }
    Ok(Inspection { sections })
}

/// Describes a value without its header, recognised by its content.
fn bare(text: &str, start: usize) -> Result<Inspection, InspectError> {
    let bytes = decode_base64url_vec(text.as_bytes()).map_err(|error| {
        InspectError::of_base64(error, "this is neither a header value nor base64url", start)
    })?;
    if bytes.starts_with(&[0x30, 0x82]) {
        let heading = format!("token key: {} bytes", bytes.len());
        return Ok(Inspection::one(heading, key_fields(&bytes, true, start)?));
    }
    if is_challenge(&bytes) {
        let heading = format!("challenge: {} bytes", bytes.len());
        return Ok(Inspection::one(heading, challenge_fields(&bytes, start)?));
    }
    let token = Token::parse(&bytes)
        .map_err(|error| InspectError::of_wire(error, "this is neither a challenge nor a token", start))?;
    Ok(Inspection::one(format!("token: {} bytes", bytes.len()), token_fields(&token)))
}

/// Distinguishes a challenge from a token: a challenge has a length-prefixed issuer name where a token has 32 random bytes.
fn is_challenge(bytes: &[u8]) -> bool {
    let Some(([_, _, high, low], rest)) = bytes.split_first_chunk() else { return false };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let is_text = |name: &[u8]| !name.is_empty() && name.iter().all(|byte| (b' '..=b'~').contains(byte));
    rest.get(..length).is_some_and(is_text)
}

fn token_fields(token: &Token) -> Vec<(&'static str, String)> {
    vec![
        ("token type", token.token_type().to_string()),
        ("nonce", hex::encode(token.nonce().0)),
        ("challenge digest", hex::encode(token.challenge_digest().0)),
        ("token key id", token.token_key_id().to_hex()),
        (
            "authenticator",
            format!("{} bytes, {}", token.authenticator().len(), hex::encode(token.authenticator())),
        ),
    ]
}

fn challenge_fields(bytes: &[u8], offset: usize) -> Result<Vec<(&'static str, String)>, InspectError> {
    let code = bytes.first_chunk().map(|code| TokenType::from_code(u16::from_be_bytes(*code)));
    let mut fields = Vec::new();
    match (TokenChallenge::parse(bytes), code) {
        // For an unknown type, only the first two bytes have a meaning (RFC 9577, section 2.1.1).
        (_, Some(unknown @ TokenType::Other(_))) => {
            fields.push(("token type", format!("{unknown}; clients pass over it")));
        }
        (Ok(challenge), _) => {
            let context = challenge.redemption_context().map_or("none".to_owned(), hex::encode);
            let origins = match challenge.origin_info() {
                [] => "any".to_owned(),
                names => names.join(", "),
            };
            fields.push(("token type", challenge.token_type().to_string()));
            fields.push(("issuer name", challenge.issuer_name().to_owned()));
            fields.push(("redemption context", context));
            fields.push(("origins", origins));
        }
        (Err(error), _) => {
            return Err(InspectError::of_wire(error, "the challenge is not a TokenChallenge", offset));
        }
    }
    fields.push(("challenge digest", hex::encode(ChallengeDigest::of(bytes).0)));
    Ok(fields)
}

fn key_fields(
    key: &[u8],
    is_type2: bool,
    offset: usize,
) -> Result<Vec<(&'static str, String)>, InspectError> {
    if is_type2 {
        spki::rsa_public_key(key)
            .map_err(|error| InspectError::new(format!("the token-key is wrong: {error}"), Some(offset)))?;
    }
    let id = TokenKeyId::of(key);
    Ok(vec![
        ("token key", format!("{} bytes", key.len())),
        ("token key id", id.to_hex()),
        ("truncated key id", format!("{:#04x}", id.truncated())),
    ])
}

/// Describes the padding, on which less lenient clients insist.
fn spelling(value: &[u8]) -> String {
    if value.len().is_multiple_of(4) {
        "base64url, padded as RFC 9577 requires".to_owned()
    } else {
        "base64url without its padding; RFC 9577 requires padding, Postern accepts both".to_owned()
    }
}

/// Returns the parameters without a meaning in the `index`th credentials or challenge of our scheme.
fn ignored(text: &str, index: usize, known: &[&str]) -> Option<(&'static str, String)> {
    let names: Vec<String> = params(text.as_bytes())
        .filter(|param| param.index == index)
        .map(|param| String::from_utf8_lossy(param.name).into_owned())
        .filter(|name| !known.iter().any(|known| known.eq_ignore_ascii_case(name)))
        .collect();
    (!names.is_empty()).then(|| ("ignored parameters", names.join(", ")))
}

fn no_scheme(text: &str) -> InspectError {
    let trimmed = text.trim_start();
    let found = trimmed.split([' ', ',']).next().unwrap_or_default();
    let sentence = format!("no {SCHEME} scheme is in this value, which begins with {found:?}");
    InspectError::new(sentence, Some(text.len() - trimmed.len()))
}

impl Inspection {
    fn one(heading: String, fields: Vec<(&'static str, String)>) -> Self {
        Self { sections: vec![Section { heading, fields }] }
    }

    /// Returns the names and values of all fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sections.iter().flat_map(|section| &section.fields).map(|(name, value)| (*name, value.as_str()))
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, section) in self.sections.iter().enumerate() {
            writeln!(f, "{}{}", if index == 0 { "" } else { "\n" }, section.heading)?;
            for (name, value) in &section.fields {
                writeln!(f, "  {name:<20}{value}")?;
            }
        }
        Ok(())
    }
}

/// Omits the fields, which may include a nonce: they are for the terminal, never for a log.
impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inspection({} fields, redacted)", self.fields().count())
    }
}

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
    fn new(sentence: impl Into<String>, offset: Option<usize>) -> Self {
        Self { sentence: sentence.into(), offset, value: String::new() }
    }

    /// Converts a base64url error; `offset` is the position of the base64url text.
    fn of_base64(error: Base64Error, what: &str, offset: usize) -> Self {
        Self::new(format!("{what}: {error}"), Some(offset + in_base64(error)))
    }

    /// Converts a wire error; `offset` is the position of the base64url text.
    fn of_wire(error: WireError, what: &str, offset: usize) -> Self {
        Self::new(format!("{what}: {error}"), Some(offset + in_wire(error)))
    }

    /// Converts an error; `offset` is the position of the token.
    fn of_authorization(error: AuthorizationError, offset: usize) -> Self {
        let place = match error {
            AuthorizationError::Grammar(error) => Some(in_grammar(error)),
            AuthorizationError::Base64(error) => Some(offset + in_base64(error)),
            AuthorizationError::Wire(error) => Some(offset + in_wire(error)),
            AuthorizationError::EmptyToken => Some(offset),
            AuthorizationError::SeveralTokens(second) => Some(second),
            AuthorizationError::NoToken => None,
        };
        Self::new(error.to_string(), place)
    }

    fn of_authenticate(error: &AuthenticateError) -> Self {
        let place = match *error {
            AuthenticateError::Grammar(error) => Some(in_grammar(error)),
            AuthenticateError::Base64 { error, offset, .. } => Some(offset + in_base64(error)),
            AuthenticateError::Duplicate { offset, .. } | AuthenticateError::MaxAge(offset) => Some(offset),
            AuthenticateError::NoChallenge => None,
        };
        Self::new(error.to_string(), place)
    }
}

const fn in_grammar(error: GrammarError) -> usize {
    let (GrammarError::UnclosedQuote(offset)
    | GrammarError::Unexpected { offset, .. }
    | GrammarError::NoScheme(offset)
    | GrammarError::Escape(offset)) = error;
    offset
}

/// Returns the position of an error in a base64url text.
const fn in_base64(error: Base64Error) -> usize {
    match error {
        Base64Error::Character { offset, .. } | Base64Error::LastCharacter { offset, .. } => offset,
        Base64Error::Length(length) => length.saturating_sub(1),
        Base64Error::TooLong { max } => max.div_ceil(3) * 4,
    }
}

/// Returns the position of an error in the base64url text of the wire form: four characters carry three bytes.
const fn in_wire(error: WireError) -> usize {
    let (WireError::Truncated { offset, .. }
    | WireError::Trailing { offset, .. }
    | WireError::Field { offset, .. }) = error;
    offset * 4 / 3
}

/// A parameter of our scheme in a header value.
struct Param<'a> {
    /// Index of the credentials or challenge of our scheme, counted from 0.
    index: usize,
    name: &'a [u8],
    /// Position of the value.
    offset: usize,
}

/// Iterates over the parameters of our scheme, up to the first violation of the grammar.
fn params(text: &[u8]) -> impl Iterator<Item = Param<'_>> {
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

/// Iterates over the parameters of this name in the `index`th credentials or challenge of our scheme.
fn named<'a>(text: &'a str, index: usize, name: &str) -> impl Iterator<Item = Param<'a>> {
    params(text.as_bytes())
        .filter(move |param| param.index == index && param.name.eq_ignore_ascii_case(name.as_bytes()))
}
