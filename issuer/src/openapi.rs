//! The OpenAPI document of the public address: `issuer/openapi.json`, with the configured path of token requests.
//!
//! It is served on the public address, not on the admin one, because authors of clients reach only the former. It reveals nothing
//! that the source and the key directory do not: no version of the program, no address, no account.
//!
//! The file is written by hand. Tests compare it with the table of refusals and with the key directory, and every answer in the
//! issuer's tests with the file.

#[cfg(test)]
mod tests;

use serde_json::json;
use std::time::Duration;

/// The media type that tools expect and browsers show.
pub(crate) const MEDIA_TYPE: &str = "application/json";
/// Time that a copy may be cached. The document changes with a reload or an upgrade.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(3_600);

const DOCUMENT: &str = include_str!("../openapi.json");
/// The line of `DOCUMENT` with the placeholder for the path of token requests.
const REQUESTS: &str = "\"/token-request\": {\n";

/// Returns the document of an issuer that takes token requests at `request_uri`, whose path is `path`, as it is served. Earlier
/// paths are still served after a reload, for cached copies of the directory.
pub(crate) fn openapi(request_uri: &str, path: &str) -> String {
    let mut requests = format!("{}: {{\n", json!(path));
    if let Some(origin) = origin(request_uri) {
        requests += &format!("      \"servers\": {},\n", json!([{ "url": origin }]));
    }
    DOCUMENT.replacen(REQUESTS, &requests, 1)
}

/// Returns the origin of token requests, if `issuer_request_uri` is a URL.
fn origin(request_uri: &str) -> Option<String> {
    let uri: http::Uri = request_uri.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}
