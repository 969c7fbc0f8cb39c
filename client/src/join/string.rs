//! The join string: all that an agent needs to use a gateway and its issuer, on one line.
//!
//! ```text
//! postern-join-1.<base64url of a JSON object>.<CRC-32 of what stands before this dot, 8 hex digits>
//! ```
//!
//! The object has the fields of [`Join`], in their order and without white space, and omits absent ones; `ca` stands for both
//! `gateway_ca` and `issuer_ca` if they are the same. The number is the version of the format: a change that an older agent would
//! misunderstand gets another number. An API key makes the string a secret, so no error contains its values.

use crate::config::{MOST_GATEWAYS, MOST_ISSUERS, each_once, server_url};
use postern_config::Secret;
use postern_token::{decode_base64url_vec, encode_base64url};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum length of a join string, in bytes: many times that of one with some certificates and the maximum of gateways.
pub const JOIN_LIMIT: usize = 64 * 1024;
/// The prefix of join strings of any version.
pub(super) const PREFIX: &str = "postern-join-";
/// The version that is written and read.
pub(super) const VERSION: &str = "1";

/// The names of all fields, and of the required ones.
const FIELDS: [&str; 7] = ["gateways", "origin", "gateway_ca", "ca", "issuers", "issuer_ca", "api_key"];
const REQUIRED: [&str; 2] = ["gateways", "issuers"];
/// Maximum length of a URL, name or API key, in bytes.
const VALUE_LIMIT: usize = 2_048;
/// The lines around a certificate (RFC 7468, section 5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The contents of a join string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// URLs of gateways, in order of preference: 1 to 32.
    pub gateways: Vec<String>,
    /// The origin name of the gateways' challenges, if it is not the host of their URLs.
    pub origin: Option<String>,
    /// PEM certificates to trust for the gateways instead of the platform's.
    pub gateway_ca: Option<String>,
    /// URLs of the issuer, or of several with the same keys, in order of preference: 1 to 8.
    pub issuers: Vec<String>,
    /// PEM certificates to trust for the issuer instead of the platform's.
    pub issuer_ca: Option<String>,
    /// The account's API key; absent if the issuer has no accounts.
    pub api_key: Option<Secret>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    gateways: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway_ca: Option<String>,
    /// Replaces the other two if they are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    issuers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer_ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
}

/// The reason why a text is not a usable join string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what happened")]
pub enum JoinError {
    #[error("there is no join string: it is one word that begins with \"{PREFIX}{VERSION}.\"")]
    Missing,
    #[error("the join string is longer than {JOIN_LIMIT} bytes, which none is: is this the right file?")]
    TooLong,
    #[error(
        "the join string is of format {0}, and this version of postern reads format {VERSION}: update postern, or ask for a \
         join string of format {VERSION}"
    )]
    Version(u32),
    #[error("the join string is not whole, its end is missing: copy all of it, on one line")]
    Truncated,
    /// A character that is not allowed, at this position, counted from 1.
    #[error(
        "character {0} of the join string is none that it can have: copy it again, without quotes or line breaks"
    )]
    Character(usize),
    #[error(
        "the join string has been changed: its checksum does not match, so a character in it is missing, added or mistyped. \
         Copy it again"
    )]
    Checksum,
    #[error(
        "the join string holds no settings that can be read: make another one with `postern issuer account add --join`"
    )]
    Contents,
    #[error(
        "the join string has a field {0} that this version of postern does not know, so a newer one made it: update postern"
    )]
    UnknownField(String),
    #[error("the join string has no {0}: make another one with `postern issuer account add --join`")]
    NoField(&'static str),
    #[error("the join string's {field} cannot be used: {reason}")]
    Field { field: &'static str, reason: &'static str },
}

impl Join {
    /// Formats the join string.
    ///
    /// # Errors
    /// A value that [`Join::find`] would refuse, by the field's name, or more than [`JOIN_LIMIT`] bytes.
    pub fn format(&self) -> Result<Secret, JoinError> {
        self.check()?;
        let Self { gateways, origin, gateway_ca, issuers, issuer_ca, api_key } = self.clone();
        let api_key = api_key.map(|key| key.expose().to_owned());
        let (gateway_ca, issuer_ca, ca) =
            if gateway_ca == issuer_ca { (None, None, gateway_ca) } else { (gateway_ca, issuer_ca, None) };
        let fields = Fields { gateways, origin, gateway_ca, ca, issuers, issuer_ca, api_key };
        // Strings and lists of them only, which JSON can always represent.
        let json = serde_json::to_vec(&fields).unwrap_or_default();
        let payload = encode_base64url(&json);
        let body = format!("{PREFIX}{VERSION}.{}", payload.trim_end_matches('='));
        let text = format!("{body}.{}", checksum(&body));
        if text.len() > JOIN_LIMIT {
            return Err(JoinError::TooLong);
        }
        Ok(Secret::new(text))
    }

    /// Reads the join string in `text`, which may have other words around it, such as the whole output of
    /// `postern issuer account add`.
    ///
    /// # Errors
    /// [`JoinError`], which contains no values.
    pub fn find(text: &str) -> Result<Self, JoinError> {
        if text.len() > 2 * JOIN_LIMIT {
            return Err(JoinError::TooLong);
        }
        let word = text.split_whitespace().find(|word| word.starts_with(PREFIX)).ok_or(JoinError::Missing)?;
        if word.len() > JOIN_LIMIT {
            return Err(JoinError::TooLong);
        }
        let json = unwrap(word)?;
        let Ok(Value::Object(object)) = serde_json::from_slice(&json) else {
            return Err(JoinError::Contents);
        };
        known(&object)?;
        // The error of serde would contain values.
        let fields: Fields =
            serde_json::from_value(Value::Object(object)).map_err(|_| JoinError::Contents)?;
        let Fields { gateways, origin, gateway_ca, ca, issuers, issuer_ca, api_key } = fields;
        let (gateway_ca, issuer_ca) = (gateway_ca.or_else(|| ca.clone()), issuer_ca.or(ca));
        let api_key = api_key.map(Secret::new);
        let join = Self { gateways, origin, gateway_ca, issuers, issuer_ca, api_key };
        join.check()?;
        Ok(join)
    }

    /// Checks that the values can configure an agent.
    ///
    /// # Errors
    /// [`JoinError::Field`].
    pub fn check(&self) -> Result<(), JoinError> {
        require(
            each_once(&self.gateways, MOST_GATEWAYS),
            "gateways",
            "it lists from 1 to 32 URLs, each once",
        )?;
        require(each_once(&self.issuers, MOST_ISSUERS), "issuers", "it lists from 1 to 8 URLs, each once")?;
        let reason = "it has to be http://host:port or https://host, without a user or a query";
        let is_server = |url: &String| is_word(url) && server_url(url).is_some();
        require(self.gateways.iter().all(is_server), "gateways", reason)?;
        require(self.issuers.iter().all(is_server), "issuers", reason)?;
        let reason = "it is one word of visible ASCII characters, 2,048 at most";
        require(self.origin.as_deref().is_none_or(is_word), "origin", reason)?;
        require(self.api_key.as_ref().is_none_or(|key| is_word(key.expose())), "api_key", reason)?;
        // A join string contains no private key, and writes only certificates to a file.
        let reason = "it has to be PEM certificates (BEGIN CERTIFICATE) and nothing else";
        let is_pem = |pem: &Option<String>| pem.is_none() || pem.as_deref().and_then(certificates) == *pem;
        require(is_pem(&self.gateway_ca), "gateway_ca", reason)?;
        require(is_pem(&self.issuer_ca), "issuer_ca", reason)
    }
}

fn require(is_right: bool, field: &'static str, reason: &'static str) -> Result<(), JoinError> {
    if is_right { Ok(()) } else { Err(JoinError::Field { field, reason }) }
}

/// Extracts the JSON from a word with the prefix of a join string.
fn unwrap(word: &str) -> Result<Vec<u8>, JoinError> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if let Some(position) = word.as_bytes().iter().position(|byte| !is_part(byte)) {
        return Err(JoinError::Character(position + 1));
    }
    let rest = word.strip_prefix(PREFIX).unwrap_or_default();
    let (version, rest) = rest.split_once('.').ok_or(JoinError::Truncated)?;
    if version != VERSION {
        return Err(version.parse().map_or(JoinError::Checksum, JoinError::Version));
    }
    let (payload, sum) = rest.split_once('.').ok_or(JoinError::Truncated)?;
    if sum.len() < 8 {
        return Err(JoinError::Truncated);
    }
    if sum != checksum(&word[..word.len() - sum.len() - 1]) {
        return Err(JoinError::Checksum);
    }
    decode_base64url_vec(payload.as_bytes()).map_err(|_| JoinError::Contents)
}

fn known(object: &Map<String, Value>) -> Result<(), JoinError> {
    if let Some(unknown) = object.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        let shown = unknown.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32);
        return Err(JoinError::UnknownField(shown.collect()));
    }
    match REQUIRED.iter().find(|name| !object.contains_key(**name)) {
        Some(name) => Err(JoinError::NoField(name)),
        None => Ok(()),
    }
}

fn is_word(text: &str) -> bool {
    (1..=VALUE_LIMIT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Extracts the certificates of a PEM file; `None` if there is none, or one is cut off.
#[must_use]
pub fn certificates(pem: &str) -> Option<String> {
    let (mut found, mut is_inside) = (String::new(), false);
    for line in pem.lines().map(str::trim) {
        is_inside |= line == BEGIN;
        if is_inside {
            let is_base64 = line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
            if !is_base64 && line != BEGIN && line != END {
                return None;
            }
            found.push_str(line);
            found.push('\n');
        }
        is_inside &= line != END;
    }
    (!found.is_empty() && !is_inside).then_some(found)
}

/// Computes the checksum, which detects a mistyped, missing or added character. It does not protect against an attacker.
pub(super) fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}
