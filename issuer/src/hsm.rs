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

use parking_lot::Mutex;
use postern_token::key_file::Reference;
use postern_token::{KeyError, TokenKeyId, spki_modulus};
use std::time::{Duration, Instant};

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
        hex::encode(&self.id)
    }
}

/// Failure of a request to the module. The text is the reason alone, for a sentence that names the HSM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
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

/// Time for which a wrong result of a key is reported.
const WRONG_FOR: Duration = Duration::from_secs(600);

/// Health of a private key in an HSM that answers.
#[derive(Debug)]
struct KeyHealth {
    name: KeyName,
    state: Mutex<Faults>,
}

/// Reasons why a key does not sign although the HSM answers.
#[derive(Debug, Default)]
struct Faults {
    /// Fault of the last lookup.
    lookup: Option<String>,
    /// Fault of the last signature. Only a signature ends it: a key that is found may still not sign.
    signature: Option<String>,
    wrong: u64,
    wrong_at: Option<Instant>,
    last_was_wrong: bool,
}

impl KeyHealth {
    fn new(name: KeyName) -> Self {
        Self { name, state: Mutex::default() }
    }

    fn looked_up(&self, looked: Result<(), &Trouble>) {
        match looked {
            Ok(()) => self.state.lock().lookup = None,
            Err(trouble) => self.failed(trouble),
        }
    }

    /// Records the failure of a lookup of the key, or of a signature with it. Ignores errors that do not concern the key.
    fn failed(&self, trouble: &Trouble) {
        let (name, id) = (self.name.token_key.short(), self.name.id_hex());
        let fault = match trouble {
            Trouble::NoKey => format!(
                "the HSM has no private key with the CKA_ID {id}, which is the token key {name}: restore it from the HSM's backup, \
                 or retire it (postern issuer key retire {name})"
            ),
            Trouble::OtherKey => format!(
                "the private key with the CKA_ID {id} in the HSM is not the one of the token key {name}, and is not used: restore \
                 the right one from the HSM's backup, or retire it (postern issuer key retire {name})"
            ),
            Trouble::Failed(reason) => format!(
                "the HSM does not sign with the token key {name}: {reason}; look at what it allows the private key with the CKA_ID {id}"
            ),
            _ => return,
        };
        let mut state = self.state.lock();
        let known =
            if matches!(trouble, Trouble::Failed(_)) { &mut state.signature } else { &mut state.lookup };
        *known = Some(fault);
    }

    fn has_fault(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_some() || state.signature.is_some()
    }

    /// Returns `true` if only a trial can show that the key signs again.
    fn needs_trial(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_none() && (state.signature.is_some() || state.last_was_wrong)
    }

    /// Returns `true` if the key signs, provided that the HSM answers.
    fn is_able(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_none() && state.signature.is_none() && !state.last_was_wrong
    }

    /// Describes the problem to an operator; `None` if there is none.
    fn condition(&self) -> Option<String> {
        let state = self.state.lock();
        if let Some(reason) = state.lookup.as_ref().or(state.signature.as_ref()) {
            return Some(reason.clone());
        }
        let ago = state.wrong_at?.elapsed();
        (state.last_was_wrong || ago < WRONG_FOR).then(|| {
            format!(
                "the HSM computed {} wrong results with the token key {}, the last one {} s ago. None was given out, and those \
                 requests were answered 503: have the HSM checked",
                state.wrong,
                self.name.token_key.short(),
                ago.as_secs()
            )
        })
    }

    fn judged(&self, is_right: bool) {
        let mut state = self.state.lock();
        state.last_was_wrong = !is_right;
        if is_right {
            state.signature = None;
        } else {
            state.wrong += 1;
            state.wrong_at = Some(Instant::now());
        }
    }
}
