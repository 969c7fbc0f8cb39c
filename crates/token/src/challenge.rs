//! `TokenChallenge` (RFC 9577, section 2.1.1): what an origin wants a token for.

use crate::encoding::{Reader, WireError};
use crate::ids::{ChallengeDigest, TokenType};

/// A challenge, parsed.
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

/// Why a challenge cannot be built from these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeError {
    /// The issuer's name is empty, too long or not a host name.
    #[error("the issuer name must be a host name, with a port if need be, of 1 to 65535 characters")]
    IssuerName,
    /// One origin's name is empty or not a host name.
    #[error("each origin name must be a host name, with a port if need be")]
    OriginName,
    /// All origin names joined are longer than the field can hold.
    #[error("the origin names together are longer than 65535 bytes")]
    OriginInfoLength,
}

impl TokenChallenge {
    /// A challenge for tokens of `issuer_name`, bound to `origins` (none: any origin may redeem the token) and,
    /// where there is one, to a context of 32 bytes.
    ///
    /// # Errors
    /// [`ChallengeError`] names the part that cannot be written down.
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

    /// Reads the whole of `bytes`.
    ///
    /// # Errors
    /// Truncated or trailing bytes, a context of neither 0 nor 32 bytes, names that are not printable ASCII. An
    /// issuer's name may hold spaces here, though none may be written: other issuers are called so.
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

    /// The wire form. Its digest is what tokens carry.
    #[must_use]
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

    /// SHA-256 over the wire form.
    #[must_use]
    pub fn digest(&self) -> ChallengeDigest {
        ChallengeDigest::of(&self.serialize())
    }

    /// The type of token required.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// The issuer whose tokens are accepted.
    #[must_use]
    pub fn issuer_name(&self) -> &str {
        &self.issuer_name
    }

    /// The context the token is bound to, if it is bound to one.
    #[must_use]
    pub const fn redemption_context(&self) -> Option<&[u8; 32]> {
        self.redemption_context.as_ref()
    }

    /// Whether `origin` may request this token: a client must not answer the challenge of one who may not (RFC 9577,
    /// section 2.1.3). Compared without regard to case; no name at all means any origin.
    #[must_use]
    pub fn names_origin(&self, origin: &str) -> bool {
        self.origin_info.is_empty() || self.origin_info.iter().any(|name| name.eq_ignore_ascii_case(origin))
    }

    /// The origins that may redeem the token; empty means any.
    #[must_use]
    pub fn origin_info(&self) -> &[String] {
        &self.origin_info
    }
}

/// Lengths are checked where a challenge is made (`new`, `parse`), so they fit here.
fn push_vector16(bytes: &mut Vec<u8>, vector: &[u8]) {
    let length = u16::try_from(vector.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&vector[..usize::from(length)]);
}

/// A vector of printable ASCII, from `lowest` on.
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

/// The characters of a URI's authority without userinfo (RFC 9577, section 2.1.1.1; RFC 3986, section 3.2), less the
/// comma, which separates names here.
fn is_server_name(text: &str) -> bool {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(belongs)
}
