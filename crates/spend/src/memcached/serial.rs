//! A connection used by one task at a time: by the watch, from a pool, and to prove a connection before use.

use super::address::Stream;
use super::protocol::{Command, LONGEST_LINE, Reply, parse};
use super::world::instant;
use crate::Unknown;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Sends other commands than the store's, and returns their answer once it is whole, of at most about `longest` bytes.
pub(crate) async fn ask(
    stream: &mut Stream,
    commands: &[u8],
    longest: usize,
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<String, Unknown> {
    stream.write_all(commands).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    while !is_whole(&answer) {
        if answer.len() > longest {
            return Err(Unknown::Garbled);
        }
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(Unknown::Unavailable(io::ErrorKind::UnexpectedEof));
        }
    }
    String::from_utf8(answer).map_err(|_| Unknown::Garbled)
}

/// A connection whose answers are read in order. After an error, drop it.
#[derive(Debug)]
pub(crate) struct SerialConnection {
    /// Use it for other commands than the store's only when every command has been answered.
    pub(crate) stream: Stream,
    patience: Duration,
    buffer: Box<[u8; 4 * LONGEST_LINE]>,
    /// The moments at which the kernel had the last exchange, and at which the first byte of its replies was read.
    pub(crate) written: Option<Instant>,
    pub(crate) first_byte: Option<Instant>,
}

impl SerialConnection {
    /// Connects within `patience`, which also limits each later exchange.
    pub(crate) async fn open(
        connecting: impl Future<Output = io::Result<Stream>>,
        patience: Duration,
    ) -> Result<Self, Unknown> {
        let stream = timeout(patience, connecting).await.map_err(|_| Unknown::TimedOut)??;
        let buffer = Box::new([0; 4 * LONGEST_LINE]);
        Ok(Self { stream, patience, buffer, written: None, first_byte: None })
    }

    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends all commands in one write and reads their replies.
    pub(crate) async fn exchange(&mut self, commands: &[Command]) -> Result<Vec<Reply>, Unknown> {
        let mut replies = Vec::with_capacity(commands.len());
        self.exchange_into(commands, &mut replies).await.map(|()| replies)
    }

    /// Does the same as `exchange`. After an error, `replies` contains the replies to the first commands.
    pub(crate) async fn exchange_into(
        &mut self,
        commands: &[Command],
        replies: &mut Vec<Reply>,
    ) -> Result<(), Unknown> {
        let patience = self.patience;
        let exchange = self.send_and_read(commands, |reply, _| replies.push(reply));
        timeout(patience, exchange).await.unwrap_or(Err(Unknown::TimedOut))
    }

    /// Does the same without a time limit, and passes on each reply with its bytes.
    pub(crate) async fn send_and_read(
        &mut self,
        commands: &[Command],
        mut replied: impl FnMut(Reply, &[u8]),
    ) -> Result<(), Unknown> {
        (self.written, self.first_byte) = (None, None);
        let mut out = Vec::with_capacity(commands.len() * 100);
        commands.iter().for_each(|command| command.encode(&mut out));
        self.stream.write_all(&out).await?;
        self.stream.flush().await?;
        self.written = Some(instant());
        let (mut unanswered, mut filled) = (commands, 0);
        while !unanswered.is_empty() {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err(Unknown::Unavailable(io::ErrorKind::UnexpectedEof));
            }
            filled += read;
            self.first_byte.get_or_insert_with(instant);
            let mut used = 0;
            while let Some((command, rest)) = unanswered.split_first() {
                let parsed = parse(command.asks_for(), &self.buffer[used..filled])?;
                let Some((reply, length)) = parsed else { break };
                replied(reply, &self.buffer[used..used + length]);
                (used, unanswered) = (used + length, rest);
            }
            self.buffer.copy_within(used..filled, 0);
            filled -= used;
        }
        // Bytes beyond the last expected reply belong to no command.
        if filled == 0 { Ok(()) } else { Err(Unknown::Garbled) }
    }
}
