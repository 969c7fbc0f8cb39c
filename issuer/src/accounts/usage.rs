//! The table of usage: how many tokens an account has used at most in a period.

use crate::quota::Usage;
use postern_token::UnixSeconds;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

/// Past periods that are shorter are merged into their day.
const DAY: i64 = 86_400;
/// How long after the end of a day its periods are merged: every meter has written its last figure by then.
const MERGED_AFTER: i64 = 3_600;
/// Rows that one transaction of [`upkeep`] touches: requests wait for it.
const CHUNK: i64 = 5_000;

/// What one account has used in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The account's name.
    pub account: String,
    /// The first second of the period.
    pub period_start: UnixSeconds,
    /// Its length.
    pub period_seconds: u64,
    /// Tokens issued in it. Where the issuer was killed, the tokens that were reserved then are among them.
    pub tokens: u64,
}

/// SQLite's integers. No quota and no time is beyond them.
pub(crate) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// What was used of the window of `nothing`.
pub(crate) fn read(connection: &Connection, account: &str, nothing: Usage) -> rusqlite::Result<Usage> {
    let used = connection
        .prepare_cached(
            "SELECT tokens FROM usage WHERE period_start_unix = ?1 AND period_seconds = ?2 AND account = ?3",
        )?
        .query_row(params![whole(nothing.window_start.0), whole(nothing.period_seconds), account], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(Usage { used: used.map_or(0, natural), ..nothing })
}

/// Writes the figure of one window.
pub(crate) fn write(connection: &Connection, account: &str, usage: Usage) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT DO UPDATE SET tokens = excluded.tokens",
        )?
        .execute(params![
            whole(usage.window_start.0),
            whole(usage.period_seconds),
            account,
            whole(usage.used)
        ])
        .map(drop)
}

/// The usage of one account, oldest first. The table is ordered by period, so it is looked for in each period that there is:
/// after merging, one a day at most.
pub(crate) fn of_account(
    connection: &Connection,
    account: &str,
    since: UnixSeconds,
) -> rusqlite::Result<Vec<UsageRow>> {
    let mut statement = connection.prepare_cached(
        "WITH RECURSIVE starts (start) AS (
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
         ORDER BY start, seconds",
    )?;
    let rows = statement.query_map(params![account, whole(since.0)], row)?;
    rows.collect()
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

/// Merges short periods into their days and removes periods that ended before `kept_since`: one chunk of each. Returns
/// whether there may be more.
pub(crate) fn upkeep(
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
    transaction
        .prepare_cached(&format!(
            "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) \
             SELECT period_start_unix / 86400 * 86400, 86400, account, sum(tokens) FROM usage \
             WHERE (period_start_unix, period_seconds, account) IN ({OLDEST}) GROUP BY 1, account \
             ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens"
        ))?
        .execute(params![day_begins, CHUNK])?;
    let merged = transaction
        .prepare_cached(&format!(
            "DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN ({OLDEST})"
        ))?
        .execute(params![day_begins, CHUNK])?;
    let removed = transaction
        .prepare_cached(
            "DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN \
             (SELECT period_start_unix, period_seconds, account FROM usage \
              WHERE period_start_unix < ?1 AND period_start_unix + period_seconds <= ?1 LIMIT ?2)",
        )?
        .execute(params![whole(kept_since.0), CHUNK])?;
    transaction.commit()?;
    Ok([merged, removed].iter().any(|rows| whole(*rows as u64) == CHUNK))
}
