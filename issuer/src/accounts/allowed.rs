//! Keys that the authorizer has allowed, kept across restarts: questions about them do not wait among those about unknown keys.
//!
//! A key is stored in the same form as an issuer's own keys, with the day of its latest approval. A key beyond the limit, or
//! unused for [`KEPT_DAYS`], counts as unknown: its question waits for a turn, which by itself refuses no request.

use crate::database::{Connection, Result, values};
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::collections::HashMap;

/// Largest number of remembered keys, about 4 MB.
const MOST: usize = 65_536;
const KEPT_DAYS: u32 = 60;

/// An API key in its stored form (HMAC).
type Stored = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Allowed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Day of the latest approval, by key.
    days: HashMap<Stored, u32>,
    /// Changes that are not in the database yet: a new day, or `None` for a removal.
    unwritten: HashMap<Stored, Option<u32>>,
}

/// Loads the keys from the database, and deletes those that are too old or too many.
pub(super) fn read(connection: &Connection, now: UnixSeconds) -> Result<Allowed> {
    let since = u64::from(day(now).saturating_sub(KEPT_DAYS));
    connection.run("DELETE FROM keys_allowed_elsewhere WHERE day < ?1", values![since])?;
    connection.run(
        "DELETE FROM keys_allowed_elsewhere WHERE key_hmac_sha256 IN
             (SELECT key_hmac_sha256 FROM keys_allowed_elsewhere ORDER BY day DESC
              LIMIT 9223372036854775807 OFFSET ?1)",
        values![MOST as u64],
    )?;
    let sql = "SELECT key_hmac_sha256, day FROM keys_allowed_elsewhere";
    let days = connection.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Allowed(Mutex::new(State { days: days.into_iter().collect(), unwritten: HashMap::new() })))
}

impl Allowed {
    pub(super) fn has(&self, key: &Stored) -> bool {
        self.0.lock().days.contains_key(key)
    }

    /// Adds a key or renews its day. Without room, all keys of the oldest day are evicted; if that day is today, no key is
    /// added.
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

    /// Removes a key that the authorizer denied.
    pub(super) fn remove(&self, key: &Stored) {
        let State { days, unwritten } = &mut *self.0.lock();
        if days.remove(key).is_some() {
            unwritten.insert(*key, None);
        }
    }

    /// Takes the pending changes. After a failed write, a key is written when it is allowed on another day; a removal is lost.
    pub(super) fn take_unwritten(&self) -> Vec<(Stored, Option<u32>)> {
        std::mem::take(&mut self.0.lock().unwritten).into_iter().collect()
    }
}

pub(super) fn write(connection: &Connection, changes: &[(Stored, Option<u32>)]) -> Result<()> {
    changes.iter().try_for_each(|(key, day)| {
        let changed = match day {
            Some(day) => connection.run(
                "INSERT INTO keys_allowed_elsewhere (key_hmac_sha256, day) VALUES (?1, ?2) \
                 ON CONFLICT (key_hmac_sha256) DO UPDATE SET day = excluded.day",
                values![key, u64::from(*day)],
            ),
            None => {
                connection.run("DELETE FROM keys_allowed_elsewhere WHERE key_hmac_sha256 = ?1", values![key])
            }
        };
        changed.map(drop)
    })
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
        let connection = Connection::Sqlite(rusqlite::Connection::open_in_memory().unwrap());
        connection.batch(crate::database::SCHEMA).unwrap();
        let allowed = read(&connection, on(100)).unwrap();
        (0..3).for_each(|number| allowed.add(key(number), on(100)));
        allowed.add(key(0), on(150));
        allowed.remove(&key(1));
        write(&connection, &allowed.take_unwritten()).unwrap();
        assert!(allowed.take_unwritten().is_empty());
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
