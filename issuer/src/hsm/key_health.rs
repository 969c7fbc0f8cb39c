//! Faults of a private key in an HSM that answers.

use super::{KeyName, Trouble};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Time for which a wrong result of a key is reported.
const WRONG_FOR: Duration = Duration::from_secs(600);

/// Health of a private key in the HSM.
#[derive(Debug)]
pub(crate) struct KeyHealth {
    pub(crate) name: KeyName,
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
    pub(crate) fn new(name: KeyName) -> Self {
        Self { name, state: Mutex::default() }
    }

    /// Records the outcome of a lookup of the key.
    pub(crate) fn looked_up(&self, looked: Result<(), &Trouble>) {
        match looked {
            Ok(()) => self.state.lock().lookup = None,
            Err(trouble) => self.failed(trouble),
        }
    }

    /// Records the failure of a lookup of the key, or of a signature with it. Ignores errors that do not concern the key.
    pub(crate) fn failed(&self, trouble: &Trouble) {
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

    pub(crate) fn has_fault(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_some() || state.signature.is_some()
    }

    /// Returns `true` if only a trial can show that the key signs again.
    pub(crate) fn needs_trial(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_none() && (state.signature.is_some() || state.last_was_wrong)
    }

    /// Returns `true` if the key signs, provided that the HSM answers.
    pub(crate) fn is_able(&self) -> bool {
        let state = self.state.lock();
        state.lookup.is_none() && state.signature.is_none() && !state.last_was_wrong
    }

    /// Describes the problem to an operator; `None` if there is none.
    pub(crate) fn condition(&self) -> Option<String> {
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

    /// Records the verdict on a result.
    pub(crate) fn judged(&self, is_right: bool) {
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
