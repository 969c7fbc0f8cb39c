//! UDP in HTTP (RFC 9298): [`capsule`] reads and writes datagrams on a stream, [`template`] the target in a request's path.
//! Neither has a socket. [`socket`] is a connected one, and [`relay`] connects it with a stream. [`forwarded`] is for a stream
//! that goes on to another proxy.
//!
//! A client asks for [`template::Template::expand`] with [`PROTOCOL`], as `:protocol` of an extended CONNECT (HTTP/2) or as
//! `Upgrade` (HTTP/1.1), and both sides send [`CAPSULE_PROTOCOL`]. After a 200 or 101 the stream carries capsules in both directions.

pub mod capsule;
pub mod forwarded;
pub mod relay;
pub mod socket;
pub mod template;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request};

/// Name of the protocol: `:protocol` of an extended CONNECT, and the upgrade token of HTTP/1.1 (RFC 9298, section 3).
pub const PROTOCOL: &str = "connect-udp";

/// Field of a request or answer whose stream carries capsules (RFC 9297, section 3.4).
pub const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");

/// Value of [`CAPSULE_PROTOCOL`]: a true Boolean (RFC 8941, section 3.3.6).
pub const CAPSULES: HeaderValue = HeaderValue::from_static("?1");

/// Returns `true` for a GET of HTTP/1.1 that asks for UDP (RFC 9298, section 3.2).
pub fn is_upgrade(head: &request::Parts) -> bool {
    head.version == Version::HTTP_11
        && head.method == Method::GET
        && has_word(&head.headers, &CONNECTION, "upgrade")
        && has_word(&head.headers, &UPGRADE, PROTOCOL)
}

/// Sets the fields of a 101 that opens a stream of capsules (RFC 9298, section 3.3).
pub fn set_upgraded(fields: &mut HeaderMap) {
    fields.insert(CAPSULE_PROTOCOL, CAPSULES);
    fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    fields.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
}

/// Returns `true` if an answer opens a stream of capsules: 101 with the upgrade over HTTP/1.1 (RFC 9298, section 3.3), 2xx over
/// HTTP/2 (section 3.5), without fields about content.
pub fn is_opened(status: StatusCode, fields: &HeaderMap, is_http2: bool) -> bool {
    use StatusCode as S;
    let is_open = if is_http2 {
        status.is_success() && !matches!(status, S::NO_CONTENT | S::RESET_CONTENT | S::PARTIAL_CONTENT)
    } else {
        status == S::SWITCHING_PROTOCOLS
            && has_word(fields, &CONNECTION, "upgrade")
            && has_word(fields, &UPGRADE, PROTOCOL)
    };
    is_open && !describes_content(fields)
}

/// Returns `true` if a message has a field about content, which makes one with capsules malformed (RFC 9297, section 3.2).
pub fn describes_content(fields: &HeaderMap) -> bool {
    [CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING].iter().any(|name| fields.contains_key(name))
}

/// Returns `true` if a field has a word in its list, in any case.
pub fn has_word(fields: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let has = |value: &HeaderValue| {
        let mut parts = value.as_bytes().split(|&byte| byte == b',');
        parts.any(|part| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    fields.get_all(name).iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_opened_by_the_answer_of_its_version_alone() {
        let opened = |status: u16, fields: &[(HeaderName, &'static str)], is_http2| {
            let fields = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            is_opened(StatusCode::from_u16(status).unwrap(), &fields.collect(), is_http2)
        };
        let upgrade = [(CONNECTION, "x, Upgrade"), (UPGRADE, "connect-udp")];
        assert!(opened(101, &upgrade, false) && opened(200, &[], true) && opened(299, &[], true));
        assert!(!opened(200, &upgrade, false) && !opened(101, &upgrade, true) && !opened(403, &[], true));
        assert!(!opened(101, &upgrade[..1], false) && !opened(101, &upgrade[1..], false));
        assert!(!opened(101, &[(CONNECTION, "upgrade"), (UPGRADE, "websocket")], false));
        assert!([204, 205, 206].iter().all(|&status| !opened(status, &[], true)));
        for field in [(CONTENT_LENGTH, "0"), (CONTENT_TYPE, "text/plain"), (TRANSFER_ENCODING, "chunked")] {
            assert!(!opened(200, &[field], true), "a page");
        }
    }
}
