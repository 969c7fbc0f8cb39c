//! Keys that the authorizer has allowed, which survive a restart: questions about them do not wait among those of strangers.
//!
//! Of a key there is what the database has of an issuer's own, and the day. Where there are too many, or a key was not used for
//! [`KEPT_DAYS`], it counts as one that is new: it is asked about in its turn, and no request is refused for it.

use parking_lot::Mutex;
use postern_token::UnixSeconds;
use rusqlite::{Connection, params};
use std::collections::HashMap;

/// Keys that are remembered, in some 4 MB.
const MOST: usize = 65_536;
const KEPT_DAYS: u32 = 60;

/// An API key as the database has it.
type Stored = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Allowed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By key, the day on which it was allowed last.
    days: HashMap<Stored, u32>,
    /// What is not in the database: another day, or none.
    unwritten: HashMap<Stored, Option<u32>>,
}

/// Reads what the database has, and removes of it what is too old or too much.
pub(super) fn read(connection: &Connection, now: UnixSeconds) -> rusqlite::Result<Allowed> {
    let since = day(now).saturating_sub(KEPT_DAYS);
    connection.execute("DELETE FROM keys_allowed_elsewhere WHERE day < ?1", params![since])?;
    connection.execute(
        "DELETE FROM keys_allowed_elsewhere WHERE key_hmac_sha256 IN
             (SELECT key_hmac_sha256 FROM keys_allowed_elsewhere ORDER BY day DESC LIMIT -1 OFFSET ?1)",
        params![MOST as u32],
    )?;
    let mut statement = connection.prepare("SELECT key_hmac_sha256, day FROM keys_allowed_elsewhere")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let days = rows.collect::<rusqlite::Result<_>>()?;
    Ok(Allowed(Mutex::new(State { days, unwritten: HashMap::new() })))
}

impl Allowed {
    pub(super) fn has(&self, key: &Stored) -> bool {
        self.0.lock().days.contains_key(key)
    }

    /// Adds a key, or its new day. Where there is no room, all keys of the oldest day leave; if that is today, none is added.
    pub(super) fn add(&self, key: Stored, now: UnixSeconds) {
        let (State { days, unwritten }, today) = (&mut *self.0.lock(), day(now));
        match days.get(&key) {
            Some(known) if *known >= today => return,
            None if days.len() >= MOST => {
                let oldest = days.values().copied().min().filter(|oldest| *oldest < today);
                let Some(oldest) = oldest else { return };
                unwritten.extend(days.extract_if(|_, day| *day == oldest).map(|(key, _)| (key, None)));
            }
            _ => {}
        }
        days.insert(key, today);
        unwritten.insert(key, Some(today));
    }

    /// The authorizer denies a key.
    pub(super) fn remove(&self, key: &Stored) {
        let State { days, unwritten } = &mut *self.0.lock();
        if days.remove(key).is_some() {
            unwritten.insert(*key, None);
        }
    }

    /// Whether anything is to be written.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.0.lock().unwritten.is_empty()
    }

    /// Takes what is to be written. If that fails, it is written when the key is allowed on another day.
    pub(super) fn take_unwritten(&self) -> Vec<(Stored, Option<u32>)> {
        std::mem::take(&mut self.0.lock().unwritten).into_iter().collect()
    }
}

pub(super) fn write(connection: &Connection, changes: &[(Stored, Option<u32>)]) -> rusqlite::Result<()> {
    let mut keep =
        connection.prepare_cached("INSERT OR REPLACE INTO keys_allowed_elsewhere VALUES (?1, ?2)")?;
    let mut drop =
        connection.prepare_cached("DELETE FROM keys_allowed_elsewhere WHERE key_hmac_sha256 = ?1")?;
    for (key, day) in changes {
        match day {
            Some(day) => keep.execute(params![key, day])?,
            None => drop.execute(params![key])?,
        };
    }
    Ok(())
}

fn day(now: UnixSeconds) -> u32 {
    u32::try_from(now.0 / 86_400).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Stored {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    }

    fn on(day: u64) -> UnixSeconds {
        UnixSeconds(day * 86_400 + 7)
    }

    #[test]
    fn what_was_written_is_read_again_until_it_is_too_old() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("schema.sql")).unwrap();
        let allowed = read(&connection, on(100)).unwrap();
        (0..3).for_each(|number| allowed.add(key(number), on(100)));
        allowed.add(key(0), on(150));
        allowed.remove(&key(1));
        write(&connection, &allowed.take_unwritten()).unwrap();
        assert!(!allowed.has_unwritten());
        for (day, known) in [(150, [true, false, true]), (161, [true, false, false]), (211, [false; 3])] {
            let again = read(&connection, on(day)).unwrap();
            assert_eq!([0, 1, 2].map(|number| again.has(&key(number))), known, "{day}");
        }
    }

    #[test]
    fn the_oldest_day_leaves_where_there_are_too_many() {
        let allowed = Allowed::default();
        (0..10).for_each(|number| allowed.add(key(number), on(1)));
        (10..MOST + 100).for_each(|number| allowed.add(key(number), on(2)));
        let State { days, unwritten } = &mut *allowed.0.lock();
        assert_eq!((days.len(), days.contains_key(&key(0))), (MOST, false));
        assert_eq!((unwritten.len(), unwritten[&key(0)]), (MOST + 10, None));
    }
}
