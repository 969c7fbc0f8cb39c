//! One connection used by one task at a time: by the watch, and to see whether a connection answers before it is used.

use super::address::Stream;
use super::failure::broken;
use super::protocol::{Command, LONGEST_REPLY, Reply, ReplyKind, parse};
use crate::Unknown;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A connection whose answers are read in order. After an error it is of no use: drop it.
#[derive(Debug)]
pub(crate) struct SerialConnection {
    stream: Stream,
    patience: Duration,
    buffer: Box<[u8; 4 * LONGEST_REPLY]>,
}

impl SerialConnection {
    /// Connects within `patience`, which is also what each later exchange may take.
    pub(crate) async fn open(
        connecting: impl Future<Output = io::Result<Stream>>,
        patience: Duration,
    ) -> Result<Self, Unknown> {
        let stream = timeout(patience, connecting).await.map_err(|_| Unknown::TimedOut)?;
        let stream = stream.map_err(|error| broken(&error))?;
        Ok(Self { stream, patience, buffer: Box::new([0; 4 * LONGEST_REPLY]) })
    }

    /// Gives each exchange so much time.
    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends all commands in one write and reads their replies.
    pub(crate) async fn exchange(&mut self, commands: &[Command]) -> Result<Vec<Reply>, Unknown> {
        let mut replies = Vec::with_capacity(commands.len());
        self.exchange_into(commands, &mut replies).await.map(|()| replies)
    }

    /// The same. What came before an error is in `replies`: those to the first commands.
    pub(crate) async fn exchange_into(
        &mut self,
        commands: &[Command],
        replies: &mut Vec<Reply>,
    ) -> Result<(), Unknown> {
        let patience = self.patience;
        timeout(patience, self.send_and_read(commands, replies)).await.unwrap_or(Err(Unknown::TimedOut))
    }

    /// The stream, for what is no command of the store's. Call it only when every command has been answered.
    pub(crate) fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// The stream. Call it only when every command has been answered.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    async fn send_and_read(&mut self, commands: &[Command], replies: &mut Vec<Reply>) -> Result<(), Unknown> {
        let mut out = Vec::with_capacity(commands.len() * 100);
        commands.iter().for_each(|command| command.encode(&mut out));
        self.stream.write_all(&out).await.map_err(|error| broken(&error))?;
        self.stream.flush().await.map_err(|error| broken(&error))?;
        let mut pending: std::collections::VecDeque<ReplyKind> =
            commands.iter().map(Command::reply_kind).collect();
        let mut filled = 0;
        while !pending.is_empty() {
            let read = self.stream.read(&mut self.buffer[filled..]).await.map_err(|error| broken(&error))?;
            if read == 0 {
                return Err(Unknown::Unavailable(io::ErrorKind::UnexpectedEof));
            }
            filled += read;
            let mut used = 0;
            while let Some(front) = pending.front() {
                match parse(front, &self.buffer[used..filled]).map_err(|_| Unknown::Garbled)? {
                    Some((reply, length)) => {
                        pending.pop_front();
                        replies.push(reply);
                        used += length;
                    }
                    None => break,
                }
            }
            self.buffer.copy_within(used..filled, 0);
            filled -= used;
        }
        // Bytes beyond the last expected reply belong to no command.
        if filled == 0 { Ok(()) } else { Err(Unknown::Garbled) }
    }
}
