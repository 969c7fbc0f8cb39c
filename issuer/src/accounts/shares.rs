//! The table of shares: which part of every quota this issuer gives, and since when.

use super::AccountsError;
use super::store::{Change, Store};
use super::usage::{natural, whole};
use crate::share::{Share, Shares, Since};
use postern_token::UnixSeconds;
use rusqlite::{Connection, params};

impl Store {
    /// What this issuer's shares are, were it configured so at `now`, and what the database lacks of them.
    pub(crate) fn shares(
        &self,
        configured: Share,
        joins: bool,
        now: UnixSeconds,
    ) -> Result<(Shares, Vec<Since>), AccountsError> {
        self.with(|connection| {
            let mut shares = Shares::new(all(connection)?);
            // Where the clock was ahead, periods that are to come may have been used already.
            let added = shares.to_add(configured, joins, now.max(newest_period(connection)?));
            shares.add(added.clone());
            Ok((shares, added))
        })
    }

    /// Writes down that this share is configured from now on, before it counts.
    pub(crate) fn take_up_share(
        &self,
        configured: Share,
        joins: bool,
        now: UnixSeconds,
    ) -> Result<Shares, AccountsError> {
        let (shares, added) = self.shares(configured, joins, now)?;
        if !added.is_empty() {
            self.write(|transaction| {
                added.iter().try_for_each(|change| insert(transaction, change))?;
                Ok::<_, Change<AccountsError>>(())
            })?;
        }
        Ok(shares)
    }
}

fn all(connection: &Connection) -> rusqlite::Result<Vec<Since>> {
    let mut statement =
        connection.prepare("SELECT since_unix, numerator, denominator FROM shares ORDER BY id")?;
    let rows = statement.query_map([], |row| {
        let share = Share::new(row.get(1)?, row.get(2)?).unwrap_or(Share::NONE);
        Ok(Since { since: UnixSeconds(natural(row.get(0)?)), share })
    })?;
    rows.collect()
}

fn insert(connection: &Connection, change: &Since) -> rusqlite::Result<()> {
    let (numerator, denominator) = change.share.parts();
    connection
        .prepare("INSERT INTO shares (since_unix, numerator, denominator) VALUES (?1, ?2, ?3)")?
        .execute(params![whole(change.since.0), numerator, denominator])
        .map(drop)
}

fn newest_period(connection: &Connection) -> rusqlite::Result<UnixSeconds> {
    let newest: Option<i64> =
        connection.query_row("SELECT max(period_start_unix) FROM usage", [], |row| row.get(0))?;
    Ok(UnixSeconds(newest.map_or(0, natural)))
}
