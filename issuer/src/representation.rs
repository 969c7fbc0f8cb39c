//! A document that is served to everyone: its bytes, its ETag, and the check if a client already has it.

use crate::catalogue::IssuerOutcome;
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use std::time::Duration;

/// A document's bytes, and their validator.
#[derive(Clone, Debug)]
pub(crate) struct Representation {
    pub(crate) body: Bytes,
    /// A strong validator, quotes included: a hash of the body.
    pub(crate) etag: String,
}

impl Representation {
    pub(crate) fn of(body: Vec<u8>) -> Self {
        let hash = digest(&SHA256, &body);
        let etag = format!("\"{}\"", hex::encode(&hash.as_ref()[..16]));
        Self { body: body.into(), etag }
    }

    /// Returns 200 with the document and `outcome`, or 304 to a client that has it. Either may be cached for `max_age`.
    pub(crate) fn answer(
        &self,
        headers: &HeaderMap,
        media_type: &'static str,
        max_age: Duration,
        outcome: IssuerOutcome,
    ) -> (Response<Full<Bytes>>, IssuerOutcome) {
        let known = self.is_known_to(headers);
        let body = if known { Bytes::new() } else { self.body.clone() };
        let mut response = Response::new(Full::new(body));
        let fields = response.headers_mut();
        let field = |value: String| HeaderValue::try_from(value).ok(); // ASCII by construction
        let max_age = field(format!("public, max-age={}", max_age.as_secs()));
        fields.extend(max_age.map(|value| (CACHE_CONTROL, value)));
        fields.extend(field(self.etag.clone()).map(|value| (ETAG, value)));
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return (response, IssuerOutcome::NotModified);
        }
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        (response, outcome)
    }

    /// `true` if the client already has this document (RFC 9110, section 13.1.2: weak comparison, lists, `*`).
    fn is_known_to(&self, headers: &HeaderMap) -> bool {
        let ours = self.etag.trim_matches('"');
        headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            // Tags, which may contain commas, are between the first and the second quote, the third and the fourth, and so on.
            let mut tags = value.as_bytes().split(|byte| *byte == b'"').skip(1).step_by(2);
            value.as_bytes().trim_ascii() == b"*" || tags.any(|tag| tag == ours.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_none_match_takes_lists_weak_tags_and_the_star() {
        let document = Representation::of(b"{}".to_vec());
        let ours = document.etag.clone();
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            document.is_known_to(&headers)
        };
        let bare = ours.trim_matches('"').to_owned();
        assert!(known(&[&ours]) && known(&["*"]) && known(&[" * "]));
        assert!(known(&[&format!("W/{ours}")]));
        assert!(known(&[&format!("\"a,b\", W/\"c\" , {ours}")]));
        assert!(known(&["\"a\"", &ours]));
        assert!(!known(&[]) && !known(&["\"a\""]) && !known(&[&bare]) && !known(&["\"*\""]));
        assert!(!known(&[&format!("\"x{bare}\"")]));
    }
}
