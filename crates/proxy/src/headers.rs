//! Changes to a message's header before a proxy passes it on.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Uri, Version, request};

/// Converts a request in absolute form for its origin server (RFC 9112, section 3.2): origin form, HTTP/1.1, no hop-by-hop
/// fields, and the target's authority in place of the client's Host field (section 3.2.2). The authority was parsed as a
/// [`Target`](crate::target::Target), so it contains no user name. The remaining fields keep their order; a missing Host is
/// inserted first.
///
/// A body without a length is sent in chunks. hyper would otherwise omit the body of a GET.
pub fn to_origin_form(head: &mut request::Parts, has_body: bool) {
    one_length(&mut head.headers);
    let is_chunked = has_body && !head.headers.contains_key(CONTENT_LENGTH);
    let knows_no_100 = head.version == Version::HTTP_10; // RFC 9110, section 10.1.1: ignored
    let named = named_by_connection(&head.headers);
    retain(&mut head.headers, |name, value| match *name {
        TRANSFER_ENCODING => is_chunked,
        EXPECT if knows_no_100 && is_continue(value) => false,
        _ => !is_of_connection(name, &named),
    });
    if is_chunked {
        head.headers.insert(TRANSFER_ENCODING, CHUNKED);
    }
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        put_host(&mut head.headers, host);
    }
    join_cookies(&mut head.headers);
    if let Some(left @ 1..) = forwards_left(head) {
        head.headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    }
    // The path is empty, but compares equal to "/", if the request had only a fragment.
    let path = head.uri.path_and_query().filter(|path| path.as_str() != "/").cloned();
    head.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
}

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Replaces Host in place, because the order of fields distinguishes programs; inserts a missing one first.
fn put_host(headers: &mut HeaderMap, host: HeaderValue) {
    if headers.contains_key(HOST) {
        headers.insert(HOST, host);
        return;
    }
    let rest = std::mem::take(headers);
    headers.insert(HOST, host);
    headers.extend(rest);
}

/// Faults of a request's Host field (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFault {
    #[error("an HTTP/1.1 request has a Host field (RFC 9112, section 3.2)")]
    Missing,
    #[error("more than one Host field")]
    Several,
    #[error("the Host field holds neither a host nor nothing")]
    Malformed,
}

/// Returns the Host field of a request, which may differ from the host of its target.
pub fn host(head: &request::Parts) -> Result<Option<&HeaderValue>, HostFault> {
    let is_host = |host: &HeaderValue| {
        let parsed = Authority::try_from(host.as_bytes());
        host.is_empty() || parsed.is_ok_and(|host| !host.as_str().contains('@'))
    };
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Version::HTTP_11 => Err(HostFault::Missing),
        (Some(_), Some(_)) => Err(HostFault::Several),
        (Some(host), None) if !is_host(host) => Err(HostFault::Malformed),
        (host, _) => Ok(host),
    }
}

/// Reason to refuse a TRACE or OPTIONS that no further proxy may get.
pub const LAST_HOP: &str = "Max-Forwards is 0, and this proxy has no answer of its own to TRACE and OPTIONS";

/// Returns the number of further proxies that a TRACE or OPTIONS may pass (RFC 9110, section 7.6.2). At 0 this proxy answers it.
pub fn forwards_left(head: &request::Parts) -> Option<u64> {
    if head.method != Method::TRACE && head.method != Method::OPTIONS {
        return None;
    }
    let digits = head.headers.get(MAX_FORWARDS)?.to_str().ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Returns `true` if a CONNECT announces a body. The bytes after its header belong to the tunnel, so a length that claims them is
/// refused: two parsers of one connection must not disagree on the end of a request. In HTTP/2 even a length of 0 would apply to
/// the tunnel.
pub fn announces_body(head: &request::Parts) -> bool {
    let is_none = |length: &HeaderValue| length == "0" && head.version != Version::HTTP_2;
    let length = head.headers.get(CONTENT_LENGTH);
    head.headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| !is_none(length))
}

/// Returns `true` if a message has a transfer coding other than a single `chunked`. Another coding would be lost with its field,
/// and two parsers of a list may disagree on the end of the body (RFC 9112, section 6.1).
pub fn has_other_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !is_chunked(coding) || codings.next().is_some())
}

/// Joins the parts of a Cookie field, which HTTP/2 may split and HTTP/1.1 may not (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
}

/// Removes the fields for one connection only, above all Proxy-Authorization, and those that `Connection` names (RFC 9110,
/// section 7.6.1). Host and Content-Length stay even if `Connection` names them, but a Content-Length next to a Transfer-Encoding
/// is removed (RFC 9112, section 6.3). hyper does the framing. The other fields keep their order.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    one_length(headers);
    let named = named_by_connection(headers);
    retain(headers, |name, _| !is_of_connection(name, &named));
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect()
}

fn is_of_connection(name: &HeaderName, named: &[HeaderName]) -> bool {
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
    ALWAYS.contains(name) || named.contains(name)
}

/// Keeps the fields for which `keeps` returns `true`, in their order; removal from a map would move its last field to the freed
/// place. Lines of one name are grouped at the place of the first.
fn retain(headers: &mut HeaderMap, keeps: impl Fn(&HeaderName, &HeaderValue) -> bool) {
    if headers.iter().all(|(name, value)| keeps(name, value)) {
        return;
    }
    let all = std::mem::take(headers);
    headers.reserve(all.keys_len());
    for (name, value) in &all {
        if keeps(name, value) {
            headers.append(name.clone(), value.clone());
        }
    }
}

/// Reduces Content-Length to one number (RFC 9110, section 8.6). Equal lengths, in one field or several, become one; different or
/// malformed lengths are removed, and so is any length next to a transfer coding.
fn one_length(headers: &mut HeaderMap) {
    let is_coded = headers.contains_key(TRANSFER_ENCODING);
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
    match first.filter(|first| !is_coded && lengths.all(|length| length == Some(*first))) {
        Some(length) => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
        None => retain(headers, |name, _| *name != CONTENT_LENGTH),
    }
}

/// Escapes the content of an RFC 8941 string: printable ASCII, with quotation marks and backslashes escaped. An ellipsis, which
/// occurs in our sentences, becomes three dots; any other character becomes a question mark.
pub fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => vec!['\\', c],
        ' '..='~' => vec![c],
        '…' => vec!['.'; 3],
        _ => vec!['?'],
    };
    text.chars().flat_map(escape).collect()
}

/// Returns `true` for `100-continue`, the only expectation that RFC 9110 defines.
pub(crate) fn is_continue(value: &HeaderValue) -> bool {
    value.as_bytes().eq_ignore_ascii_case(b"100-continue")
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
        assert_eq!(
            lines(&head.headers),
            ["host: \"example.com:8080\"", "content-length: \"0\"", "x-end: \"2\""]
        );
        assert_eq!(head.uri, "/a?b");
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect()
    }

    #[test]
    fn a_host_field_is_there_once_and_holds_a_host_or_nothing() {
        let judged = |version, hosts: &[&str]| {
            let mut request = Request::get("http://a.example/").version(version);
            for value in hosts {
                request = request.header(HOST, *value);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            host(&head).map(|host| host.map(|host| host.to_str().unwrap().to_owned()))
        };
        for good in ["a.example", "b.example:8080", "[::1]:80", "127.0.0.1", "my_app", ""] {
            assert_eq!(judged(Version::HTTP_11, &[good]), Ok(Some(good.to_owned())));
        }
        for bad in ["a b", "a/b", "u@a.example", "http://a.example", "[::1", "a,b c"] {
            assert_eq!(judged(Version::HTTP_11, &[bad]), Err(HostFault::Malformed), "{bad}");
        }
        assert_eq!(judged(Version::HTTP_11, &[]), Err(HostFault::Missing));
        assert_eq!(
            [Version::HTTP_10, Version::HTTP_2].map(|version| judged(version, &[])),
            [Ok(None), Ok(None)]
        );
        assert_eq!(judged(Version::HTTP_10, &["a", "a"]), Err(HostFault::Several));
    }

    #[test]
    fn fields_keep_their_order() {
        let sent = |fields: &[(&'static str, &'static str)]| {
            let fields =
                fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            let (mut head, ()) = Request::post("http://a.example/").body(()).unwrap().into_parts();
            fields.for_each(|(name, value)| _ = head.headers.append(name, value));
            to_origin_form(&mut head, true);
            lines(&head.headers)
        };
        let transfer = [
            ("proxy-connection", "keep-alive"),
            ("accept", "a"),
            ("transfer-encoding", "Chunked"),
            ("host", "x"),
            ("te", "trailers"),
            ("cookie", "a=b"),
            ("x", "1"),
        ];
        assert_eq!(
            sent(&transfer),
            [
                "accept: \"a\"",
                "transfer-encoding: \"chunked\"",
                "host: \"a.example\"",
                "cookie: \"a=b\"",
                "x: \"1\""
            ]
        );
        assert_eq!(sent(&[("content-length", "1"), ("x", "1")])[0], "host: \"a.example\"");
    }

    #[test]
    fn a_length_is_there_once_or_not_at_all() {
        let kept = |lengths: &[&str]| {
            let fields = lengths.iter().map(|length| (CONTENT_LENGTH, length.parse().unwrap()));
            let mut headers = fields.collect::<HeaderMap>();
            one_length(&mut headers);
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
