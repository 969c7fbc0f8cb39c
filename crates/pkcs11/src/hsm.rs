//! The HSM as the issuer asks it: by jobs, which threads with a session each carry out.

use crate::condition::{Away, Standing};
use crate::key::{HsmKey, KeyName};
use crate::link::{Found, LoadError, Module, Opener, Session};
use crate::{MODULUS_LEN, Trouble, watch};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The most threads with a session. A signing thread waits for one of them, so more would not help.
const MOST_SESSIONS: usize = 64;
/// How long an HSM may take to make a key, or to destroy one.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often who waits looks whether the issuer stops.
const SLICE: Duration = Duration::from_millis(100);
/// How long the end waits for calls into the module to return.
const END: Duration = Duration::from_secs(1);

/// Reads the PIN, or says why it cannot be read.
pub type PinSource = Box<dyn Fn() -> Result<Zeroizing<Vec<u8>>, String> + Send + Sync>;

/// Which HSM.
pub struct Options {
    /// The module's path.
    pub module: PathBuf,
    /// The label of the token, or its serial number.
    pub token: String,
    /// Where the PIN comes from, for sentences.
    pub pin_file: PathBuf,
    /// Reads it, when it is needed.
    pub pin: PinSource,
    /// How long a signature is waited for.
    pub timeout: Duration,
}

/// Why the HSM did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HsmError {
    /// The session was lost; a new one is being opened.
    #[error("the session with the HSM was lost: {0}")]
    Lost(String),
    /// It cannot be used now.
    #[error("{0}")]
    Away(String),
    /// It answers, and this key cannot be used, or this cannot be done.
    #[error("the HSM refuses: {0}")]
    Key(KeyTrouble),
}

/// Why an HSM that answers refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyTrouble(pub(crate) Trouble);

/// An HSM. Cheap to clone. It is not used before the first call, or [`Hsm::start`].
#[derive(Clone)]
pub struct Hsm(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) module: Module,
    pub(crate) state: Mutex<State>,
    /// A job waits.
    work: Condvar,
    /// The watch has something to do.
    pub(crate) watch: Condvar,
    /// The HSM can be used, or is known not to be.
    pub(crate) settled: Condvar,
}

pub(crate) struct State {
    pub(crate) standing: Standing,
    /// Sessions of an earlier one are void.
    pub(crate) generation: u64,
    queue: VecDeque<Job>,
    idle: usize,
    threads: usize,
    most_threads: usize,
    /// Calls into the module by the threads.
    pub(crate) in_flight: usize,
    /// Since when the watch is in the module.
    pub(crate) watching: Option<Instant>,
    pub(crate) keys: Vec<Weak<HsmKey>>,
    has_begun: bool,
    pub(crate) is_closed: bool,
    pub(crate) has_ended: bool,
}

/// Says that the session is of no use any more, and why.
type Lose<'a> = &'a dyn Fn(String);
/// What is done with a session, or without one.
type Run = dyn FnOnce(Result<&mut Session, Trouble>, Lose<'_>) + Send;

struct Job {
    run: Box<Run>,
    deadline: Instant,
}

impl Hsm {
    /// Loads the module.
    ///
    /// # Errors
    /// [`LoadError`]: it is none, or this build loads none.
    pub fn load(options: Options) -> Result<Self, LoadError> {
        let module = Module::load(&options.module)?;
        let state = State {
            standing: Standing::Connecting { since: Instant::now() },
            generation: 0,
            queue: VecDeque::new(),
            idle: 0,
            threads: 0,
            most_threads: MOST_SESSIONS,
            in_flight: 0,
            watching: None,
            keys: Vec::new(),
            has_begun: false,
            is_closed: false,
            has_ended: false,
        };
        Ok(Self(Arc::new(Shared {
            options,
            module,
            state: Mutex::new(state),
            work: Condvar::new(),
            watch: Condvar::new(),
            settled: Condvar::new(),
        })))
    }

    /// Connects, in a thread of its own, and keeps it so.
    pub fn start(&self) {
        let mut state = self.0.state.lock();
        if std::mem::replace(&mut state.has_begun, true) || state.is_closed {
            return;
        }
        state.standing = Standing::Connecting { since: Instant::now() };
        let shared = self.0.clone();
        let watching = std::thread::Builder::new().name("hsm-watch".to_owned());
        if let Err(error) = watching.spawn(move || watch::watch(&shared)) {
            let reason = format!("no thread can be started for it: {error}");
            state.standing = Standing::Away(Away::new(reason));
            state.has_begun = false;
        }
    }

    /// Ends the sessions. Waits a second at most for calls that do not return.
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

    /// The label or serial number of the token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.0.options.token
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.0.options.timeout
    }

    /// The private key of this name, whether or not it is there.
    #[must_use]
    pub fn key(&self, name: KeyName) -> Arc<HsmKey> {
        let key = Arc::new(HsmKey::new(self.clone(), name));
        let mut state = self.0.state.lock();
        state.keys.retain(|known| known.strong_count() > 0);
        state.keys.push(Arc::downgrade(&key));
        key
    }

    /// Whether the key is there, and the right one.
    ///
    /// # Errors
    /// [`HsmError`].
    pub fn find(&self, name: &KeyName) -> Result<(), HsmError> {
        let name = name.clone();
        self.call(self.timeout(), move |session| session.find(&name))
    }

    /// Makes a key pair of 2048 bits, with exponent 65537, whose private half cannot be extracted; its modulus. Seconds.
    ///
    /// # Errors
    /// [`HsmError`].
    pub fn generate(&self, id: &[u8]) -> Result<[u8; MODULUS_LEN], HsmError> {
        let id = id.to_vec();
        self.call(PATIENCE, move |session| session.generate(&id))
    }

    /// Destroys the key with this id that has our [label](crate::LABEL); how many objects it was, which may be none.
    ///
    /// # Errors
    /// [`HsmError`].
    pub fn destroy(&self, id: &[u8]) -> Result<usize, HsmError> {
        let id = id.to_vec();
        self.call(PATIENCE, move |session| session.destroy(&id))
    }

    /// The private keys with our [label](crate::LABEL).
    ///
    /// # Errors
    /// [`HsmError`].
    pub fn list(&self) -> Result<Vec<Found>, HsmError> {
        self.call(PATIENCE, Session::list)
    }

    /// What a start would find wrong, without trying the PIN; a sentence for each thing. For a process that asks the HSM nothing else.
    #[must_use]
    pub fn survey(&self, keys: Vec<KeyName>) -> Vec<String> {
        let (answer, answered) = sync_channel(1);
        let shared = self.0.clone();
        std::thread::spawn(move || answer.send(shared.module.survey(&shared.options.token, &keys)));
        answered.recv_timeout(self.timeout()).unwrap_or_else(|_| {
            vec![format!("the module has not answered for {} s", self.timeout().as_secs())]
        })
    }

    /// Has a thread with a session do it, and waits so long for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&mut Session) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, HsmError> {
        self.start();
        let (answer, answered) = sync_channel(1);
        let run = Box::new(move |session: Result<&mut Session, Trouble>, lose: Lose<'_>| {
            let result = session.and_then(ask);
            if let Err(Trouble::Away(reason)) = &result {
                lose(reason.clone()); // before the answer, so that who tries again waits for the new session
            }
            let _ = answer.send(result); // who asked may have given up
        });
        let generation = self.submit(run, patience)?;
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left.min(SLICE)) {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Trouble::Away(reason))) => return Err(HsmError::Lost(reason)),
                Ok(Err(trouble)) => return Err(HsmError::Key(KeyTrouble(trouble))),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(HsmError::Lost("others' calls failed".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if self.0.state.lock().is_closed => {
                    return Err(HsmError::Away("the issuer stops".to_owned()));
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

    /// Puts a job in the queue, once the HSM can be used.
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
            if thread.spawn(move || shared.work()).is_ok() {
                state.threads += 1;
            }
        }
        let generation = state.generation;
        drop(state);
        self.0.work.notify_one();
        Ok(generation)
    }
}

impl Shared {
    /// The work of one thread.
    fn work(&self) {
        let mut own: Option<(u64, Session)> = None;
        let mut state = self.state.lock();
        loop {
            let Some(job) = state.queue.pop_front() else {
                if state.is_closed {
                    return;
                }
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            let Standing::Ready(opener) = &state.standing else { continue };
            if job.deadline <= Instant::now() {
                continue; // its caller has stopped waiting
            }
            let (opener, generation): (Opener, u64) = (opener.clone(), state.generation);
            state.in_flight += 1;
            drop(state);
            if own.as_ref().is_none_or(|(of, _)| *of != generation) {
                own = None;
            }
            let opened = match &mut own {
                Some(_) => Ok(()),
                none => opener.open().map(|session| *none = Some((generation, session))),
            };
            let mut left_to_others = None;
            match (opened, &mut own) {
                (Err(Trouble::Full(_)), _) if self.state.lock().threads > 1 => left_to_others = Some(job),
                (Err(trouble), _) => (job.run)(Err(trouble), &|reason| self.lose(generation, reason, false)),
                (Ok(()), Some((_, session))) => {
                    (job.run)(Ok(session), &|reason| self.lose(generation, reason, false));
                }
                (Ok(()), None) => {}
            }
            state = self.state.lock();
            state.in_flight -= 1;
            if state.in_flight == 0 {
                self.watch.notify_one();
            }
            if let Some(job) = left_to_others {
                state.queue.push_front(job);
                state.threads -= 1;
                state.most_threads = state.threads.max(1);
                drop(state);
                self.work.notify_one();
                return;
            }
        }
    }

    /// The sessions of this generation are of no use, or a call does not return. Waiting jobs fail.
    pub(crate) fn lose(&self, generation: u64, reason: String, is_overdue: bool) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        let Standing::Ready(opener) = &state.standing else { return };
        state.standing = if is_overdue {
            Standing::Away(Away { opener: Some(opener.clone()), ..Away::new(reason) })
        } else {
            Standing::Connecting { since: Instant::now() }
        };
        state.queue.clear();
        self.watch.notify_one();
    }
}

impl State {
    /// The keys that are in use.
    pub(crate) fn alive(&self) -> Vec<Arc<HsmKey>> {
        self.keys.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Hsm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hsm({})", self.0.options.token)
    }
}
