//! A private key in the HSM, as it signs.

use crate::hsm::{Hsm, HsmError};
use crate::{MODULUS_LEN, Trouble};
use parking_lot::Mutex;
use postern_token::key_file::Reference;
use postern_token::{KeyError, PrivateOperation, TokenKeyId, Unavailable, spki_modulus};
use std::time::{Duration, Instant};

/// How long a wrong result is reported.
const WRONG_FOR: Duration = Duration::from_secs(600);

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

/// A private key in the HSM.
#[derive(Debug)]
pub struct HsmKey {
    pub(crate) name: KeyName,
    hsm: Hsm,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Why it cannot sign, although the HSM answers.
    fault: Option<String>,
    wrong: u64,
    wrong_at: Option<Instant>,
    was_wrong: bool,
}

impl HsmKey {
    pub(crate) fn new(hsm: Hsm, name: KeyName) -> Self {
        Self { name, hsm, state: Mutex::default() }
    }

    /// What a look at the key, or a signature with it, has shown.
    pub(crate) fn learn(&self, looked: Result<(), &Trouble>) {
        let KeyName { name, .. } = &self.name;
        let id = self.name.id_hex();
        let fault = match looked {
            Ok(()) => None,
            Err(Trouble::NoKey) => Some(format!(
                "the HSM has no private key with the CKA_ID {id}, which is the token key {name}: restore it from the HSM's backup, \
                 or retire it (postern issuer key retire {name})"
            )),
            Err(Trouble::OtherKey) => Some(format!(
                "the private key with the CKA_ID {id} in the HSM is not the one of the token key {name}, and is not used: restore \
                 the right one from the HSM's backup, or retire it (postern issuer key retire {name})"
            )),
            Err(Trouble::Failed(reason)) => Some(format!(
                "the HSM does not sign with the token key {name}: {reason}; look at what it allows the private key with the CKA_ID {id}"
            )),
            Err(_) => return,
        };
        self.state.lock().fault = fault;
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.state.lock().fault.is_some()
    }

    /// Whether it would sign, where the HSM answers.
    pub(crate) fn is_able(&self) -> bool {
        let state = self.state.lock();
        state.fault.is_none() && !state.was_wrong
    }

    /// What an operator should know.
    pub(crate) fn condition(&self) -> Option<String> {
        let state = self.state.lock();
        if state.fault.is_some() {
            return state.fault.clone();
        }
        let ago = state.wrong_at?.elapsed();
        (state.was_wrong || ago < WRONG_FOR).then(|| {
            format!(
                "the HSM computed {} wrong results with the token key {}, the last one {} s ago. None was given out, and those \
                 requests were answered 503: have the HSM checked",
                state.wrong,
                self.name.name,
                ago.as_secs()
            )
        })
    }
}

impl PrivateOperation for HsmKey {
    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable> {
        if self.has_fault() {
            return Err(Unavailable); // the watch looks whether it is over
        }
        // A session may have been closed because it was idle: the second attempt has a new one.
        for is_last in [false, true] {
            let (name, message) = (self.name.clone(), *message);
            match self.hsm.call(self.hsm.timeout(), move |session| session.sign(&name, &message)) {
                Ok(result) => return Ok(result),
                Err(HsmError::Lost(_)) if !is_last => {}
                Err(HsmError::Key(trouble)) => {
                    self.learn(Err(&trouble.0));
                    return Err(Unavailable);
                }
                Err(_) => return Err(Unavailable),
            }
        }
        Err(Unavailable)
    }

    fn judged(&self, is_right: bool) {
        let mut state = self.state.lock();
        state.was_wrong = !is_right;
        if !is_right {
            state.wrong += 1;
            state.wrong_at = Some(Instant::now());
        }
    }
}
