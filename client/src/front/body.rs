//! The bodies of the agent's answers.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};

/// The body of any answer.
pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) fn full(bytes: Bytes) -> Body {
    boxed(Full::new(bytes))
}

pub(crate) fn boxed(body: Full<Bytes>) -> Body {
    body.map_err(|never| match never {}).boxed()
}
