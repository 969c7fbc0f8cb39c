//! Token keys of type 2 in an HSM: they are made there, sign there, and cannot leave.
//!
//! An HSM is reached by a PKCS#11 module, a shared library of its maker. A call into a module cannot be cancelled, and some
//! never return. So no thread of the issuer calls one: threads of this crate do, each with a session of its own, and who
//! asks them waits no longer than the time it was given ([`Hsm`]). One more thread watches: it connects, logs in once, and connects
//! again when the HSM was away. A PIN that was refused is not tried again, because HSMs lock after a few.
//!
//! `link` is the one module that speaks PKCS#11; `absent` takes its place in builds that cannot load modules.
#![cfg_attr(
    not(feature = "cryptoki"),
    allow(
        unreachable_code,
        unused_variables,
        unused_mut,
        dead_code,
        reason = "without a module most of this is never called"
    )
)]

#[cfg(not(feature = "cryptoki"))]
mod absent;
mod condition;
mod hsm;
mod key;
#[cfg(feature = "cryptoki")]
mod link;
mod watch;

#[cfg(not(feature = "cryptoki"))]
use absent as link;
pub use hsm::{Hsm, HsmError, Options, PinSource};
pub use key::{HsmKey, KeyName};
pub use link::{Found, LoadError};

/// The length of a modulus, a message and a result, in bytes.
const MODULUS_LEN: usize = postern_token::BLINDED_LEN;
/// The label of the objects that the issuer makes, by which it knows them from others'.
pub const LABEL: &str = "postern token key";

/// Why a request to the module failed. The text is the reason alone, for a sentence that names the HSM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Trouble {
    /// The PIN was refused, or must not be tried.
    #[error("{0}")]
    Pin(String),
    /// There is no working session.
    #[error("{0}")]
    Away(String),
    /// The HSM takes no more sessions.
    #[error("{0}")]
    Full(String),
    /// There is no such private key.
    #[error("it has no private key with this CKA_ID")]
    NoKey,
    /// The private key with this id has another public half.
    #[error("it has another private key with this CKA_ID")]
    OtherKey,
    /// The HSM answers with an error.
    #[error("{0}")]
    Failed(String),
}
