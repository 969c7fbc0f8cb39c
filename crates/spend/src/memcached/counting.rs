//! Counters that the processes of a fleet share. They are approximate, and no admission depends on them: an unreachable counter
//! has no total, and its increment is lost.
//!
//! A round is one write: for each counter an `add` of zero, which creates a missing one, and an `incr`. mcrouter and twemproxy
//! serve both commands, in order.

use super::address::Stream;
use super::endpoint::Endpoint;
use super::protocol::{LONGEST_LINE, NOT_CONNECTED};
use super::serial::ask;
use crate::Unknown;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// An increment of one counter. It has no `Debug`, which would show the key.
pub struct Increment {
    /// The counter's key: up to 250 bytes without spaces or control characters.
    pub key: String,
    /// The amount.
    pub by: u32,
}

/// Counters in the servers of a store, over a separate connection, so that no spend waits behind them.
pub struct FleetCounters {
    /// The endpoints of the first replica, all of which lead to one set of records. The first is used next.
    endpoints: Vec<Arc<Endpoint>>,
    connection: Option<Stream>,
}

impl FleetCounters {
    pub(super) fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        let endpoints = endpoints.iter().filter(|endpoint| endpoint.replica == 0).cloned().collect();
        Self { endpoints, connection: None }
    }

    /// Adds to each counter and returns its total, `None` if the server returned none. A new counter ends after `expires`, of
    /// less than 30 days.
    ///
    /// # Errors
    /// No answer within `patience`, or no connection. The increments may or may not have been applied.
    pub async fn add(
        &mut self,
        increments: &[Increment],
        expires: Duration,
        patience: Duration,
    ) -> Result<Vec<Option<u64>>, Unknown> {
        let round = self.round(increments, expires.as_secs());
        let totals = timeout(patience, round).await.unwrap_or(Err(Unknown::TimedOut));
        if totals.is_err() {
            self.endpoints.rotate_left(1); // the next one may answer
        }
        totals
    }

    async fn round(&mut self, increments: &[Increment], expires: u64) -> Result<Vec<Option<u64>>, Unknown> {
        // Taken while replies are outstanding: a round that ends early drops the connection.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.endpoints.first().ok_or(NOT_CONNECTED)?.connect().await?.stream,
        };
        let command = |Increment { key, by }: &Increment| {
            format!("add {key} 0 {expires} 1\r\n0\r\nincr {key} {by}\r\n")
        };
        let commands: String = increments.iter().map(command).collect();
        let lines = 2 * increments.len();
        let is_whole = |answer: &[u8]| answer.iter().filter(|byte| **byte == b'\n').count() >= lines;
        let answer = ask(&mut connection, commands.as_bytes(), lines * LONGEST_LINE, is_whole).await?;
        let replies: Vec<_> = answer.split_terminator("\r\n").collect();
        if replies.len() != lines || !answer.is_empty() && !answer.ends_with("\r\n") {
            return Err(Unknown::Garbled); // these bytes belong to no command
        }
        let totals = replies.as_chunks().0.iter().map(|[added, total]| read(added, total));
        let totals = totals.collect::<Result<_, _>>()?;
        self.connection = Some(connection);
        Ok(totals)
    }
}

/// Returns the total from the replies to `add` and `incr`; `None` if the server has none.
fn read(added: &str, total: &str) -> Result<Option<u64>, Unknown> {
    let is_error = |line: &str| line == "SERVER_ERROR" || line.starts_with("SERVER_ERROR ");
    if !matches!(added, "STORED" | "NOT_STORED") && !is_error(added) {
        return Err(Unknown::Garbled);
    }
    if total == "NOT_FOUND" || is_error(total) {
        return Ok(None);
    }
    let is_number = total.bytes().all(|byte| byte.is_ascii_digit());
    total.parse().ok().filter(|_| is_number).map(Some).ok_or(Unknown::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_those_of_their_commands_or_end_the_connection() {
        for added in ["STORED", "NOT_STORED", "SERVER_ERROR out of memory"] {
            assert_eq!(read(added, "12"), Ok(Some(12)));
            for none in ["NOT_FOUND", "SERVER_ERROR", "SERVER_ERROR down"] {
                assert_eq!(read(added, none), Ok(None));
            }
            for garbled in
                ["", "-1", "+1", "1 ", "END", "ERROR", "SERVER_ERRORS", "18446744073709551616", "STORED"]
            {
                assert_eq!(read(added, garbled), Err(Unknown::Garbled), "{garbled}");
            }
        }
        for garbled in ["", "12", "NOT_FOUND", "SERVER_ERRORS", "CLIENT_ERROR"] {
            assert_eq!(read(garbled, "12"), Err(Unknown::Garbled), "{garbled}");
        }
    }
}
