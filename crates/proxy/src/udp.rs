//! UDP in HTTP (RFC 9298): [`capsule`] reads and writes datagrams on a stream, [`template`] the target in a request's path.
//! Neither has a socket. [`socket`] is a connected one, and [`relay`] connects it with a stream.
//!
//! A client asks for [`template::Template::expand`] with [`PROTOCOL`], as `:protocol` of an extended CONNECT (HTTP/2) or as
//! `Upgrade` (HTTP/1.1), and both sides send [`CAPSULE_PROTOCOL`]. After a 200 or 101 the stream carries capsules in both directions.

pub mod capsule;
pub mod relay;
pub mod socket;
pub mod template;

use http::{HeaderName, HeaderValue};

/// Name of the protocol: `:protocol` of an extended CONNECT, and the upgrade token of HTTP/1.1 (RFC 9298, section 3).
pub const PROTOCOL: &str = "connect-udp";

/// Field of a request or answer whose stream carries capsules (RFC 9297, section 3.4).
pub const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");

/// Value of [`CAPSULE_PROTOCOL`]: a true Boolean (RFC 8941, section 3.3.6).
pub const CAPSULES: HeaderValue = HeaderValue::from_static("?1");
