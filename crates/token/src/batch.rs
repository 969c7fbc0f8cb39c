//! Many tokens in one request (draft-ietf-privacypass-batched-tokens-09): amortized for the private types, where one proof
//! serves for all, and generic for any, where each has a request of its own.
//!
//! Vectors are prefixed with their length in bytes, as a variable-length integer (RFC 9000, section 16).

use crate::encoding::{Reader, WireError, write_vector};
use crate::ids::{TokenKeyId, TokenType};
use crate::issuance::{TokenRequest, TokenResponse, blinded_len, not_issued};
use crate::voprf::{self, Evaluated};
use std::fmt;

/// The media type of an amortized request.
pub const AMORTIZED_REQUEST_MEDIA_TYPE: &str = "application/private-token-amortized-batch-request";
/// The media type of its response.
pub const AMORTIZED_RESPONSE_MEDIA_TYPE: &str = "application/private-token-amortized-batch-response";
/// The media type of a generic request.
pub const GENERIC_REQUEST_MEDIA_TYPE: &str = "application/private-token-generic-batch-request";
/// The media type of its response.
pub const GENERIC_RESPONSE_MEDIA_TYPE: &str = "application/private-token-generic-batch-response";

/// `AmortizedBatchTokenRequest`: elements of one private type, for one key.
#[derive(Clone, PartialEq, Eq)]
pub struct AmortizedRequest {
    token_type: TokenType,
    /// The last byte of the id of the key that shall evaluate them.
    pub truncated_token_key_id: u8,
    elements: Vec<u8>,
}

/// `AmortizedBatchTokenResponse`.
#[derive(Clone, PartialEq, Eq)]
pub struct AmortizedResponse(Evaluated);

impl AmortizedRequest {
    pub(crate) fn new(token_type: TokenType, key: TokenKeyId, elements: Vec<u8>) -> Self {
        Self { token_type, truncated_token_key_id: key.truncated(), elements }
    }

    /// Reads the whole of `bytes`.
    ///
    /// # Errors
    /// A type other than 1 or 5, no element, a part of one, or a wrong length; an issuer answers each with 422.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let token_type = TokenType::from_code(reader.u16("token_type")?);
        let Some(lengths) = voprf::lengths(token_type) else {
            let reason = "is not 1 or 5, the types of amortized batches";
            return Err(WireError::Field { field: "token_type", offset: 0, reason });
        };
        let truncated_token_key_id = reader.u8("truncated_token_key_id")?;
        let elements = whole_elements(&mut reader, "blinded_elements", lengths.element)?;
        reader.finish()?;
        Ok(Self { token_type, truncated_token_key_id, elements })
    }

    /// The wire form.
    #[must_use]
    pub fn serialize(&self) -> Vec<u8> {
        let mut bytes = self.token_type.code().to_be_bytes().to_vec();
        bytes.push(self.truncated_token_key_id);
        write_vector(&mut bytes, &self.elements);
        bytes
    }

    /// The kind of token that is requested.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// How many tokens are requested: one at least.
    #[must_use]
    pub fn count(&self) -> usize {
        blinded_len(self.token_type).map_or(0, |len| self.elements.len() / len)
    }

    pub(crate) fn elements(&self) -> &[u8] {
        &self.elements
    }
}

impl AmortizedResponse {
    pub(crate) const fn new(evaluated: Evaluated) -> Self {
        Self(evaluated)
    }

    /// Reads the whole of `bytes` as the answer to a request of `token_type`.
    ///
    /// # Errors
    /// A type other than 1 or 5, no element, a part of one, or a wrong length.
    pub fn parse(token_type: TokenType, bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let lengths = voprf::lengths(token_type).ok_or(not_issued(0))?;
        let elements = whole_elements(&mut reader, "evaluated_elements", lengths.element)?;
        let proof = reader.take("evaluated_proof", lengths.proof)?.to_vec();
        reader.finish()?;
        Ok(Self(Evaluated { elements, proof }))
    }

    /// The wire form.
    #[must_use]
    pub fn serialize(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.0.elements.len() + self.0.proof.len());
        write_vector(&mut bytes, &self.0.elements);
        bytes.extend_from_slice(&self.0.proof);
        bytes
    }

    pub(crate) const fn evaluated(&self) -> &Evaluated {
        &self.0
    }
}

/// A vector of one element at least, and of whole ones.
fn whole_elements(reader: &mut Reader<'_>, field: &'static str, len: usize) -> Result<Vec<u8>, WireError> {
    let offset = reader.offset();
    let elements = reader.vector(field)?;
    if elements.is_empty() {
        return Err(WireError::Field { field, offset, reason: "has no element" });
    }
    if !elements.len().is_multiple_of(len) {
        return Err(WireError::Field { field, offset, reason: "ends within an element" });
    }
    Ok(elements.to_vec())
}

/// Reads a `GenericBatchTokenRequest`: one request at least.
///
/// # Errors
/// No request, a type other than 1, 2 or 5 among them (the draft has an issuer answer 422), or a wrong length.
pub fn parse_generic_request(bytes: &[u8]) -> Result<Vec<TokenRequest>, WireError> {
    let requests = parse_vector(bytes, "generic_token_requests", TokenRequest::read)?;
    if requests.is_empty() {
        let (field, reason) = ("generic_token_requests", "has no request");
        return Err(WireError::Field { field, offset: 0, reason });
    }
    Ok(requests)
}

/// The wire form of a `GenericBatchTokenRequest`.
#[must_use]
pub fn serialize_generic_request(requests: &[TokenRequest]) -> Vec<u8> {
    let requests: Vec<u8> = requests.iter().flat_map(TokenRequest::serialize).collect();
    vector(&requests)
}

/// One entry of a `GenericBatchTokenResponse`: nothing where the issuer did not issue.
pub type OptionalTokenResponse = Option<(TokenType, TokenResponse)>;

/// Reads a `GenericBatchTokenResponse`.
///
/// # Errors
/// A type that is not issued, or a wrong length.
pub fn parse_generic_response(bytes: &[u8]) -> Result<Vec<OptionalTokenResponse>, WireError> {
    parse_vector(bytes, "optional_token_responses", |reader| {
        let offset = reader.offset();
        match reader.u8("optional")? {
            0 => Ok(None),
            1 => {
                let token_type = TokenType::from_code(reader.u16("token_type")?);
                Ok(Some((token_type, TokenResponse::read(token_type, reader)?)))
            }
            _ => Err(WireError::Field { field: "optional", offset, reason: "is neither 0 nor 1" }),
        }
    })
}

/// The wire form of a `GenericBatchTokenResponse`.
#[must_use]
pub fn serialize_generic_response(responses: &[OptionalTokenResponse]) -> Vec<u8> {
    let mut entries = Vec::new();
    for response in responses {
        match response {
            None => entries.push(0),
            Some((token_type, response)) => {
                entries.push(1);
                entries.extend_from_slice(&token_type.code().to_be_bytes());
                entries.extend_from_slice(response.as_bytes());
            }
        }
    }
    vector(&entries)
}

/// A value that is one vector of items.
fn parse_vector<T>(
    bytes: &[u8],
    field: &'static str,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut items = reader.sub_reader(field)?;
    reader.finish()?;
    let mut read_items = Vec::new();
    while !items.is_at_end() {
        read_items.push(read(&mut items)?);
    }
    Ok(read_items)
}

fn vector(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + content.len());
    write_vector(&mut bytes, content);
    bytes
}

impl fmt::Debug for AmortizedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AmortizedRequest(type {}, {} elements, redacted)", self.token_type.code(), self.count())
    }
}

impl fmt::Debug for AmortizedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AmortizedResponse(redacted)")
    }
}
