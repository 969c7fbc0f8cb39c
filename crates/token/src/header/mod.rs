//! The `PrivateToken` authentication scheme (RFC 9577, section 2): `Proxy-Authenticate` and `Proxy-Authorization`, and the
//! `WWW-Authenticate` and `Authorization` pair, which have the same grammar.

mod authenticate;
mod authorization;
pub(crate) mod scan;

pub use authenticate::{AuthenticateError, Challenge, Quoting};
pub use authorization::{AuthorizationError, Presentation, format_authorization, parse_authorization};
pub(crate) use authorization::{decode_token, find_token};
pub use scan::GrammarError;

/// Name of the scheme, compared without regard to case (RFC 9110, section 11.1).
pub const SCHEME: &str = "PrivateToken";

pub(crate) fn is_ours(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
}

/// Returns the position of a backslash in a value that is not base64url. A backslash has a separate error.
fn escape_in(value: &[u8]) -> Option<usize> {
    value.iter().position(|&byte| byte == b'\\')
}
