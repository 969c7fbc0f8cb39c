//! Threads with one session each, and the state that they share with the watch and with callers.

use super::link::{Module, Opener, Session};
use super::{KeyHealth, Trouble};
use parking_lot::{Condvar, Mutex};
use postern_daemon::backoff::Backoff;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Maximum number of threads with a session. Requests wait for one of them.
pub(crate) const MOST_SESSIONS: usize = 64;
/// Pauses between attempts to reach the HSM.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// Function that reads the PIN, or returns the reason why it cannot be read.
pub type PinSource = Box<dyn Fn() -> Result<Zeroizing<Vec<u8>>, String> + Send + Sync>;

/// Connection parameters of an HSM.
pub struct Options {
    pub module: PathBuf,
    pub token: String,
    /// Path of the PIN file, for messages.
    pub pin_file: PathBuf,
    /// Source of the PIN, read when needed.
    pub pin: PinSource,
    pub timeout: Duration,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) module: Module,
    pub(crate) state: Mutex<State>,
    /// Notified when a job is queued.
    pub(crate) work: Condvar,
    /// Notified when the watch has work.
    pub(crate) watch: Condvar,
    /// Notified when the HSM is usable, or known to be unusable.
    pub(crate) settled: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) standing: Standing,
    /// Number that each connection and each lost session raise; sessions of earlier generations are void.
    pub(crate) generation: u64,
    pub(crate) queue: VecDeque<Job>,
    pub(crate) idle: usize,
    pub(crate) threads: usize,
    /// Number of sessions that the HSM accepts, as far as is known since the connection.
    pub(crate) most_threads: usize,
    /// Reason why no thread has a session although the HSM answers.
    pub(crate) full: Option<String>,
    /// Number of the threads' calls into the module.
    pub(crate) in_flight: usize,
    /// Start of the watch's current step, which may call the module.
    pub(crate) watching: Option<Instant>,
    pub(crate) keys: Vec<Weak<KeyHealth>>,
    pub(crate) has_begun: bool,
    pub(crate) is_closed: bool,
    pub(crate) has_ended: bool,
}

/// Callback that reports the session as unusable, with the reason.
pub(crate) type Lose<'a> = &'a dyn Fn(String);
/// Work of a job, which runs with a session, or with the reason for its absence.
pub(crate) type Run = dyn FnOnce(Result<&mut Session, Trouble>, Lose<'_>) + Send;

pub(crate) struct Job {
    pub(crate) run: Box<Run>,
    pub(crate) deadline: Instant,
}

pub(crate) enum Standing {
    /// The watch is connecting, and callers wait for it. `opener` is as in [`Away`].
    Connecting {
        since: Instant,
        opener: Option<Opener>,
    },
    Ready(Opener),
    /// Callers are refused immediately, and the watch retries.
    Away(Away),
    /// The PIN was rejected: no retry until it has changed.
    Refused {
        reason: String,
        pin: Zeroizing<Vec<u8>>,
    },
}

pub(crate) struct Away {
    pub(crate) reason: String,
    pub(crate) since: Instant,
    pub(crate) next: Instant,
    pub(crate) failures: u32,
    /// Opener of the connection if some of its calls may never return: calls in other sessions may. `None` once disconnected.
    pub(crate) opener: Option<Opener>,
}

impl Away {
    /// Creates a state whose next attempt is due immediately.
    pub(crate) fn new(reason: String) -> Self {
        let now = Instant::now();
        Self { reason, since: now, next: now, failures: 0, opener: None }
    }

    /// Records another failed attempt.
    pub(crate) fn again(self, reason: String) -> Self {
        let next = Instant::now() + PAUSES.pause(self.failures);
        Self { reason, next, failures: self.failures + 1, ..self }
    }
}

impl Default for Standing {
    fn default() -> Self {
        Self::Connecting { since: Instant::now(), opener: None }
    }
}

impl Standing {
    pub(crate) fn sentence(&self, options: &Options) -> String {
        match self {
            Self::Connecting { since, .. } => {
                format!("connecting to the HSM for {} s", since.elapsed().as_secs())
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
                    "the HSM has been unusable for {} s: {reason} ([keys.pkcs11] token = {:?}). It is tried again at least every {} s{restart}",
                    since.elapsed().as_secs(),
                    options.token,
                    PAUSES.longest.as_secs()
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
        Self {
            options,
            module,
            state: Mutex::new(State { most_threads: MOST_SESSIONS, ..State::default() }),
            work: Condvar::new(),
            watch: Condvar::new(),
            settled: Condvar::new(),
        }
    }

    /// Runs jobs on the current thread, with its own session, until the HSM is closed or accepts no more sessions.
    pub(crate) fn work(&self) {
        let mut own: Option<(u64, Session)> = None;
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return; // even if a job was put back since: the watch may be disconnecting
            }
            let Some(job) = state.queue.pop_front() else {
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
            if let Some((_, lost)) = own.take_if(|(of, _)| *of != generation)
                && lost.is_of(&opener)
            {
                lost.close(); // no new connection has ended it: another call hangs
            }
            let run = AssertUnwindSafe(|| self.run(job, &opener, generation, &mut own));
            let left_to_others = catch_unwind(run).unwrap_or_else(|_| {
                tracing::error!(
                    "a thread for the HSM panicked: its request fails, others go on. Please report this line"
                );
                own = None; // the session may be in the middle of a call; the caller sees that its job is gone
                None
            });
            state = self.state.lock();
            state.in_flight -= 1;
            if state.in_flight == 0 {
                self.watch.notify_one();
            }
            if let Some(job) = left_to_others {
                state.queue.push_front(job);
                drop(state);
                self.work.notify_one();
                return;
            }
        }
    }

    /// Runs a job with this thread's session, which is opened if it is missing. Returns the job if the HSM accepts no more
    /// sessions and other threads remain: this thread has then left the pool.
    fn run(
        &self,
        job: Job,
        opener: &Opener,
        generation: u64,
        own: &mut Option<(u64, Session)>,
    ) -> Option<Job> {
        let lose = |reason| self.lose(generation, reason, false);
        let session = match own {
            Some((_, session)) => Ok(session),
            none => {
                let opened = opener.open();
                let mut state = self.state.lock();
                match &opened {
                    Err(Trouble::Full(_)) if state.leave() => return Some(job),
                    Err(Trouble::Full(reason)) => state.full = Some(reason.clone()),
                    Ok(_) => state.full = None,
                    Err(_) => {}
                }
                drop(state);
                opened.map(|session| &mut none.insert((generation, session)).1)
            }
        };
        (job.run)(session, &lose);
        None
    }

    /// Marks the sessions of this generation as unusable, or a call as overdue. Queued jobs fail.
    pub(crate) fn lose(&self, generation: u64, reason: String, is_overdue: bool) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        let Standing::Ready(opener) = &state.standing else { return };
        let opener = Some(opener.clone());
        state.standing = if is_overdue {
            Standing::Away(Away { opener, ..Away::new(reason) })
        } else {
            state.generation += 1; // no connection replaces the sessions while another call hangs
            Standing::Connecting { since: Instant::now(), opener }
        };
        state.queue.clear();
        self.watch.notify_one();
    }
}

impl State {
    /// Takes the current thread out of the pool, unless it is the last one.
    fn leave(&mut self) -> bool {
        let may = self.threads > 1;
        self.threads -= usize::from(may);
        self.most_threads = self.threads;
        may
    }

    /// Forgets that the HSM accepted no more sessions.
    pub(crate) fn has_room(&mut self) {
        (self.most_threads, self.full) = (MOST_SESSIONS, None);
    }

    pub(crate) fn alive(&self) -> Vec<Arc<KeyHealth>> {
        self.keys.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thread_stays_however_many_find_no_session() {
        let mut state = State { threads: 3, ..State::default() };
        let left: Vec<_> = (0..3).map(|_| state.leave()).collect();
        assert_eq!((left, state.threads, state.most_threads), (vec![true, true, false], 1, 1));
    }
}
