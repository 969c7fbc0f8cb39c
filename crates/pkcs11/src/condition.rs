//! How the HSM stands, and what an operator reads of it.

use crate::hsm::{Hsm, Options};
use crate::link::Opener;
use postern_token::TokenKeyId;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Whether calls are made.
pub(crate) enum Standing {
    /// The watch connects: who asks waits for that.
    Connecting {
        since: Instant,
    },
    Ready(Opener),
    /// Who asks is refused at once, and the watch tries again.
    Away(Away),
    /// The PIN is wrong: nothing is tried until another is there.
    Refused {
        reason: String,
        pin: Zeroizing<Vec<u8>>,
    },
}

pub(crate) struct Away {
    pub(crate) reason: String,
    pub(crate) since: Instant,
    pub(crate) next: Instant,
    pub(crate) pause: Duration,
    /// Where calls do not return: others may.
    pub(crate) opener: Option<Opener>,
}

/// The pause after the first failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Away {
    /// To be tried at once.
    pub(crate) fn new(reason: String) -> Self {
        let now = Instant::now();
        Self { reason, since: now, next: now, pause: PAUSES.0, opener: None }
    }

    /// Another attempt has failed.
    pub(crate) fn again(self, reason: String) -> Self {
        let next = Instant::now() + self.pause;
        Self { reason, next, pause: (self.pause * 2).min(PAUSES.1), ..self }
    }
}

impl Standing {
    pub(crate) fn sentence(&self, options: &Options) -> String {
        match self {
            Self::Connecting { since } => {
                format!("the HSM is being connected to, since {} s", since.elapsed().as_secs())
            }
            Self::Ready(_) => "the HSM answers".to_owned(),
            Self::Away(Away { reason, since, opener, .. }) => {
                let restart = match opener {
                    Some(_) => {
                        "; if it lasts although the HSM is well, restart the issuer, because a call into a module cannot be ended"
                    }
                    None => ", and no restart is needed",
                };
                format!(
                    "the HSM cannot be used since {} s: {reason} ([keys.pkcs11] token = {:?}). It is tried again every {} s at most{restart}",
                    since.elapsed().as_secs(),
                    options.token,
                    PAUSES.1.as_secs()
                )
            }
            Self::Refused { reason, .. } => format!(
                "{reason}. It is not tried again, because HSMs lock after a few wrong ones: put the right one into {} ([keys.pkcs11] \
                 pin_file) and reload the issuer (SIGHUP)",
                options.pin_file.display()
            ),
        }
    }
}

impl Hsm {
    /// What is wrong, and what to do; nothing if all is well.
    #[must_use]
    pub fn condition(&self) -> Option<String> {
        let state = self.0.state.lock();
        let timeout = self.0.options.timeout;
        if let Some(since) = state.watching.filter(|since| since.elapsed() > timeout) {
            return Some(format!(
                "a call into {} ([keys.pkcs11] module) has not returned for {} s. It is waited for; if it lasts although the HSM is \
                 well, restart the issuer, because a call into a module cannot be ended",
                self.0.options.module.display(),
                since.elapsed().as_secs()
            ));
        }
        match &state.standing {
            Standing::Connecting { since } if since.elapsed() <= timeout => None,
            Standing::Ready(_) => {
                let faults: Vec<_> = state.alive().iter().filter_map(|key| key.condition()).collect();
                (!faults.is_empty()).then(|| faults.join("; "))
            }
            standing => Some(standing.sentence(&self.0.options)),
        }
    }

    /// Whether the key signs, as far as is known; nothing if it is none of this HSM's.
    #[must_use]
    pub fn is_able(&self, token_key: TokenKeyId) -> Option<bool> {
        let state = self.0.state.lock();
        let key = state.alive().into_iter().find(|key| key.name.token_key == token_key)?;
        let timeout = self.0.options.timeout;
        let answers = match &state.standing {
            Standing::Connecting { since } => since.elapsed() <= timeout,
            Standing::Ready(_) => state.watching.is_none_or(|since| since.elapsed() <= timeout),
            Standing::Away(_) | Standing::Refused { .. } => false,
        };
        Some(answers && key.is_able())
    }

    /// Whether calls are made.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.0.state.lock().standing, Standing::Ready(_))
    }

    /// Tries again after a PIN that was refused, if another is there now. Returns whether the one there is still that.
    #[must_use]
    pub fn retry(&self) -> bool {
        let mut state = self.0.state.lock();
        let Standing::Refused { pin, .. } = &state.standing else { return false };
        if (self.0.options.pin)().is_ok_and(|present| present == *pin) {
            return true;
        }
        state.standing = Standing::Connecting { since: Instant::now() };
        self.0.watch.notify_one();
        false
    }
}
