//! Headers that a proxy must not pass on.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Removes the fields for one connection only, and those that `Connection` names (RFC 9110, section 7.6.1);
/// Proxy-Authorization above all. Host and Content-Length stay even if `Connection` names them. Framing is hyper's.
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
    for name in named.iter().chain(&ALWAYS) {
        headers.remove(name);
    }
}
