//! The OpenAPI document of the public address: `issuer/openapi.json`, with the configured path of token requests.
//!
//! It is served on the public address, not on the admin one, because those who write clients reach only the former. It tells a
//! stranger nothing that the source and the key directory do not: no version of the program, no address, no account.
//!
//! The file is written by hand. Tests hold it to the table of refusals and to the key directory, and every answer of the
//! issuer's tests to the file.

#[cfg(test)]
mod refusals;
#[cfg(test)]
mod tests;

use crate::StartError;
use crate::config::Config;
use serde_json::json;
use std::time::Duration;

/// What tools expect, and browsers show.
pub(crate) const MEDIA_TYPE: &str = "application/json";
/// How long a copy may be kept. It changes with a reload or an upgrade.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(3_600);

const DOCUMENT: &str = include_str!("../openapi.json");
/// The line that names the path of token requests, with what stands in `DOCUMENT` for the configured one.
const REQUESTS: &str = "\"/token-request\": {\n";

/// Returns the document of an issuer with this configuration, as it is served. It has the path of token requests that the
/// directory names now; those from before a reload are served on, for kept copies of the directory.
///
/// # Errors
/// `[directory] issuer_request_uri` is not one that an issuer starts with.
pub(crate) fn openapi(config: &Config) -> Result<String, StartError> {
    let mut requests = format!("{}: {{\n", json!(config.directory.path()?));
    if let Some(origin) = origin(&config.directory.issuer_request_uri) {
        requests += &format!("      \"servers\": {},\n", json!([{ "url": origin }]));
    }
    Ok(DOCUMENT.replacen(REQUESTS, &requests, 1))
}

/// Where token requests go, if that is another name than the directory's.
fn origin(request_uri: &str) -> Option<String> {
    let uri: http::Uri = request_uri.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}
