//! The `PrivateToken` authentication scheme (RFC 9577, section 2): `Proxy-Authenticate` and `Proxy-Authorization`, and
//! the `WWW-Authenticate` and `Authorization` pair, which have the same grammar.

mod authenticate;
mod authorization;
mod scan;

pub use authenticate::{AuthenticateError, Challenge, Quoting};
pub use authorization::{AuthorizationError, Presentation, format_authorization, parse_authorization};
pub use scan::GrammarError;

/// The name of the scheme; compared without regard to case (RFC 9110, section 11.1).
pub const SCHEME: &str = "PrivateToken";

fn is_ours(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
}
