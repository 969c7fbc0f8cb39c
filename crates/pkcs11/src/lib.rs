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

mod hsm;
mod key;
#[cfg(feature = "cryptoki")]
mod link;
#[cfg(not(feature = "cryptoki"))]
#[path = "absent.rs"]
mod link;
mod sessions;
mod watch;

pub use hsm::{Hsm, HsmError, HsmKey};
pub use link::{Found, LoadError};
pub use sessions::{Options, PinSource};

use postern_token::key_file::Reference;
use postern_token::{KeyError, TokenKeyId, spki_modulus};

/// The length of a modulus, a message and a result, in bytes.
const MODULUS_LEN: usize = postern_token::BLINDED_LEN;
/// The label of the objects that the issuer makes, by which it knows them from others'.
pub const LABEL: &str = "postern token key";

/// How a key is found in the HSM, and called in sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    /// The id of the token key.
    pub token_key: TokenKeyId,
    /// Its first eight digits.
    pub name: String,
    /// The `CKA_ID`.
    pub id: Vec<u8>,
    /// The modulus, which tells the key from another with this `CKA_ID`.
    pub modulus: [u8; MODULUS_LEN],
}

impl KeyName {
    /// Of the key that a file refers to.
    ///
    /// # Errors
    /// Its public key is none of type 2.
    pub fn of(reference: &Reference) -> Result<Self, KeyError> {
        let token_key = TokenKeyId::of(&reference.public_key);
        let modulus = spki_modulus(&reference.public_key)?;
        Ok(Self { token_key, name: token_key.short(), id: reference.id.clone(), modulus })
    }

    /// The `CKA_ID` as `pkcs11-tool` shows it.
    #[must_use]
    pub fn id_hex(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

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
