//! Reads a join string, and checks the values before they are written into a configuration.

use super::{Fields, JOIN_LIMIT, Join, JoinError, PREFIX, VERSION, checksum};
use crate::config::{MOST_GATEWAYS, MOST_ISSUERS, each_once, server_url};
use postern_config::Secret;
use postern_token::decode_base64url_vec;
use serde_json::{Map, Value};

/// The names of all fields, and of those that have to be there.
const FIELDS: [&str; 7] = ["gateways", "origin", "gateway_ca", "ca", "issuers", "issuer_ca", "api_key"];
const REQUIRED: [&str; 2] = ["gateways", "issuers"];
/// The longest URL, name or API key, in bytes.
const VALUE_LIMIT: usize = 2_048;
/// The lines around a certificate (RFC 7468, section 5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

impl Join {
    /// Reads the join string in `text`, which may have other words around it, such as the whole output of
    /// `postern issuer account add`.
    ///
    /// # Errors
    /// [`JoinError`], without anything of the values.
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
        // The error of serde would quote values.
        let fields: Fields =
            serde_json::from_value(Value::Object(object)).map_err(|_| JoinError::Contents)?;
        let Fields { gateways, origin, gateway_ca, ca, issuers, issuer_ca, api_key } = fields;
        let (gateway_ca, issuer_ca) = (gateway_ca.or_else(|| ca.clone()), issuer_ca.or(ca));
        let api_key = api_key.map(Secret::new);
        let join = Self { gateways, origin, gateway_ca, issuers, issuer_ca, api_key };
        join.check()?;
        Ok(join)
    }

    /// Whether an agent could be configured with it.
    ///
    /// # Errors
    /// [`JoinError::Field`].
    pub fn check(&self) -> Result<(), JoinError> {
        if !each_once(&self.gateways, MOST_GATEWAYS) {
            return Err(JoinError::Field {
                field: "gateways",
                reason: "it lists from 1 to 32 URLs, each once",
            });
        }
        if !each_once(&self.issuers, MOST_ISSUERS) {
            return Err(JoinError::Field {
                field: "issuers",
                reason: "it lists from 1 to 8 URLs, each once",
            });
        }
        self.gateways.iter().try_for_each(|gateway| check_url("gateways", gateway))?;
        self.issuers.iter().try_for_each(|issuer| check_url("issuers", issuer))?;
        let reason = "it is one word of visible ASCII characters, 2,048 at most";
        let words =
            [("origin", self.origin.as_deref()), ("api_key", self.api_key.as_ref().map(Secret::expose))];
        let is_wrong = |word: &Option<&str>| word.is_some_and(|word| !is_word(word));
        if let Some((field, _)) = words.iter().find(|(_, word)| is_wrong(word)) {
            return Err(JoinError::Field { field, reason });
        }
        check_certificates("gateway_ca", self.gateway_ca.as_deref())?;
        check_certificates("issuer_ca", self.issuer_ca.as_deref())
    }
}

/// The JSON in a word that begins like a join string.
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

fn check_url(field: &'static str, url: &str) -> Result<(), JoinError> {
    let reason = "it has to be http://host:port or https://host, without a user or a query";
    let is_server = is_word(url) && server_url(url).is_some();
    if is_server { Ok(()) } else { Err(JoinError::Field { field, reason }) }
}

/// Certificates and nothing else: what a join string could put into a file is bounded, and no private key travels in it.
fn check_certificates(field: &'static str, pem: Option<&str>) -> Result<(), JoinError> {
    let Some(pem) = pem else { return Ok(()) };
    if certificates(pem).as_deref() == Some(pem) {
        return Ok(());
    }
    let reason = "it has to be PEM certificates (BEGIN CERTIFICATE) and nothing else";
    Err(JoinError::Field { field, reason })
}

/// The certificates of a PEM file without anything around them; `None` where there is none, or one is cut off.
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
