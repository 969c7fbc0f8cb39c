//! The thread that connects, and that detects an unreachable HSM while no key signs.

use super::link::{Opener, Session};
use super::sessions::{Away, MOST_SESSIONS, Shared, Standing};
use super::{KeyHealth, MODULUS_LEN, Trouble};
use postern_daemon::backoff::Backoff;
use postern_token::is_private_result;
use std::time::{Duration, Instant};

/// Interval of checks while the HSM answers.
const LOOK: Duration = Duration::from_secs(5);
/// Pauses between new connections while a key is missing: some modules show a restored key in no other way.
const RENEWALS: Backoff = Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(60) };
/// Message that is signed to test if calls return, and if a key signs again.
const TRIAL: [u8; MODULUS_LEN] = [1; MODULUS_LEN];

enum Step {
    Connect,
    /// Tests if other calls return while some do not.
    Try(Opener),
    Look,
    End,
}

pub(crate) fn watch(shared: &Shared) {
    let mut login: Option<Session> = None;
    let mut looked = Instant::now();
    let (mut renewed, mut renewals) = (Instant::now(), 0);
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
            Step::Try(opener) => try_others(shared, &opener, &mut login),
            Step::Look => {
                let is_whole = login.as_mut().is_some_and(|session| look(shared, session));
                looked = Instant::now();
                if is_whole {
                    renewals = 0;
                } else if renewed.elapsed() >= RENEWALS.pause(renewals) {
                    renewals += 1;
                    let mut state = shared.state.lock();
                    if state.in_flight == 0 && matches!(state.standing, Standing::Ready(_)) {
                        state.standing = Standing::default();
                    }
                }
            }
        }
        shared.state.lock().watching = None;
    }
}

fn next(shared: &Shared, look_at: Instant) -> Step {
    let mut state = shared.state.lock();
    let step = loop {
        let now = Instant::now();
        if state.is_closed {
            break Step::End;
        }
        let until = match &state.standing {
            // A new connection ends all sessions, so it waits for the outstanding calls.
            Standing::Connecting { .. } if state.in_flight == 0 => break Step::Connect,
            Standing::Connecting { since, opener } if since.elapsed() > shared.options.timeout => {
                let (reason, opener) = ("calls into the module have not returned".to_owned(), opener.clone());
                state.standing = Standing::Away(Away { opener, ..Away::new(reason) });
                shared.settled.notify_all();
                continue;
            }
            Standing::Connecting { since, .. } => *since + shared.options.timeout,
            Standing::Away(away) if away.next > now => away.next,
            Standing::Away(_) if state.in_flight == 0 => break Step::Connect,
            Standing::Away(Away { opener: Some(opener), .. }) => break Step::Try(opener.clone()),
            Standing::Ready(_) if look_at <= now => break Step::Look,
            Standing::Ready(_) => look_at,
            Standing::Away(_) | Standing::Refused { .. } => now + LOOK,
        };
        shared.watch.wait_until(&mut state, until);
    };
    state.watching = Some(Instant::now());
    step
}

/// Opens a new connection and returns the session that holds the login.
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
        let keys = shared.state.lock().alive(); // not in the loop, whose calls may never return
        keys.iter().try_for_each(|key| learn(key, &mut session))?;
        Ok((opener, session))
    });
    let mut state = shared.state.lock();
    let login = match connected {
        Ok((opener, session)) => {
            state.generation += 1;
            state.has_room();
            state.standing = Standing::Ready(opener);
            Some(session)
        }
        Err(Trouble::Pin(reason)) => {
            state.standing = Standing::Refused { reason, pin: read.unwrap_or_default() };
            None
        }
        Err(trouble) => {
            fail(&mut state.standing, &trouble, None);
            None
        }
    };
    state.watching = None;
    shared.settled.notify_all();
    login
}

fn fail(standing: &mut Standing, trouble: &Trouble, opener: Option<Opener>) {
    let away = match std::mem::take(standing) {
        Standing::Away(away) => away,
        Standing::Connecting { since, .. } => Away { since, ..Away::new(String::new()) },
        Standing::Ready(_) | Standing::Refused { .. } => Away::new(String::new()),
    };
    *standing = Standing::Away(Away { opener, ..away.again(trouble.to_string()) });
}

/// Tests if a signature in another session returns while some calls do not. This call may not return either; `condition` then
/// reports it. If the login's session is lost, the one that signs takes its place.
fn try_others(shared: &Shared, opener: &Opener, login: &mut Option<Session>) {
    let keys = shared.state.lock().alive();
    // Before another session is opened, which may get its handle.
    *login = login.take().filter(|session| session.check_alive().is_ok());
    let tried = opener.open().and_then(|mut session| {
        let tried = match keys.first() {
            Some(key) => session.sign(&key.name, &TRIAL).map(drop),
            None => session.check_alive(),
        };
        if tried.is_ok() && login.is_none() {
            *login = Some(session);
        } else {
            session.close(); // before the next trial opens one: nothing disconnects while calls hang
        }
        tried
    });
    let mut state = shared.state.lock();
    match tried {
        Ok(()) => state.standing = Standing::Ready(opener.clone()),
        Err(trouble) => fail(&mut state.standing, &trouble, Some(opener.clone())),
    }
    shared.settled.notify_all();
}

/// Checks the HSM, its room for sessions and its keys. Returns `false` if a key has a fault, which a new connection may resolve.
fn look(shared: &Shared, session: &mut Session) -> bool {
    let (keys, generation, lacking) = {
        let state = shared.state.lock();
        let lacking = match &state.standing {
            Standing::Ready(opener) if state.most_threads < MOST_SESSIONS => Some(opener.clone()),
            _ => None,
        };
        (state.alive(), state.generation, lacking)
    };
    session.forget();
    let looked = session.check_alive().and_then(|()| {
        if let Some(Ok(another)) = lacking.map(|opener| opener.open()) {
            another.close();
            shared.state.lock().has_room();
        }
        let mut is_whole = true;
        for key in &keys {
            learn(key, session)?;
            if key.needs_trial() {
                try_key(key, session)?;
            }
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
            key.looked_up(looked.as_ref().copied());
            Ok(())
        }
    }
}

/// Signs with a key whose last signature failed or was wrong. Balancers may send no request to an issuer that is not ready.
fn try_key(key: &KeyHealth, session: &mut Session) -> Result<(), Trouble> {
    match session.sign(&key.name, &TRIAL) {
        Ok(result) if is_private_result(&key.name.modulus, &TRIAL, &result) => key.judged(true),
        Ok(_) => {} // a wrong result that answers no request is not counted
        Err(trouble @ (Trouble::Away(_) | Trouble::Full(_))) => return Err(trouble),
        Err(trouble) => key.failed(&trouble),
    }
    Ok(())
}
