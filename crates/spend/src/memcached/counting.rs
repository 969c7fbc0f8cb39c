//! Counters that the processes of a fleet share. They are approximate, and no admission depends on them: an unreachable counter
//! has no total, and its increment is lost.
//!
//! A round is one write of `incr`; missing counters are created by `add`, and those that another process created in between are
//! incremented again. mcrouter and twemproxy serve both commands.

use super::address::Stream;
use super::endpoint::Endpoint;
use super::protocol::NOT_CONNECTED;
use super::serial::ask;
use crate::Unknown;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The longest reply line that is read.
const LONGEST_LINE: usize = 512;

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

#[derive(Clone, Copy)]
enum Command {
    Incr,
    Add,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Total(u64),
    /// `incr` found no counter, or `add` found one.
    Other,
    /// The server returned an error.
    Refused,
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
        let round = timeout(patience, self.round(increments, expires.as_secs()));
        let totals = round.await.unwrap_or(Err(Unknown::TimedOut));
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
        let totals = count(&mut connection, increments, expires).await?;
        self.connection = Some(connection);
        Ok(totals)
    }
}

async fn count(
    connection: &mut Stream,
    increments: &[Increment],
    expires: u64,
) -> Result<Vec<Option<u64>>, Unknown> {
    let mut totals = vec![None; increments.len()];
    let mut open: Vec<usize> = (0..increments.len()).collect();
    for command in [Command::Incr, Command::Add, Command::Incr] {
        let mut sent = Vec::with_capacity(open.len() * 80);
        open.iter().for_each(|&index| command.encode(&increments[index], expires, &mut sent));
        let is_whole = |answer: &[u8]| answer.iter().filter(|byte| **byte == b'\n').count() >= open.len();
        let answer = ask(connection, &sent, open.len() * LONGEST_LINE, is_whole).await?;
        let (mut lines, mut left) = (answer.split("\r\n"), Vec::new());
        for &index in &open {
            match command.reply(lines.next().unwrap_or_default(), &increments[index])? {
                Reply::Total(total) => totals[index] = Some(total),
                Reply::Other => left.push(index),
                Reply::Refused => {}
            }
        }
        if !lines.eq([""]) {
            return Err(Unknown::Garbled); // these bytes belong to no command
        }
        open = left;
        if open.is_empty() {
            break;
        }
    }
    Ok(totals)
}

impl Command {
    fn encode(self, increment: &Increment, expires: u64, sent: &mut Vec<u8>) {
        let Increment { key, by } = increment;
        // Writing to a Vec cannot fail.
        let _ = match self {
            Self::Incr => write!(sent, "incr {key} {by}\r\n"),
            Self::Add => write!(sent, "add {key} 0 {expires} {}\r\n{by}\r\n", by.to_string().len()),
        };
    }

    fn reply(self, line: &str, increment: &Increment) -> Result<Reply, Unknown> {
        match (self, line) {
            (Self::Incr, "NOT_FOUND") | (Self::Add, "NOT_STORED") => Ok(Reply::Other),
            (Self::Add, "STORED") => Ok(Reply::Total(increment.by.into())),
            (_, "SERVER_ERROR") => Ok(Reply::Refused),
            (_, text) if text.starts_with("SERVER_ERROR ") => Ok(Reply::Refused),
            (Self::Incr, digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map(Reply::Total).map_err(|_| Unknown::Garbled)
            }
            _ => Err(Unknown::Garbled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_those_of_their_command_or_end_the_connection() {
        let increment = Increment { key: "k".into(), by: 7 };
        let reply = |command: Command, line: &str| command.reply(line, &increment);
        assert_eq!(reply(Command::Incr, "12"), Ok(Reply::Total(12)));
        assert_eq!(reply(Command::Add, "STORED"), Ok(Reply::Total(7)));
        assert_eq!(reply(Command::Incr, "NOT_FOUND"), Ok(Reply::Other));
        assert_eq!(reply(Command::Add, "NOT_STORED"), Ok(Reply::Other));
        for command in [Command::Incr, Command::Add] {
            assert_eq!(reply(command, "SERVER_ERROR out of memory"), Ok(Reply::Refused));
            for garbled in
                ["", "-1", "1 ", "END", "ERROR", "SERVER_ERRORS", "18446744073709551616", "CLIENT_ERROR"]
            {
                assert_eq!(reply(command, garbled), Err(Unknown::Garbled), "{garbled}");
            }
        }
        assert_eq!(reply(Command::Add, "12"), Err(Unknown::Garbled));
        assert_eq!(reply(Command::Incr, "STORED"), Err(Unknown::Garbled));
    }
}
