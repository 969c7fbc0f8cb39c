//! Proxy-Status (RFC 9209) read strictly, as one member of an RFC 8941 list: more than a client would demand.

/// The error types of RFC 9209, section 2.3.
const ERROR_TYPES: &[&str] = &[
    "dns_timeout",
    "dns_error",
    "destination_not_found",
    "destination_unavailable",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "connection_refused",
    "connection_terminated",
    "connection_timeout",
    "connection_read_timeout",
    "connection_write_timeout",
    "connection_limit_reached",
    "http_request_error",
    "http_request_denied",
    "http_response_incomplete",
    "http_response_header_section_size",
    "http_response_transfer_coding",
    "http_upgrade_failed",
    "http_response_timeout",
    "http_protocol_error",
    "proxy_internal_response",
    "proxy_internal_error",
    "proxy_configuration_error",
    "proxy_loop_detected",
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyStatus {
    pub(crate) proxy: String,
    pub(crate) error: Option<String>,
    pub(crate) details: Option<String>,
}

/// Panics on anything but a token with the parameters `error` (a registered token) and `details` (a string).
pub(crate) fn parse(field: &str) -> ProxyStatus {
    let (proxy, mut rest) = token(field);
    let mut status = ProxyStatus { proxy: proxy.to_owned(), error: None, details: None };
    while !rest.is_empty() {
        rest = rest.strip_prefix(';').unwrap_or_else(|| panic!("{field:?}: expected ';' at {rest:?}"));
        rest = rest.trim_start_matches(' ');
        let (key, value) = rest.split_once('=').unwrap();
        assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{field:?}: {key:?} is not a key");
        match key {
            "error" => {
                let (found, after) = token(value);
                assert!(ERROR_TYPES.contains(&found), "{found:?} is not registered");
                assert!(status.error.replace(found.to_owned()).is_none(), "{field:?}");
                rest = after;
            }
            "details" => {
                let (found, after) = string(value);
                assert!(status.details.replace(found).is_none(), "{field:?}");
                rest = after;
            }
            _ => panic!("{field:?}: {key:?} is not expected"),
        }
    }
    status
}

/// RFC 8941, section 3.3.4.
fn token(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~:/".contains(c))
        .unwrap_or(text.len());
    assert!(text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*'), "{text:?} begins with no token");
    text.split_at(end)
}

/// RFC 8941, section 3.3.3.
fn string(text: &str) -> (String, &str) {
    let mut inside = String::new();
    let mut chars = text.char_indices();
    assert_eq!(chars.next(), Some((0, '"')), "{text:?} begins with no string");
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (inside, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, escaped @ ('"' | '\\'))) => inside.push(escaped),
                other => panic!("{text:?}: {other:?} is escaped"),
            },
            ' '..='~' => inside.push(c),
            _ => panic!("{text:?}: {c:?} is in a string"),
        }
    }
    panic!("{text:?} does not end");
}
