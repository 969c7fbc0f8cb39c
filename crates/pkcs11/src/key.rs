//! What is known of a private key in the HSM.

use crate::{KeyName, Trouble};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long a wrong result is reported.
const WRONG_FOR: Duration = Duration::from_secs(600);

/// Whether a private key in the HSM can be used.
#[derive(Debug)]
pub(crate) struct KeyHealth {
    pub(crate) name: KeyName,
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

impl KeyHealth {
    pub(crate) fn new(name: KeyName) -> Self {
        Self { name, state: Mutex::default() }
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

    /// A result was checked.
    pub(crate) fn judged(&self, is_right: bool) {
        let mut state = self.state.lock();
        state.was_wrong = !is_right;
        if !is_right {
            state.wrong += 1;
            state.wrong_at = Some(Instant::now());
        }
    }
}
