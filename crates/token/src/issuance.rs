//! `TokenRequest` and `TokenResponse` (RFC 9578, sections 5.1, 5.2, 6.1 and 6.2), which client and issuer exchange for one token, and
//! batches (draft-ietf-privacypass-batched-tokens-09): amortized ones for the private types, with one proof for all elements, and
//! generic ones for any type, with one request per token.
//!
//! Vectors are prefixed with their length in bytes, as a variable-length integer (RFC 9000, section 16).

use crate::encoding::{Reader, WireError, write_vector};
use crate::ids::{TokenKeyId, TokenType};
use crate::voprf::{self, Evaluated};
use std::fmt;

/// Media type of a request, without parameters.
pub const REQUEST_MEDIA_TYPE: &str = "application/private-token-request";
/// Media type of a response, without parameters (privacypass-ts rejects one with a parameter).
pub const RESPONSE_MEDIA_TYPE: &str = "application/private-token-response";
pub const AMORTIZED_REQUEST_MEDIA_TYPE: &str = "application/private-token-amortized-batch-request";
pub const AMORTIZED_RESPONSE_MEDIA_TYPE: &str = "application/private-token-amortized-batch-response";
pub const GENERIC_REQUEST_MEDIA_TYPE: &str = "application/private-token-generic-batch-request";
pub const GENERIC_RESPONSE_MEDIA_TYPE: &str = "application/private-token-generic-batch-response";
/// Length of a blinded message and of a blind signature of type 2, in bytes.
pub const BLINDED_LEN: usize = 256;
/// Length of a request of type 2, the longest of all types, in bytes.
pub const REQUEST_LEN: usize = PREFIX_LEN + BLINDED_LEN;

/// token_type and truncated_token_key_id.
const PREFIX_LEN: usize = 2 + 1;

/// A request for one token: 52 bytes for type 1, 259 for type 2, 35 for type 5.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    token_type: TokenType,
    /// Last byte of the id of the key that is to sign.
    pub truncated_token_key_id: u8,
    blinded_message: Box<[u8]>,
}

impl TokenRequest {
    /// Creates a request of type 2 for a signature of `key` on `blinded_message` (big-endian).
    pub fn new(key: TokenKeyId, blinded_message: [u8; BLINDED_LEN]) -> Self {
        Self::of(TokenType::BlindRsa2048, key, &blinded_message)
    }

    pub(crate) fn of(token_type: TokenType, key: TokenKeyId, blinded_message: &[u8]) -> Self {
        let blinded_message = blinded_message.into();
        Self { token_type, truncated_token_key_id: key.truncated(), blinded_message }
    }

    /// Parses the whole of `bytes`.
    ///
    /// # Errors
    /// A token type other than 1, 2 and 5, or a length that is not that type's; an issuer answers either with 422.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let request = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(request)
    }

    /// Reads the next request and leaves the bytes after it.
    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let offset = reader.offset();
        let token_type = TokenType::from_code(reader.u16("token_type")?);
        let Some(blinded_len) = blinded_len(token_type) else {
            return Err(not_issued(offset));
        };
        let truncated_token_key_id = reader.u8("truncated_token_key_id")?;
        let blinded_message = reader.take("blinded_msg", blinded_len)?.into();
        Ok(Self { token_type, truncated_token_key_id, blinded_message })
    }

    pub fn serialize(&self) -> Vec<u8> {
        let [high, low] = self.token_type.code().to_be_bytes();
        [&[high, low, self.truncated_token_key_id][..], &self.blinded_message].concat()
    }

    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Returns the blinded token input: a big-endian number for type 2, an element of the group for types 1 and 5.
    pub fn blinded_message(&self) -> &[u8] {
        &self.blinded_message
    }
}

impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token_type, truncated_token_key_id, .. } = self;
        write!(f, "TokenRequest(type {}, key …{truncated_token_key_id:02x}, redacted)", token_type.code())
    }
}

/// Response to one request: 145 bytes for type 1, 256 for type 2, 96 for type 5.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenResponse(Box<[u8]>);

impl TokenResponse {
    /// Parses the whole of `bytes` as the response to a request of `token_type`.
    ///
    /// # Errors
    /// A type that is not issued, or a length that is not that type's.
    pub fn parse(token_type: TokenType, bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let response = Self::read(token_type, &mut reader)?;
        reader.finish()?;
        Ok(response)
    }

    fn read(token_type: TokenType, reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (field, len) = match voprf::lengths(token_type) {
            Some(lengths) => ("evaluate_msg and evaluate_proof", lengths.element + lengths.proof),
            None if token_type == TokenType::BlindRsa2048 => ("blind_sig", BLINDED_LEN),
            None => return Err(not_issued(reader.offset())),
        };
        Ok(Self(reader.take(field, len)?.into()))
    }

    pub(crate) fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the wire form: a blind signature, or an evaluated element and its proof.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

redacted!(TokenResponse);

/// Returns the length of a request's blinded message; `None` for a type that is not issued.
const fn blinded_len(token_type: TokenType) -> Option<usize> {
    match voprf::lengths(token_type) {
        Some(lengths) => Some(lengths.element),
        None if matches!(token_type, TokenType::BlindRsa2048) => Some(BLINDED_LEN),
        None => None,
    }
}

fn not_issued(offset: usize) -> WireError {
    let reason = "is not 1, 2 or 5, the types that can be issued";
    WireError::Field { field: "token_type", offset, reason }
}

/// `AmortizedBatchTokenRequest`: blinded elements of one private type, for one key.
#[derive(Clone, PartialEq, Eq)]
pub struct AmortizedRequest {
    pub(crate) token_type: TokenType,
    /// Last byte of the id of the key that is to evaluate the elements.
    pub truncated_token_key_id: u8,
    pub(crate) elements: Vec<u8>,
}

/// `AmortizedBatchTokenResponse`: evaluated elements, and one proof for all of them.
#[derive(Clone, PartialEq, Eq)]
pub struct AmortizedResponse(pub(crate) Evaluated);

impl AmortizedRequest {
    /// Parses the whole of `bytes`.
    ///
    /// # Errors
    /// A type other than 1 or 5, no element, a partial element, or a wrong length; an issuer answers each with 422.
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

    pub fn serialize(&self) -> Vec<u8> {
        let mut bytes = self.token_type.code().to_be_bytes().to_vec();
        bytes.push(self.truncated_token_key_id);
        write_vector(&mut bytes, &self.elements);
        bytes
    }

    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Returns the number of requested tokens, at least one in a parsed request.
    pub fn count(&self) -> usize {
        blinded_len(self.token_type).map_or(0, |len| self.elements.len() / len)
    }
}

impl AmortizedResponse {
    /// Parses the whole of `bytes` as the response to a request of `token_type`.
    ///
    /// # Errors
    /// A type other than 1 or 5, no element, a partial element, or a wrong length.
    pub fn parse(token_type: TokenType, bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let lengths = voprf::lengths(token_type).ok_or(not_issued(0))?;
        let elements = whole_elements(&mut reader, "evaluated_elements", lengths.element)?;
        let proof = reader.take("evaluated_proof", lengths.proof)?.to_vec();
        reader.finish()?;
        Ok(Self(Evaluated { elements, proof }))
    }

    pub fn serialize(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.0.elements.len() + self.0.proof.len());
        write_vector(&mut bytes, &self.0.elements);
        bytes.extend_from_slice(&self.0.proof);
        bytes
    }
}

/// Reads a vector of one or more elements of `len` bytes each.
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

/// Parses a `GenericBatchTokenRequest` of one or more requests.
///
/// # Errors
/// No request, a type other than 1, 2 or 5 (the draft requires an issuer to answer 422), or a wrong length.
pub fn parse_generic_request(bytes: &[u8]) -> Result<Vec<TokenRequest>, WireError> {
    let requests = parse_vector(bytes, "generic_token_requests", TokenRequest::read)?;
    if requests.is_empty() {
        let (field, reason) = ("generic_token_requests", "has no request");
        return Err(WireError::Field { field, offset: 0, reason });
    }
    Ok(requests)
}

pub fn serialize_generic_request(requests: &[TokenRequest]) -> Vec<u8> {
    let requests: Vec<u8> = requests.iter().flat_map(TokenRequest::serialize).collect();
    vector(&requests)
}

/// One entry of a `GenericBatchTokenResponse`; `None` if the issuer did not issue the token.
pub type OptionalTokenResponse = Option<(TokenType, TokenResponse)>;

/// Parses a `GenericBatchTokenResponse`.
///
/// # Errors
/// A type that is not issued, a presence flag other than 0 and 1, or a wrong length.
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

/// Parses a value that consists of one vector of items.
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

redacted!(AmortizedResponse);
