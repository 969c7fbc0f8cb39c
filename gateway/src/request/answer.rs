//! Refusals as HTTP: the status table put into bytes.

use crate::request::deny::Refusal;
use crate::request::forward::ForwardedBody;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHENTICATE, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::{Either, Empty, Full};
use postern_proxy::headers::quoted;

/// A sentence, an answer of a target, or nothing.
pub(crate) type Body = Either<Either<Full<Bytes>, Empty<Bytes>>, ForwardedBody>;

/// RFC 9209, section 2: which hop answered, and why.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// The name of this proxy in Proxy-Status and Via.
const OWN_NAME: &str = "postern";

/// The tunnel is open: 200 with no body (RFC 9110, section 9.3.6).
pub(crate) fn opened() -> Response<Body> {
    let mut response = Response::new(Either::Left(Either::Right(Empty::new())));
    response.headers_mut().insert(PROXY_STATUS, HeaderValue::from_static(OWN_NAME));
    response
}

/// The answer to a refusal. `challenge` is the value of Proxy-Authenticate, which goes with every 407.
pub(crate) fn refused(refusal: &Refusal, challenge: Option<HeaderValue>) -> Response<Body> {
    let verdict = refusal.verdict();
    let body = format!("{}.\n{}\n", capitalized(&verdict.details), verdict.advice);
    let mut response = Response::new(Either::Left(Either::Left(Full::new(Bytes::from(body)))));
    *response.status_mut() = verdict.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    let status = format!("{OWN_NAME}; error={}; details=\"{}\"", verdict.error, quoted(&verdict.details));
    if let Ok(value) = HeaderValue::from_str(&status) {
        headers.insert(PROXY_STATUS, value);
    }
    if verdict.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        headers.extend(challenge.map(|challenge| (PROXY_AUTHENTICATE, challenge)));
    }
    headers.extend(verdict.retry_after.map(|seconds| (RETRY_AFTER, seconds.into())));
    response
}

/// A refusal as bytes, for connections that hyper has given up on or never got.
pub(crate) fn refused_raw(refusal: &Refusal) -> Vec<u8> {
    let verdict = refusal.verdict();
    let body = format!("{}.\n{}\n", capitalized(&verdict.details), verdict.advice);
    let retry = verdict.retry_after.map_or_else(String::new, |seconds| format!("retry-after: {seconds}\r\n"));
    format!(
        "HTTP/1.1 {}\r\nproxy-status: {OWN_NAME}; error={}; details=\"{}\"\r\n{retry}content-type: text/plain; \
         charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        verdict.status,
        verdict.error,
        quoted(&verdict.details),
        body.len(),
    )
    .into_bytes()
}

fn capitalized(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + chars.as_str())
}
