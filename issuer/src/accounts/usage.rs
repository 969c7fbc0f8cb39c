//! Tables of usage, the largest number of tokens that an account may have used in each period, and of shares, this issuer's part
//! of every quota over time.

use super::database::{first, natural, rows, run, whole};
use super::store::{Store, set_needs_account};
use super::{AccountsError, Configured};
use crate::quota::Usage;
use crate::share::{Share, Shares, Since};
use postern_token::UnixSeconds;
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

/// Length of a day in seconds. Shorter past periods are merged into their day.
const DAY: i64 = 86_400;
/// Time from the end of a day until its periods are merged, in seconds: every meter has written its last figure by then.
const MERGED_AFTER: i64 = 3_600;
/// Rows per transaction of [`maintain`], which blocks requests.
const CHUNK: i64 = 5_000;

/// Usage of one account in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Account name.
    pub account: String,
    /// First second of the period.
    pub period_start: UnixSeconds,
    /// Length of the period in seconds.
    pub period_seconds: u64,
    /// Tokens issued in the period, including a reservation that was left when the issuer was killed.
    pub tokens: u64,
}

/// Reads the usage in the window of `nothing`.
pub(crate) fn read(connection: &Connection, account: &str, nothing: Usage) -> rusqlite::Result<Usage> {
    let sql =
        "SELECT tokens FROM usage WHERE period_start_unix = ?1 AND period_seconds = ?2 AND account = ?3";
    let Usage { window_start, period_seconds, .. } = nothing;
    let window = (whole(window_start.0), whole(period_seconds), account);
    let used = first(connection, sql, window, |row| row.get(0))?;
    Ok(Usage { used: used.map_or(0, natural), ..nothing })
}

/// Inserts or replaces the usage in one window.
pub(crate) fn write(connection: &Connection, account: &str, usage: Usage) -> rusqlite::Result<()> {
    let sql = "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT DO UPDATE SET tokens = excluded.tokens";
    let Usage { window_start, period_seconds, used } = usage;
    run(connection, sql, params![whole(window_start.0), whole(period_seconds), account, whole(used)])
}

/// Returns the usage of one account, oldest first. The table is ordered by period, so the query looks into each existing period:
/// after merging, one a day at most.
pub(crate) fn of_account(
    connection: &Connection,
    account: &str,
    since: UnixSeconds,
) -> rusqlite::Result<Vec<UsageRow>> {
    let sql = "WITH RECURSIVE starts (start) AS (
             SELECT min(period_start_unix) FROM usage
             UNION ALL
             SELECT (SELECT min(period_start_unix) FROM usage WHERE period_start_unix > start)
             FROM starts WHERE start IS NOT NULL
         ),
         periods (start, seconds) AS (
             SELECT start, (SELECT min(period_seconds) FROM usage WHERE period_start_unix = start)
             FROM starts WHERE start IS NOT NULL
             UNION ALL
             SELECT start, (SELECT min(period_seconds) FROM usage
                            WHERE period_start_unix = start AND period_seconds > seconds)
             FROM periods WHERE seconds IS NOT NULL
         )
         SELECT account, period_start_unix, period_seconds, tokens
         FROM periods JOIN usage ON period_start_unix = start AND period_seconds = seconds AND account = ?1
         WHERE start + seconds > ?2
         ORDER BY start, seconds";
    rows(connection, sql, params![account, whole(since.0)], row)
}

/// Calls `each` with the usage of every account, oldest first, until it fails.
pub(crate) fn of_all<E: From<rusqlite::Error>>(
    connection: &Connection,
    since: UnixSeconds,
    mut each: impl FnMut(UsageRow) -> Result<(), E>,
) -> Result<(), E> {
    let mut statement = connection.prepare_cached(
        "SELECT account, period_start_unix, period_seconds, tokens FROM usage \
         WHERE period_start_unix + period_seconds > ?1 ORDER BY period_start_unix, period_seconds, account",
    )?;
    let mut rows = statement.query(params![whole(since.0)])?;
    while let Some(next) = rows.next()? {
        each(row(next)?)?;
    }
    Ok(())
}

fn row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    Ok(UsageRow {
        account: row.get(0)?,
        period_start: UnixSeconds(natural(row.get(1)?)),
        period_seconds: natural(row.get(2)?),
        tokens: natural(row.get(3)?),
    })
}

/// Merges short periods into days and removes periods that ended before `kept_since`, one chunk of each. Returns `true` if there
/// may be more.
pub(crate) fn maintain(
    connection: &mut Connection,
    now: UnixSeconds,
    kept_since: UnixSeconds,
) -> rusqlite::Result<bool> {
    const OLDEST: &str = "SELECT period_start_unix, period_seconds, account FROM usage \
         WHERE period_seconds < 86400 AND period_start_unix < ?1 \
         ORDER BY period_start_unix, period_seconds, account LIMIT ?2";
    let transaction = connection.transaction()?;
    let over = whole(now.0) - MERGED_AFTER;
    let day_begins = over - over.rem_euclid(DAY);
    let chunk = |sql: &str, before: i64| transaction.prepare_cached(sql)?.execute([before, CHUNK]);
    let merge = format!(
        "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) \
         SELECT period_start_unix / 86400 * 86400, 86400, account, sum(tokens) FROM usage \
         WHERE (period_start_unix, period_seconds, account) IN ({OLDEST}) GROUP BY 1, account \
         ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens"
    );
    chunk(&merge, day_begins)?;
    let merged =
        format!("DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN ({OLDEST})");
    let merged = chunk(&merged, day_begins)?;
    let over = "DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN \
                (SELECT period_start_unix, period_seconds, account FROM usage \
                 WHERE period_start_unix < ?1 AND period_start_unix + period_seconds <= ?1 LIMIT ?2)";
    let removed = chunk(over, whole(kept_since.0))?;
    transaction.commit()?;
    Ok([merged, removed].iter().any(|rows| whole(*rows as u64) == CHUNK))
}

// ---- Shares ----

impl Store {
    /// Returns this issuer's shares, as if `configured` applied from `now`, and the rows that the database lacks.
    pub(crate) fn shares(
        &self,
        configured: Share,
        joins: bool,
        now: UnixSeconds,
    ) -> Result<(Shares, Vec<Since>), AccountsError> {
        self.with(|connection| {
            let mut shares = Shares::new(known_shares(connection)?);
            // If the clock was ahead, future periods may have been used already.
            let added = shares.to_add(configured, joins, now.max(newest_period(connection)?));
            shares.add(added.clone());
            Ok((shares, added))
        })
    }

    /// Records the configured share, and that an authorizer makes tokens require an account, before they take effect.
    pub(crate) fn take_up_configured(
        &self,
        configured: &Configured,
        now: UnixSeconds,
    ) -> Result<Shares, AccountsError> {
        let (shares, added) = self.shares(configured.share(), configured.follows().is_some(), now)?;
        if !added.is_empty() || configured.has_authorizer {
            self.write(|transaction| {
                added.iter().try_for_each(|change| insert_share(transaction, change))?;
                if configured.has_authorizer { set_needs_account(transaction) } else { Ok(()) }
            })?;
        }
        Ok(shares)
    }
}

fn known_shares(connection: &Connection) -> rusqlite::Result<Vec<Since>> {
    let sql = "SELECT since_unix, numerator, denominator FROM shares ORDER BY id";
    rows(connection, sql, [], |row| {
        let share = Share::new(row.get(1)?, row.get(2)?).unwrap_or(Share::NONE);
        Ok(Since { since: UnixSeconds(natural(row.get(0)?)), share })
    })
}

fn insert_share(connection: &Connection, change: &Since) -> rusqlite::Result<()> {
    let (numerator, denominator) = change.share.parts();
    let sql = "INSERT INTO shares (since_unix, numerator, denominator) VALUES (?1, ?2, ?3)";
    run(connection, sql, params![whole(change.since.0), numerator, denominator])
}

fn newest_period(connection: &Connection) -> rusqlite::Result<UnixSeconds> {
    let newest: Option<i64> =
        connection.query_row("SELECT max(period_start_unix) FROM usage", [], |row| row.get(0))?;
    Ok(UnixSeconds(newest.map_or(0, natural)))
}
