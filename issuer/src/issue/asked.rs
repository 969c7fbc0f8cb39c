//! Forms of a request's body: one token, or a batch in one of two forms. The media type distinguishes them.

use crate::catalogue::TokenTypeAsked;
use crate::signing::Work;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use postern_token::{
    AMORTIZED_REQUEST_MEDIA_TYPE, AmortizedRequest, GENERIC_REQUEST_MEDIA_TYPE, REQUEST_LEN,
    REQUEST_MEDIA_TYPE, TokenRequest, TokenType, WireError, parse_generic_request,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A single request (RFC 9578).
    One,
    /// An amortized batch (draft-ietf-privacypass-batched-tokens-09, section 5).
    Amortized,
    /// A generic batch (section 6 of the same draft).
    Generic,
}

#[derive(Debug)]
pub(super) enum Asked {
    /// Issued as a whole or not at all.
    Whole(Work),
    Generic(Vec<TokenRequest>),
}

/// Minimum number of bytes to read of a body of a wrong length, so that the answer can state its length.
const LEAST_ROOM: usize = 1_024;
/// Upper bound of a vector's prefix and of the fixed fields before one.
const VECTOR_PREFIX: usize = 16;

impl Form {
    /// Returns the form by exactly one Content-Type, in any case, with any parameters.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(CONTENT_TYPE).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let forms = [
            (REQUEST_MEDIA_TYPE, Self::One),
            (AMORTIZED_REQUEST_MEDIA_TYPE, Self::Amortized),
            (GENERIC_REQUEST_MEDIA_TYPE, Self::Generic),
        ];
        let found = forms.iter().find(|(name, _)| essence.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, form)| *form)
    }

    /// Returns the maximum length of a body of this form, if a batch has `batch_limit` tokens at most.
    pub(super) fn most_bytes(self, batch_limit: usize) -> usize {
        match self {
            Self::One => LEAST_ROOM,
            Self::Amortized | Self::Generic => LEAST_ROOM.max(batch_limit * REQUEST_LEN + VECTOR_PREFIX),
        }
    }

    pub(super) fn parse(self, body: &[u8]) -> Result<Asked, WireError> {
        match self {
            Self::One => TokenRequest::parse(body).map(Work::Token).map(Asked::Whole),
            Self::Amortized => AmortizedRequest::parse(body).map(Work::Batch).map(Asked::Whole),
            Self::Generic => parse_generic_request(body).map(Asked::Generic),
        }
    }

    /// Returns the token type that a body of any length begins with; for a generic batch, that of its first request.
    pub(super) fn type_asked(self, body: &[u8]) -> TokenTypeAsked {
        let prefix = match (self, body) {
            (Self::Generic, [first, ..]) => 1 << (first >> 6), // the length of the vector's length
            _ => 0,
        };
        match body.get(prefix..).and_then(<[u8]>::first_chunk) {
            Some(code) => TokenTypeAsked::of(TokenType::from_code(u16::from_be_bytes(*code))),
            None => TokenTypeAsked::Unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_type_is_what_the_first_two_bytes_say() {
        use TokenTypeAsked::{BlindRsa2048, Other, Unread, VoprfRistretto255};
        assert_eq!(Form::One.type_asked(&[0, 2]), BlindRsa2048);
        assert_eq!(Form::One.type_asked(&[0, 2, 7, 7]), BlindRsa2048);
        assert_eq!(Form::Amortized.type_asked(&[0, 5, 7]), VoprfRistretto255);
        for other in [[0, 3], [2, 0], [2, 2], [0xda, 0x7a]] {
            assert_eq!(Form::One.type_asked(&other), Other, "{other:?}");
        }
        for form in [Form::One, Form::Generic] {
            assert_eq!((form.type_asked(&[]), form.type_asked(&[0])), (Unread, Unread));
        }
        assert_eq!(Form::Generic.type_asked(&[0x3f, 0, 2]), BlindRsa2048);
        assert_eq!(Form::Generic.type_asked(&[0x41, 3, 0, 5]), VoprfRistretto255);
        assert_eq!(Form::Generic.type_asked(&[0xff, 0, 2]), Unread);
    }

    #[test]
    fn the_media_type_is_read_liberally_but_only_once() {
        let form = |values: &[&str]| {
            let values = values.iter().map(|value| (CONTENT_TYPE, HeaderValue::from_str(value).unwrap()));
            Form::of(&values.collect())
        };
        assert_eq!(form(&[REQUEST_MEDIA_TYPE]), Some(Form::One));
        assert_eq!(form(&["Application/Private-Token-Request"]), Some(Form::One));
        assert_eq!(form(&["application/private-token-request ; charset=utf-8"]), Some(Form::One));
        assert_eq!(form(&["application/private-token-amortized-batch-request"]), Some(Form::Amortized));
        assert_eq!(form(&["application/private-token-generic-batch-request"]), Some(Form::Generic));
        for bad in ["", "application/octet-stream", "application/private-token-request2"] {
            assert_eq!(form(&[bad]), None, "{bad}");
        }
        assert_eq!(form(&["application/private-token-response"]), None);
        assert_eq!((form(&[]), form(&[REQUEST_MEDIA_TYPE, REQUEST_MEDIA_TYPE])), (None, None));
    }
}
