//! Counters that the processes of a fleet share. They are approximate, and nothing here decides about admission: a counter
//! that cannot be reached has no total, and what was to be added to it is lost.
//!
//! A round is one write of `incr`; counters that are missing are made by `add`, and those that another process made
//! meanwhile are incremented once more. mcrouter and twemproxy serve both commands.

use super::address::Stream;
use super::endpoint::Endpoint;
use super::failure::broken;
use crate::Unknown;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The longest line that is read of a reply.
const LONGEST_LINE: usize = 512;

/// What to add to one counter.
pub struct Increment {
    /// Its key: up to 250 bytes without spaces or control characters.
    pub key: String,
    /// How much.
    pub by: u32,
}

/// Counters in the servers of a store, over a connection of their own, so that no spend waits behind them.
pub struct FleetCounters {
    /// Those of the first replica: they lead to one set of records. The first is used next.
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
    /// The counter's value.
    Total(u64),
    /// `incr` found none, or `add` found one.
    Other,
    /// The server could not do it.
    Refused,
}

impl FleetCounters {
    pub(super) fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        let endpoints = endpoints.iter().filter(|endpoint| endpoint.replica() == 0).cloned().collect();
        Self { endpoints, connection: None }
    }

    /// Adds to each counter and returns its total, none where the server gave none. A counter that is new ends after
    /// `expires`, of less than 30 days.
    ///
    /// # Errors
    /// No answer within `patience`, or no connection. What was to be added may have been, or not.
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
        // Not kept while replies are outstanding: a round that ends early drops it.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.endpoints.first().ok_or(NO_ENDPOINT)?.connect().await?.into_stream(),
        };
        let totals = count(&mut connection, increments, expires).await?;
        self.connection = Some(connection);
        Ok(totals)
    }
}

const NO_ENDPOINT: Unknown = Unknown::Unavailable(io::ErrorKind::NotConnected);

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
        connection.write_all(&sent).await.map_err(|error| broken(&error))?;
        connection.flush().await.map_err(|error| broken(&error))?;
        let mut replies = Replies { connection: &mut *connection, unread: Vec::new() };
        let mut left = Vec::new();
        for &index in &open {
            match command.reply(replies.line().await?, &increments[index])? {
                Reply::Total(total) => totals[index] = Some(total),
                Reply::Other => left.push(index),
                Reply::Refused => {}
            }
        }
        if !replies.unread.is_empty() {
            return Err(Unknown::Garbled); // they belong to no command
        }
        if left.is_empty() {
            break;
        }
        open = left;
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

    fn reply(self, line: Vec<u8>, increment: &Increment) -> Result<Reply, Unknown> {
        let text = std::str::from_utf8(&line).map_err(|_| Unknown::Garbled)?;
        match (self, text) {
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

/// Lines that a server sends.
struct Replies<'a> {
    connection: &'a mut Stream,
    unread: Vec<u8>,
}

impl Replies<'_> {
    /// The next one, without its end.
    async fn line(&mut self) -> Result<Vec<u8>, Unknown> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let rest = self.unread.split_off(end + 2);
                let mut line = std::mem::replace(&mut self.unread, rest);
                line.truncate(end);
                return Ok(line);
            }
            if self.unread.len() > LONGEST_LINE {
                return Err(Unknown::Garbled);
            }
            if self.connection.read_buf(&mut self.unread).await.map_err(|error| broken(&error))? == 0 {
                return Err(Unknown::Unavailable(io::ErrorKind::UnexpectedEof));
            }
        }
    }
}

impl fmt::Debug for Increment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Increment(redacted)")
    }
}

impl fmt::Debug for FleetCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetCounters")
            .field("is_connected", &self.connection.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_those_of_their_command_or_end_the_connection() {
        let increment = Increment { key: "k".into(), by: 7 };
        let reply = |command: Command, line: &str| command.reply(line.into(), &increment);
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
