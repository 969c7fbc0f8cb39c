//! Description of a header value or token, field by field, with the position of its error: for people who debug a client or a
//! gateway.

mod fault;

use crate::challenge::TokenChallenge;
use crate::encoding::decode_base64url_vec;
use crate::header::{Challenge, SCHEME, decode_token, find_token, is_ours};
use crate::ids::{ChallengeDigest, TokenKeyId, TokenType};
use crate::spki;
use crate::token::Token;
pub use fault::InspectError;
use fault::{named, params};
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
        _ if text.is_empty() => Err(InspectError::new("there is nothing to inspect")),
        Some(Header::Authorization) => credentials(&header_value),
        Some(Header::Authenticate) => challenges(&header_value),
        None if is_bare(text) => bare(text, start),
        None if holds_challenges(text) => challenges(&header_value),
        None => credentials(&header_value),
    };
    found.map_err(|error| error.within(value))
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
        .map_err(|error| InspectError::of_authorization(error, text, 0))?
        .ok_or_else(|| no_scheme(text))?;
    let token =
        decode_token(value, offset).map_err(|error| InspectError::of_authorization(error, text, offset))?;
    let mut fields = token_fields(&token);
    fields.push(("spelling", spelling(value)));
    fields.extend(ignored(text, 0, &["token"]));
    Ok(Inspection::one(format!("{SCHEME} credentials: a token of {} bytes", token.as_bytes().len()), fields))
}

fn challenges(text: &str) -> Result<Inspection, InspectError> {
    let each = Challenge::parse_each(text.as_bytes()).map_err(InspectError::of_grammar)?;
    if each.is_empty() {
        return Err(no_scheme(text));
    }
    let count = each.len();
    let mut sections = Vec::new();
    for (index, outcome) in each.into_iter().enumerate() {
        let challenge = outcome.map_err(|error| InspectError::of_authenticate(error, text, index))?;
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
            .map_err(|error| InspectError::new(format!("the token-key is wrong: {error}")).at(offset))?;
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
    InspectError::new(format!("no {SCHEME} scheme is in this value, which begins with {found:?}"))
        .at(text.len() - trimmed.len())
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
