//! The table of usage: the largest number of tokens that an account may have used in each period.

use crate::database::{Connection, Error, Result, Row, TABLES, values};
use crate::quota::{Change, Usage};
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};

/// Length of a day in seconds. Shorter past periods are merged into the day of their start.
const DAY: u64 = 86_400;
/// Time from the end of a day until its periods are merged, in seconds: every meter has written its last figure by then.
const MERGED_AFTER: u64 = 3_600;
/// Rows per transaction of [`maintain`], which blocks requests.
const CHUNK: u64 = 5_000;

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

/// Reads the usage in a window, and locks its row until the transaction ends.
pub(crate) fn read(connection: &Connection, account: &str, window: Usage) -> Result<Option<u64>> {
    let sql =
        "SELECT tokens FROM usage WHERE period_start_unix = ?1 AND period_seconds = ?2 AND account = ?3";
    let window = values![window.window_start, window.period_seconds, account];
    connection.first(&format!("{sql}{}", connection.locking()), window, |row| row.get(0))
}

/// Makes a change, of which a reservation gets as much as the limit leaves. Returns the usage, and the number of reserved tokens.
pub(crate) fn change(connection: &Connection, account: &str, change: Change) -> Result<(u64, u64)> {
    let Change { window, reserve, give_back, limit } = change;
    let key = values![window.window_start, window.period_seconds, account];
    let before = match read(connection, account, window)? {
        Some(tokens) => tokens,
        None => {
            // Another issuer may have inserted the row in the meantime.
            let sql = "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) VALUES (?1, ?2, ?3, 0) \
                       ON CONFLICT (period_start_unix, period_seconds, account) DO NOTHING";
            connection.run(sql, key)?;
            read(connection, account, window)?.ok_or_else(removed)?
        }
    };
    let reserved = reserve.min(limit.saturating_sub(before));
    let tokens = (before + reserved).saturating_sub(give_back);
    if tokens != before {
        let sql = "UPDATE usage SET tokens = ?4 WHERE period_start_unix = ?1 AND period_seconds = ?2 AND account = ?3";
        let values = values![window.window_start, window.period_seconds, account, tokens];
        if connection.run(sql, values)? == 0 {
            return Err(removed());
        }
    }
    Ok((tokens, reserved))
}

fn removed() -> Error {
    Error::Away("another issuer has removed the usage of the present period: compare the clocks".to_owned())
}

/// Returns the usage of one account, oldest first. The table is ordered by period, so the query looks into each existing period:
/// after merging, one a day at most.
pub(crate) fn of_account(
    connection: &Connection,
    account: &str,
    since: UnixSeconds,
) -> Result<Vec<UsageRow>> {
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
    connection.rows(sql, values![account, since], row)
}

/// Calls `each` with the usage of every account, oldest first, until it fails.
pub(crate) fn of_all<E: From<Error>>(
    connection: &Connection,
    since: UnixSeconds,
    mut each: impl FnMut(UsageRow) -> Result<(), E>,
) -> Result<(), E> {
    let sql = "SELECT account, period_start_unix, period_seconds, tokens FROM usage \
               WHERE period_start_unix + period_seconds > ?1 ORDER BY period_start_unix, period_seconds, account";
    connection.each(sql, values![since], |next| each(row(next)?))
}

fn row(row: &Row<'_>) -> Result<UsageRow> {
    let (account, period_start, period_seconds) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(UsageRow { account, period_start, period_seconds, tokens: row.get(3)? })
}

/// Merges short periods into days and removes periods that ended before `kept_since`, one chunk of each. Returns `true` if there
/// may be more.
pub(crate) fn maintain(connection: &Connection, now: UnixSeconds, kept_since: UnixSeconds) -> Result<bool> {
    const OLDEST: &str = "SELECT period_start_unix, period_seconds, account FROM usage \
         WHERE period_seconds < 86400 AND period_start_unix + period_seconds <= ?1 \
         ORDER BY period_start_unix, period_seconds, account LIMIT ?2";
    let over = now.0.saturating_sub(MERGED_AFTER);
    let day_begins = over - over % DAY;
    connection.transact(|connection| {
        connection.lock(TABLES)?; // one issuer at a time: rows must not be added twice
        let chunk = |sql: &str, before: u64| connection.run(sql, values![before, CHUNK]);
        chunk(
            &format!(
                "INSERT INTO usage (period_start_unix, period_seconds, account, tokens) \
                 SELECT period_start_unix / 86400 * 86400, 86400, account, CAST(sum(tokens) AS BIGINT) FROM usage \
                 WHERE (period_start_unix, period_seconds, account) IN ({OLDEST}) GROUP BY 1, account \
                 ON CONFLICT (period_start_unix, period_seconds, account) \
                 DO UPDATE SET tokens = usage.tokens + excluded.tokens"
            ),
            day_begins,
        )?;
        let merged =
            format!("DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN ({OLDEST})");
        let merged = chunk(&merged, day_begins)?;
        let over = "DELETE FROM usage WHERE (period_start_unix, period_seconds, account) IN \
                    (SELECT period_start_unix, period_seconds, account FROM usage \
                     WHERE period_start_unix < ?1 AND period_start_unix + period_seconds <= ?1 LIMIT ?2)";
        let removed = chunk(over, kept_since.0)?;
        Ok(merged == CHUNK || removed == CHUNK)
    })
}
