//! The join string: all that an agent needs to use a gateway and its issuer, on one line.
//!
//! ```text
//! postern-join-1.<base64url of a JSON object>.<CRC-32 of what stands before this dot, 8 hex digits>
//! ```
//!
//! The object has the fields of [`Join`], in their order and without white space, and leaves out what is absent; `ca` stands for both
//! `gateway_ca` and `issuer_ca` where they are the same. The number
//! is the version of the format: a change that an older agent would misunderstand gets another one. An API key makes the
//! string a secret, so no error has anything of its values.

mod check;
mod error;
mod parse;
#[cfg(test)]
mod tests;
mod write;

pub use check::{JoinCheckError, check_join};
pub use error::JoinError;
pub use parse::certificates;
pub use write::{JoinPlace, JoinWriteError, write_join};

use postern_config::Secret;
use postern_token::encode_base64url;
use serde::{Deserialize, Serialize};

/// The longest join string, in bytes: some certificates of a private authority and the most gateways fit many times over.
pub const JOIN_LIMIT: usize = 64 * 1024;
/// What every join string begins with, of any version.
const PREFIX: &str = "postern-join-";
/// The version that is written and read.
const VERSION: &str = "1";

/// What a join string holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// URLs of gateways, in order of preference: 1 to 32.
    pub gateways: Vec<String>,
    /// The origin name of the gateways' challenges, where it is not the host of their URLs.
    pub origin: Option<String>,
    /// PEM certificates to trust for the gateways instead of the platform's.
    pub gateway_ca: Option<String>,
    /// URLs of the issuer, or of several with the same keys, in order of preference: 1 to 8.
    pub issuers: Vec<String>,
    /// PEM certificates to trust for the issuer instead of the platform's.
    pub issuer_ca: Option<String>,
    /// The account's API key; absent where the issuer has no accounts.
    pub api_key: Option<Secret>,
}

/// The JSON object.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    gateways: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway_ca: Option<String>,
    /// In place of the other two where they are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    issuers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer_ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
}

impl Join {
    /// The join string.
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
}

/// Finds a mistyped, missing or added character; it is no protection against an attacker.
fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}
