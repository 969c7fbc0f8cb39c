//! Token keys of type 2 in an HSM. The keys are generated there, sign there, and cannot leave the HSM.
//!
//! An HSM is accessed through a PKCS#11 module, a shared library of its manufacturer. A call into a module cannot be cancelled,
//! and some calls never return. The issuer's threads therefore never call a module. Threads of this module do, each with its own
//! session, and a caller waits no longer than its timeout ([`Hsm`]). One more thread, the watch, connects, logs in once, and
//! connects again after the HSM was unreachable. A rejected PIN is not retried, because HSMs lock after a few wrong ones.
//!
//! Only `link` calls PKCS#11; `absent` replaces it in builds that cannot load modules.
#![cfg_attr(
    not(feature = "pkcs11"),
    allow(
        unreachable_code,
        unused_variables,
        unused_mut,
        dead_code,
        reason = "without a module most of this is never called"
    )
)]

mod key_health;
#[cfg(feature = "pkcs11")]
mod link;
#[cfg(not(feature = "pkcs11"))]
#[path = "hsm/absent.rs"]
mod link;
mod pool;
mod sessions;
mod watch;

pub use link::LoadError;
pub use pool::{Hsm, HsmError, HsmKey};
pub use sessions::{Options, PinSource};

use postern_token::key_file::Reference;
use postern_token::{KeyError, TokenKeyId, spki_modulus};

/// Length of a modulus, a message and a result, in bytes.
const MODULUS_LEN: usize = postern_token::BLINDED_LEN;
/// Label of the objects that the issuer makes, which distinguishes them from the objects of others.
pub const LABEL: &str = "postern token key";

/// Identity of a key in the HSM, and its name in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    pub token_key: TokenKeyId,
    /// `CKA_ID` of the key.
    pub id: Vec<u8>,
    /// Modulus, which distinguishes the key from another key with this `CKA_ID`.
    pub modulus: [u8; MODULUS_LEN],
}

impl KeyName {
    /// Returns the identity of the key to which a file refers.
    pub fn of(reference: &Reference) -> Result<Self, KeyError> {
        let token_key = TokenKeyId::of(&reference.public_key);
        Ok(Self { token_key, id: reference.id.clone(), modulus: spki_modulus(&reference.public_key)? })
    }

    /// Returns the `CKA_ID` in hex, as `pkcs11-tool` prints it.
    pub fn id_hex(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Failure of a request to the module. The text is the reason alone, for a sentence that names the HSM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Pin(String),
    #[error("{0}")]
    Away(String),
    #[error("{0}")]
    Full(String),
    #[error("it has no private key with this CKA_ID")]
    NoKey,
    #[error("it has another private key with this CKA_ID")]
    OtherKey,
    #[error("{0}")]
    Failed(String),
}
