//! The issuer's interface to the HSM: jobs, which threads with one session each run.

use super::link::{LoadError, Module, Session};
use super::sessions::{Away, Job, Lose, Options, Run, Shared, Standing};
use super::{KeyHealth, KeyName, MODULUS_LEN, Trouble, watch};
use postern_token::{PrivateOperation, TokenKeyId, Unavailable};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Timeout of generating, destroying and listing keys.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a waiting caller checks if the issuer stops.
const SLICE: Duration = Duration::from_millis(100);
/// Maximum wait of [`Hsm::close`] for calls into the module.
const END: Duration = Duration::from_secs(1);

/// Failure of a request to the HSM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HsmError {
    #[error("the session with the HSM was lost: {0}")]
    Lost(String),
    #[error("{0}")]
    Away(String),
    #[error("the HSM refuses: {0}")]
    Key(Trouble),
}

/// An HSM. Cheap to clone. Not used before the first call, or [`Hsm::start`].
#[derive(Clone)]
pub struct Hsm(Arc<Shared>);

#[derive(Debug)]
pub struct HsmKey {
    health: Arc<KeyHealth>,
    hsm: Hsm,
}

impl Hsm {
    /// Loads the module.
    pub fn load(options: Options) -> Result<Self, LoadError> {
        let module = Module::load(&options.module)?;
        Ok(Self(Arc::new(Shared::new(options, module))))
    }

    /// Starts the thread that connects and maintains the connection.
    pub fn start(&self) {
        let mut state = self.0.state.lock();
        if std::mem::replace(&mut state.has_begun, true) || state.is_closed {
            return;
        }
        state.standing = Standing::default();
        let shared = self.0.clone();
        let watching = std::thread::Builder::new().name("hsm-watch".to_owned());
        if let Err(error) = watching.spawn(move || watch::watch(&shared)) {
            let reason = format!("no thread can be started for it: {error}");
            state.standing = Standing::Away(Away::new(reason));
            state.has_begun = false;
        }
    }

    /// Ends the sessions. Waits at most a second for calls that do not return.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        state.queue.clear();
        self.0.work.notify_all();
        self.0.watch.notify_all();
        self.0.settled.notify_all();
        let deadline = Instant::now() + END;
        while state.has_begun && !state.has_ended {
            if self.0.settled.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    pub fn token(&self) -> &str {
        &self.0.options.token
    }

    fn timeout(&self) -> Duration {
        self.0.options.timeout
    }

    /// Returns the private key of this name, whether or not it exists.
    pub fn key(&self, name: KeyName) -> Arc<HsmKey> {
        let health = Arc::new(KeyHealth::new(name));
        let mut state = self.0.state.lock();
        state.keys.retain(|known| known.strong_count() > 0);
        state.keys.push(Arc::downgrade(&health));
        drop(state);
        Arc::new(HsmKey { health, hsm: self.clone() })
    }

    /// Checks that the key exists and has the expected public half.
    pub fn find(&self, name: &KeyName) -> Result<(), HsmError> {
        let name = name.clone();
        self.call(self.timeout(), move |session| session.find(&name))
    }

    /// Generates a key pair of 2048 bits with exponent 65537, whose private half cannot be extracted, and returns its modulus.
    /// Takes seconds.
    pub fn generate(&self, id: &[u8]) -> Result<[u8; MODULUS_LEN], HsmError> {
        let id = id.to_vec();
        self.call(PATIENCE, move |session| session.generate(&id))
    }

    /// Destroys the key with this id and the issuer's [label](super::LABEL). Returns the number of destroyed objects, which may
    /// be 0.
    pub fn destroy(&self, id: &[u8]) -> Result<usize, HsmError> {
        let id = id.to_vec();
        self.call(PATIENCE, move |session| session.destroy(&id))
    }

    /// Returns the `CKA_ID` of each private key with the issuer's [label](super::LABEL).
    pub fn list(&self) -> Result<Vec<Vec<u8>>, HsmError> {
        self.call(PATIENCE, Session::list)
    }

    /// Returns a sentence for each problem that a start would find, without trying the PIN. Ends all sessions, so it is for a
    /// process that makes no other request to the HSM.
    pub fn survey(&self, keys: Vec<KeyName>) -> Vec<String> {
        let (answer, answered) = sync_channel(1);
        let shared = self.0.clone();
        std::thread::spawn(move || answer.send(shared.module.survey(&shared.options.token, &keys)));
        answered.recv_timeout(self.timeout()).unwrap_or_else(|_| {
            vec![format!("the module has not answered for {} s", self.timeout().as_secs())]
        })
    }

    /// Describes the problem and its remedy; `None` if all is well.
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
            Standing::Connecting { since, .. } if since.elapsed() <= timeout => None,
            Standing::Ready(_) => {
                let full = state.full.as_ref().map(|reason| {
                    format!(
                        "the HSM accepts no session for signing ({reason}): close those of other programs, or raise its limit"
                    )
                });
                let keys = state.alive();
                let faults: Vec<_> =
                    full.into_iter().chain(keys.iter().filter_map(|key| key.condition())).collect();
                (!faults.is_empty()).then(|| faults.join("; "))
            }
            standing => Some(standing.sentence(&self.0.options)),
        }
    }

    /// Returns `true` if the key signs, as far as is known; `None` if the key is not one of this HSM's.
    pub fn is_able(&self, token_key: TokenKeyId) -> Option<bool> {
        let state = self.0.state.lock();
        let key = state.alive().into_iter().find(|key| key.name.token_key == token_key)?;
        let timeout = self.0.options.timeout;
        let answers = match &state.standing {
            Standing::Connecting { since, .. } => since.elapsed() <= timeout,
            Standing::Ready(_) => {
                state.full.is_none() && state.watching.is_none_or(|since| since.elapsed() <= timeout)
            }
            Standing::Away(_) | Standing::Refused { .. } => false,
        };
        Some(answers && key.is_able())
    }

    /// Returns `true` if the HSM is connected and calls are made.
    pub fn is_ready(&self) -> bool {
        matches!(self.0.state.lock().standing, Standing::Ready(_))
    }

    /// Retries after a rejected PIN, if the PIN has changed. Returns `true` if it is still the rejected one.
    #[must_use]
    pub fn retry(&self) -> bool {
        let mut state = self.0.state.lock();
        let Standing::Refused { pin, .. } = &state.standing else { return false };
        if (self.0.options.pin)().is_ok_and(|present| present == *pin) {
            return true;
        }
        state.standing = Standing::default();
        self.0.watch.notify_one();
        false
    }

    /// Runs `ask` on a thread with a session, and waits for the result for at most `patience`.
    fn call<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&mut Session) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, HsmError> {
        self.start();
        let (answer, answered) = sync_channel(1);
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        let run = Box::new(move |session: Result<&mut Session, Trouble>, lose: Lose<'_>| {
            begins.store(true, Ordering::Relaxed);
            let result = session.and_then(ask);
            if let Err(Trouble::Away(reason)) = &result {
                lose(reason.clone()); // before the answer, so that a caller that retries waits for the new session
            }
            let _ = answer.send(result); // the caller may have given up
        });
        let generation = self.submit(run, patience)?;
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left.min(SLICE)) {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Trouble::Away(reason))) => return Err(HsmError::Lost(reason)),
                Ok(Err(trouble)) => return Err(HsmError::Key(trouble)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(HsmError::Lost("others' calls failed".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if self.0.state.lock().is_closed => {
                    return Err(HsmError::Away("the issuer stops".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() && !begun.load(Ordering::Relaxed) => {
                    return Err(HsmError::Away("all sessions with the HSM are busy".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let reason = format!("a call has not returned for {} s", patience.as_secs());
                    self.0.lose(generation, reason.clone(), true);
                    return Err(HsmError::Away(reason));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Queues a job once the HSM is usable. Returns the generation of the connection.
    fn submit(&self, run: Box<Run>, patience: Duration) -> Result<u64, HsmError> {
        let settles = Instant::now() + self.timeout();
        let mut state = self.0.state.lock();
        while matches!(state.standing, Standing::Connecting { .. }) && !state.is_closed {
            if self.0.settled.wait_until(&mut state, settles).timed_out() {
                break;
            }
        }
        if state.is_closed {
            return Err(HsmError::Away("the issuer stops".to_owned()));
        }
        if !matches!(state.standing, Standing::Ready(_)) {
            return Err(HsmError::Away(state.standing.sentence(&self.0.options)));
        }
        state.queue.push_back(Job { run, deadline: Instant::now() + patience });
        if state.idle < state.queue.len() && state.threads < state.most_threads {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name(format!("hsm-{}", state.threads));
            match thread.spawn(move || shared.work()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.queue.pop_back();
                    return Err(HsmError::Away(format!("no thread can be started for it: {error}")));
                }
                Err(_) => {} // another thread takes the job
            }
        }
        let generation = state.generation;
        drop(state);
        self.0.work.notify_one();
        Ok(generation)
    }
}

impl PrivateOperation for HsmKey {
    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable> {
        if self.health.has_fault() {
            return Err(Unavailable); // the watch checks if the fault is over
        }
        // The session may have been closed because it was idle: the second attempt uses a new one. If that is lost as well, the
        // fault is the key's until a trial signs, or each request would cost all others their sessions.
        for is_last in [false, true] {
            let (name, message) = (self.health.name.clone(), *message);
            match self.hsm.call(self.hsm.timeout(), move |session| session.sign(&name, &message)) {
                Ok(result) => return Ok(result),
                Err(HsmError::Lost(_)) if !is_last => {}
                Err(HsmError::Lost(reason)) => self.health.failed(&Trouble::Failed(reason)),
                Err(HsmError::Key(trouble)) => {
                    self.health.failed(&trouble);
                    return Err(Unavailable);
                }
                Err(HsmError::Away(_)) => return Err(Unavailable),
            }
        }
        Err(Unavailable)
    }

    fn judged(&self, is_right: bool) {
        self.health.judged(is_right);
    }
}

impl fmt::Debug for Hsm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hsm({})", self.0.options.token)
    }
}
