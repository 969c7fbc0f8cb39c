//! What a proxy changes in a message before it passes it on.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Uri, Version, request};

/// Makes a request in absolute form one for its origin server (RFC 9112, section 3.2): origin form, HTTP/1.1, nothing
/// of this hop, and the target's authority in place of the client's Host field (section 3.2.2). The authority was read
/// as a [`Target`](crate::target::Target), so it contains no user name.
///
/// A body without a length goes on in chunks. hyper would leave out that of a GET.
pub fn to_origin_form(head: &mut request::Parts, has_body: bool) {
    remove_hop_by_hop(&mut head.headers);
    if has_body && !head.headers.contains_key(CONTENT_LENGTH) {
        head.headers.insert(TRANSFER_ENCODING, CHUNKED);
    }
    head.headers.remove(HOST);
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    join_cookies(&mut head.headers);
    // It is empty and says that it is "/" where the request had only a fragment.
    let path = head.uri.path_and_query().filter(|path| path.as_str() != "/").cloned();
    head.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
}

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Whether a message has a transfer coding that is not read here: any but `chunked`, once. Another one would be lost with its field,
/// and two readers of a list may disagree about where the body ends (RFC 9112, section 6.1).
#[must_use]
pub fn has_other_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !is_chunked(coding) || codings.next().is_some())
}

/// HTTP/2 may send a Cookie field in parts, which HTTP/1.1 may not (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
}

/// Removes the fields for one connection only, and those that `Connection` names (RFC 9110, section 7.6.1);
/// Proxy-Authorization above all. Host and Content-Length stay even if `Connection` names them; a Content-Length beside
/// Transfer-Encoding goes (RFC 9112, section 6.3). Framing is hyper's.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    const ALWAYS: [HeaderName; 9] = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    keep_one_length(headers);
    for name in named.iter().chain(&ALWAYS) {
        headers.remove(name);
    }
}

/// A length that is there twice, in two fields or in one, is there once (RFC 9110, section 8.6). One that is no number means nothing.
fn keep_one_length(headers: &mut HeaderMap) {
    let mut lengths = headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|digits| {
            str::from_utf8(digits.trim_ascii())
                .ok()
                .filter(|digits| !digits.starts_with('+'))?
                .parse::<u64>()
                .ok()
        });
    let Some(first) = lengths.next() else { return };
    let length = first.filter(|first| lengths.all(|length| length == Some(*first)));
    headers.remove(CONTENT_LENGTH);
    headers.extend(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
}

/// The inside of an RFC 8941 string: printable ASCII, quotation marks and backslashes escaped. An ellipsis, which our
/// sentences have, becomes three dots.
#[must_use]
pub fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => vec!['\\', c],
        ' '..='~' => vec![c],
        '…' => vec!['.'; 3],
        _ => vec!['?'],
    };
    text.chars().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn what_is_about_one_connection_goes_no_further() {
        let request = Request::get("http://example.com:8080/a?b")
            .header("Connection", "close, X-Hop, host, content-length")
            .header("X-Hop", "1")
            .header("Proxy-Connection", "keep-alive")
            .header("Proxy-Authorization", "Basic eA==")
            .header("TE", "trailers")
            .header("Host", "elsewhere")
            .header("Content-Length", "0")
            .header("X-End", "2");
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        to_origin_form(&mut head, true);
        let mut left: Vec<_> =
            head.headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
        left.sort();
        assert_eq!(left, ["content-length: \"0\"", "host: \"example.com:8080\"", "x-end: \"2\""]);
        assert_eq!(head.uri, "/a?b");
    }

    #[test]
    fn a_length_is_there_once_or_not_at_all() {
        let kept = |lengths: &[&str]| {
            let fields = lengths.iter().map(|length| (CONTENT_LENGTH, length.parse().unwrap()));
            let mut headers = fields.collect::<HeaderMap>();
            keep_one_length(&mut headers);
            headers
                .get_all(CONTENT_LENGTH)
                .iter()
                .map(|length| length.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        for (lengths, expected) in [
            (&["5"][..], &["5"][..]),
            (&["5", "5"], &["5"]),
            (&["5, 5", "05"], &["5"]),
            (&["5", "6"], &[]),
            (&["5,"], &[]),
            (&["+5"], &[]),
            (&[""], &[]),
            (&[], &[]),
        ] {
            assert_eq!(kept(lengths), expected, "{lengths:?}");
        }
    }
}
