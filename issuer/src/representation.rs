//! A document that is served to everyone: its bytes, its ETag, and who has it already.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use std::time::Duration;

/// The bytes of a document, and their validator.
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

    /// 200 with the document, or 304 to a client that has it. Either may be kept for `max_age`.
    pub(crate) fn answer(
        &self,
        headers: &HeaderMap,
        media_type: &'static str,
        max_age: Duration,
    ) -> Response<Full<Bytes>> {
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
        } else {
            fields.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        response
    }

    /// Whether the client has this document already (RFC 9110, section 13.1.2: weak comparison, lists, `*`).
    fn is_known_to(&self, headers: &HeaderMap) -> bool {
        let ours = self.etag.trim_matches('"');
        headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            // Between the first and the second quote, the third and the fourth: the tags, which may hold commas.
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
