//! The thread that connects, and that notices when the HSM is away while no key signs.

use crate::key::KeyHealth;
use crate::link::{Opener, Session};
use crate::sessions::{Away, Shared, Standing};
use crate::{MODULUS_LEN, Trouble};
use std::time::{Duration, Instant};

/// How often the HSM is looked at while it answers.
const LOOK: Duration = Duration::from_secs(5);
/// The pauses between new connections while a key is missing: some modules show it in no other way once it is back.
const RENEWALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// What is signed to see whether calls return.
const TRIAL: [u8; MODULUS_LEN] = [1; MODULUS_LEN];

enum Step {
    Connect,
    /// Calls do not return: whether others do.
    Try(Opener),
    Look,
    End,
}

pub(crate) fn watch(shared: &Shared) {
    let mut login: Option<Session> = None;
    let mut looked = Instant::now();
    let (mut renewed, mut renewal) = (Instant::now(), RENEWALS.0);
    loop {
        match next(shared, looked + LOOK) {
            Step::End => {
                if shared.state.lock().in_flight == 0 {
                    shared.module.disconnect();
                }
                shared.state.lock().has_ended = true;
                shared.settled.notify_all();
                return;
            }
            Step::Connect => {
                login = connect(shared);
                looked = Instant::now();
                renewed = looked;
            }
            Step::Try(opener) => try_others(shared, &opener),
            Step::Look => {
                let is_whole = login.as_mut().is_some_and(|session| look(shared, session));
                looked = Instant::now();
                if is_whole {
                    renewal = RENEWALS.0;
                } else if renewed.elapsed() >= renewal {
                    renewal = (renewal * 2).min(RENEWALS.1);
                    let mut state = shared.state.lock();
                    if state.in_flight == 0 && matches!(state.standing, Standing::Ready(_)) {
                        state.standing = Standing::Connecting { since: Instant::now() };
                    }
                }
            }
        }
        shared.state.lock().watching = None;
    }
}

/// Waits for what is to be done.
fn next(shared: &Shared, look_at: Instant) -> Step {
    let mut state = shared.state.lock();
    let step = loop {
        let now = Instant::now();
        if state.is_closed {
            break Step::End;
        }
        let until = match &state.standing {
            // A new connection ends all sessions, so it waits for the calls that are under way.
            Standing::Connecting { .. } if state.in_flight == 0 => break Step::Connect,
            Standing::Connecting { since } if since.elapsed() > shared.options.timeout => {
                let reason = "calls into the module have not returned".to_owned();
                state.standing = Standing::Away(Away::new(reason));
                shared.settled.notify_all();
                continue;
            }
            Standing::Connecting { since } => *since + shared.options.timeout,
            Standing::Away(away) if away.next > now => away.next,
            Standing::Away(_) if state.in_flight == 0 => break Step::Connect,
            Standing::Away(Away { opener: Some(opener), .. }) => break Step::Try(opener.clone()),
            Standing::Away(away) => away.next + LOOK,
            Standing::Ready(_) if look_at <= now => break Step::Look,
            Standing::Ready(_) => look_at,
            Standing::Refused { .. } => now + LOOK,
        };
        shared.watch.wait_until(&mut state, until.max(now + Duration::from_millis(10)));
    };
    state.watching = Some(Instant::now());
    step
}

/// A new connection; the session that holds the login.
fn connect(shared: &Shared) -> Option<Session> {
    shared.module.disconnect();
    let read = (shared.options.pin)();
    let pin = read.as_ref().map(|pin| pin.as_slice()).unwrap_or_default();
    let connected = match &read {
        Ok(_) => shared.module.connect(&shared.options.token, pin),
        Err(reason) => {
            Err(Trouble::Away(format!("the PIN file {} {reason}", shared.options.pin_file.display())))
        }
    };
    let connected = connected.and_then(|(opener, mut session)| {
        for key in shared.state.lock().alive() {
            learn(&key, &mut session)?;
        }
        Ok((opener, session))
    });
    let mut state = shared.state.lock();
    let login = match connected {
        Ok((opener, session)) => {
            state.generation += 1;
            state.standing = Standing::Ready(opener);
            Some(session)
        }
        Err(Trouble::Pin(reason)) => {
            state.standing = Standing::Refused { reason, pin: read.unwrap_or_default() };
            None
        }
        Err(trouble) => {
            fail(&mut state.standing, &trouble);
            None
        }
    };
    state.watching = None;
    shared.settled.notify_all();
    login
}

fn fail(standing: &mut Standing, trouble: &Trouble) {
    let away = match std::mem::replace(standing, Standing::Connecting { since: Instant::now() }) {
        Standing::Away(away) => away,
        Standing::Connecting { since } => Away { since, ..Away::new(String::new()) },
        Standing::Ready(_) | Standing::Refused { .. } => Away::new(String::new()),
    };
    *standing = Standing::Away(away.again(trouble.to_string()));
}

/// Whether a signature in another session returns while some do not. It may not return itself; `condition` says so then.
fn try_others(shared: &Shared, opener: &Opener) {
    let keys = shared.state.lock().alive();
    let tried = opener.open().and_then(|mut session| match keys.first() {
        Some(key) => session.sign(&key.name, &TRIAL).map(drop),
        None => session.is_alive(),
    });
    let mut state = shared.state.lock();
    match tried {
        Ok(()) => state.standing = Standing::Ready(opener.clone()),
        Err(trouble) => fail(&mut state.standing, &trouble),
    }
    shared.settled.notify_all();
}

/// Looks at the HSM and its keys; whether all are there.
fn look(shared: &Shared, session: &mut Session) -> bool {
    let (keys, generation) = {
        let state = shared.state.lock();
        (state.alive(), state.generation)
    };
    session.forget();
    let looked = session.is_alive().and_then(|()| {
        let mut is_whole = true;
        for key in &keys {
            learn(key, session)?;
            is_whole &= !key.has_fault();
        }
        Ok(is_whole)
    });
    match looked {
        Ok(is_whole) => is_whole,
        Err(Trouble::Away(reason)) => {
            shared.lose(generation, reason, false);
            true
        }
        Err(_) => true,
    }
}

fn learn(key: &KeyHealth, session: &mut Session) -> Result<(), Trouble> {
    match session.find(&key.name) {
        Err(trouble @ (Trouble::Away(_) | Trouble::Full(_))) => Err(trouble),
        looked => {
            key.learn(looked.as_ref().copied());
            Ok(())
        }
    }
}
