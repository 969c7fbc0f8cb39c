//! `TokenChallenge` (RFC 9577, section 2.1.1): an origin's request for a token.

use crate::encoding::{Reader, WireError};
use crate::ids::{ChallengeDigest, TokenType};

/// A parsed challenge.
///
/// ```text
/// struct {
///     uint16_t token_type;
///     opaque issuer_name<1..2^16-1>;
///     opaque redemption_context<0..32>;      // 0 or 32 bytes
///     opaque origin_info<0..2^16-1>;         // names joined by commas, without spaces
/// } TokenChallenge;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChallenge {
    token_type: TokenType,
    issuer_name: String,
    redemption_context: Option<[u8; 32]>,
    origin_info: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeError {
    #[error("the issuer name must be a host name, with a port if need be, of 1 to 65535 characters")]
    IssuerName,
    #[error("each origin name must be a host name, with a port if need be")]
    OriginName,
    #[error("the origin names together are longer than 65535 bytes")]
    OriginInfoLength,
}

impl TokenChallenge {
    /// Creates a challenge for tokens of `issuer_name`, bound to `origins` (if empty, any origin may redeem the token) and
    /// optionally to a context of 32 bytes.
    pub fn new(
        token_type: TokenType,
        issuer_name: &str,
        redemption_context: Option<[u8; 32]>,
        origins: &[&str],
    ) -> Result<Self, ChallengeError> {
        if !is_server_name(issuer_name) || issuer_name.len() > usize::from(u16::MAX) {
            return Err(ChallengeError::IssuerName);
        }
        if !origins.iter().all(|origin| is_server_name(origin)) {
            return Err(ChallengeError::OriginName);
        }
        let joined: usize = origins.iter().map(|origin| origin.len() + 1).sum();
        if joined.saturating_sub(1) > usize::from(u16::MAX) {
            return Err(ChallengeError::OriginInfoLength);
        }
        let origin_info = origins.iter().map(|&origin| origin.to_owned()).collect();
        Ok(Self { token_type, issuer_name: issuer_name.to_owned(), redemption_context, origin_info })
    }

    /// Parses the whole of `bytes`.
    ///
    /// # Errors
    /// Truncated or trailing bytes, a context of neither 0 nor 32 bytes, names that are empty or not printable ASCII. Unlike in
    /// [`TokenChallenge::new`], an issuer's name may contain spaces, because other issuers have such names.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let token_type = TokenType::from_code(reader.u16("token_type")?);
        let issuer_name = text(&mut reader, "issuer_name", b' ')?;
        if issuer_name.is_empty() {
            return Err(WireError::Field { field: "issuer_name", offset: 4, reason: "is empty" });
        }
        let redemption_context = context(&mut reader)?;
        let origins = text(&mut reader, "origin_info", b'!')?;
        let start = reader.offset() - origins.len();
        reader.finish()?;
        let origin_info = match origins {
            "" => Vec::new(),
            joined if joined.split(',').any(str::is_empty) => {
                let reason = "holds an empty name";
                return Err(WireError::Field { field: "origin_info", offset: start, reason });
            }
            joined => joined.split(',').map(str::to_owned).collect(),
        };
        Ok(Self { token_type, issuer_name: issuer_name.to_owned(), redemption_context, origin_info })
    }

    /// Returns the wire form. Tokens carry its digest.
    pub fn serialize(&self) -> Vec<u8> {
        let origins = self.origin_info.join(",");
        let context = self.redemption_context.as_ref().map_or(&[][..], |context| &context[..]);
        let mut bytes = Vec::with_capacity(7 + self.issuer_name.len() + context.len() + origins.len());
        bytes.extend_from_slice(&self.token_type.code().to_be_bytes());
        push_vector16(&mut bytes, self.issuer_name.as_bytes());
        bytes.push(if context.is_empty() { 0 } else { 32 });
        bytes.extend_from_slice(context);
        push_vector16(&mut bytes, origins.as_bytes());
        bytes
    }

    /// Returns the SHA-256 of the wire form.
    pub fn digest(&self) -> ChallengeDigest {
        ChallengeDigest::of(&self.serialize())
    }

    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    pub fn issuer_name(&self) -> &str {
        &self.issuer_name
    }

    pub const fn redemption_context(&self) -> Option<&[u8; 32]> {
        self.redemption_context.as_ref()
    }

    /// Returns `true` if `origin` may request this token. A client must not answer a challenge from any other origin (RFC 9577,
    /// section 2.1.3). Compares without regard to case; a challenge without names allows any origin.
    pub fn names_origin(&self, origin: &str) -> bool {
        self.origin_info.is_empty() || self.origin_info.iter().any(|name| name.eq_ignore_ascii_case(origin))
    }

    /// Returns the origins that may redeem the token; empty means any.
    pub fn origin_info(&self) -> &[String] {
        &self.origin_info
    }
}

/// Appends a vector prefixed with its length, which `new` or `parse` has checked.
fn push_vector16(bytes: &mut Vec<u8>, vector: &[u8]) {
    let length = u16::try_from(vector.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&vector[..usize::from(length)]);
}

/// Reads a vector of printable ASCII characters from `lowest` on.
fn text<'a>(reader: &mut Reader<'a>, field: &'static str, lowest: u8) -> Result<&'a str, WireError> {
    let length = reader.u16(field)?;
    let offset = reader.offset();
    let bytes = reader.take(field, usize::from(length))?;
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|byte| (lowest..=b'~').contains(&byte)) => Ok(text),
        _ if lowest == b' ' => Err(WireError::Field { field, offset, reason: "is not printable ASCII" }),
        _ => Err(WireError::Field { field, offset, reason: "is not printable ASCII without spaces" }),
    }
}

fn context(reader: &mut Reader<'_>) -> Result<Option<[u8; 32]>, WireError> {
    let offset = reader.offset();
    match reader.u8("redemption_context")? {
        0 => Ok(None),
        32 => Ok(Some(reader.array("redemption_context")?)),
        _ => Err(WireError::Field {
            field: "redemption_context",
            offset,
            reason: "must be 0 or 32 bytes long (RFC 9577, section 2.1.1)",
        }),
    }
}

/// Returns `true` for the characters of a URI's authority without userinfo (RFC 9577, section 2.1.1.1; RFC 3986, section 3.2),
/// except the comma, which separates names here.
fn is_server_name(text: &str) -> bool {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(belongs)
}
