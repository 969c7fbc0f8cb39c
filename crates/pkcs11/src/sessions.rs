//! The threads with a session each, and what they share with the watch and with who asks.

use crate::Trouble;
use crate::key::KeyHealth;
use crate::link::{Module, Opener, Session};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The most threads with a session. A signing thread waits for one of them, so more would not help.
const MOST_SESSIONS: usize = 64;
/// The pause after the first failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

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

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) module: Module,
    pub(crate) state: Mutex<State>,
    /// A job waits.
    pub(crate) work: Condvar,
    /// The watch has something to do.
    pub(crate) watch: Condvar,
    /// The HSM can be used, or is known not to be.
    pub(crate) settled: Condvar,
}

pub(crate) struct State {
    pub(crate) standing: Standing,
    /// Sessions of an earlier one are void.
    pub(crate) generation: u64,
    pub(crate) queue: VecDeque<Job>,
    pub(crate) idle: usize,
    pub(crate) threads: usize,
    pub(crate) most_threads: usize,
    /// Calls into the module by the threads.
    pub(crate) in_flight: usize,
    /// Since when the watch is in the module.
    pub(crate) watching: Option<Instant>,
    pub(crate) keys: Vec<Weak<KeyHealth>>,
    pub(crate) has_begun: bool,
    pub(crate) is_closed: bool,
    pub(crate) has_ended: bool,
}

/// Says that the session is of no use any more, and why.
pub(crate) type Lose<'a> = &'a dyn Fn(String);
/// What is done with a session, or without one.
pub(crate) type Run = dyn FnOnce(Result<&mut Session, Trouble>, Lose<'_>) + Send;

pub(crate) struct Job {
    pub(crate) run: Box<Run>,
    pub(crate) deadline: Instant,
}

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

impl Shared {
    pub(crate) fn new(options: Options, module: Module) -> Self {
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
        Self {
            options,
            module,
            state: Mutex::new(state),
            work: Condvar::new(),
            watch: Condvar::new(),
            settled: Condvar::new(),
        }
    }

    /// The work of one thread.
    pub(crate) fn work(&self) {
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
    pub(crate) fn alive(&self) -> Vec<Arc<KeyHealth>> {
        self.keys.iter().filter_map(Weak::upgrade).collect()
    }
}
