//! The state of a pipeline: commands that wait to be written or for their replies, and the exchanges they belong to.
//!
//! memcached sends the reply to each `get` separately, but gathers the replies to `add`: in a burst, separate `get`s cost both
//! sides several times as much as one `get` of all keys. Each key's record comes as a separate block, in any order (twemproxy
//! queries several servers at once); keys without a block were not found.

use crate::Unknown;
use crate::memcached::protocol::{Command, Failure, RecordKey, Reply, Value, block, parse};
use crate::memcached::world::instant;
use postern_net::TcpFacts;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The maximum number of commands in one exchange: a spend's `add`, and the `get`s of the witness and of its revocation.
pub(super) const MOST_COMMANDS: usize = 3;
/// The time for which `get`s are sent separately after a joined one was answered with an error. A router that has lost a server
/// fails the whole command, and twemproxy also closes the connection.
const APART: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Queue {
    /// The reason why there is no connection; `None` while there is one.
    pub(super) down: Option<Unknown>,
    /// Commands that the task has not taken yet, and the `add`s among them in wire format.
    pub(super) adds: Vec<Pending>,
    pub(super) gets: Vec<Pending>,
    pub(super) out: Vec<u8>,
    /// Commands taken and without a reply, in the order of the replies, and the number of them that were taken last.
    pub(super) sent: VecDeque<Pending>,
    pub(super) last_taken: usize,
    /// The number of keys in each `get` taken and not completely answered.
    pub(super) joined: VecDeque<usize>,
    /// The part received of the reply to the first `get`: keys found, as indices among `sent`.
    pub(super) found: Vec<(usize, Value)>,
    /// The end of the time in which `get`s are not joined.
    pub(super) apart_until: Option<Instant>,
    /// One for each caller.
    pub(super) exchanges: Vec<Exchange>,
    pub(super) free: Vec<u32>,
    /// The task, if it waits for commands.
    pub(super) task: Option<Waker>,
}

/// A command without a reply.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// Its exchange, and its position there.
    pub(super) exchange: u32,
    position: usize,
    /// The key of a `get`; `None` for an `add`.
    key: Option<RecordKey>,
    /// The time at which the oldest of the commands taken together was submitted. One timestamp serves all of them, so that a
    /// command reads no clock.
    pub(super) since: Instant,
    /// The time at which the kernel had all of them.
    pub(super) written: Option<Instant>,
}

/// The commands of one caller, and their replies.
#[derive(Default)]
pub(super) struct Exchange {
    /// Commands without a reply. The caller is woken when there are none left.
    pub(super) unanswered: usize,
    pub(super) answer: Answer,
    pub(super) caller: Option<Waker>,
    /// The caller gave up; the replies are still to come.
    pub(super) is_abandoned: bool,
}

/// The result of an exchange, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The replies in the order of the commands, behind them as many errors as there are places left.
    pub(crate) result: Result<[Reply; MOST_COMMANDS], Failure>,
    /// The times at which the commands had been written, and at which the read that completed the first reply returned.
    pub(crate) written: Option<Instant>,
    pub(crate) read: Option<Instant>,
    /// The facts about the connection, if the oldest of the commands taken together had waited for long.
    pub(crate) tcp: Option<TcpFacts>,
}

impl Default for Answer {
    /// Contains errors in place of the replies, so that a reply that has not come admits nothing.
    fn default() -> Self {
        Self { result: Ok([Reply::ServerError; MOST_COMMANDS]), written: None, read: None, tcp: None }
    }
}

impl Queue {
    pub(super) fn unanswered(&self) -> usize {
        self.sent.len() + self.adds.len() + self.gets.len()
    }

    /// Returns the time at which the oldest command that was not taken was submitted.
    pub(super) fn gathered(&self) -> Option<Instant> {
        self.adds.first().or(self.gets.first()).map(|first| first.since)
    }

    /// Queues the commands of a new exchange at the time `now`, and returns the exchange.
    pub(super) fn push(&mut self, commands: &[&Command], now: Instant) -> u32 {
        let exchange = self.free.pop().unwrap_or_else(|| {
            self.exchanges.push(Exchange::default());
            (self.exchanges.len() - 1) as u32 // at most the limit plus answers not collected yet
        });
        self.exchanges[exchange as usize].unanswered = commands.len();
        let since = self.gathered().unwrap_or(now);
        for (position, command) in commands.iter().enumerate() {
            let pending = |key| Pending { exchange, position, key, since, written: None };
            match command {
                Command::Get(key) => self.gets.push(pending(Some(*key))),
                Command::Add { .. } => {
                    command.encode(&mut self.out);
                    self.adds.push(pending(None));
                }
            }
        }
        exchange
    }

    /// Moves the commands not taken yet into the empty `taken`, in wire format. Returns `false` if there are none.
    pub(super) fn take(&mut self, taken: &mut Vec<u8>) -> bool {
        let Some(since) = self.gathered() else { return false };
        std::mem::swap(&mut self.out, taken);
        let most = if self.apart_until.is_some_and(|end| since < end) { 1 } else { MOST_KEYS };
        for together in self.gets.chunks(most) {
            encode(together.iter().filter_map(|get| get.key.as_ref()), taken);
            self.joined.push_back(together.len());
        }
        self.last_taken = self.adds.len() + self.gets.len();
        self.sent.extend(self.adds.drain(..).chain(self.gets.drain(..)));
        true
    }

    /// Records that the commands taken last have been written: no others are unwritten. Some of them, or all, may already be
    /// answered.
    pub(super) fn written(&mut self, at: Instant) {
        let unanswered = self.sent.iter_mut().rev().take(self.last_taken);
        unanswered.for_each(|pending| pending.written = Some(at));
    }

    /// Delivers the beginning of `bytes` to the commands sent first. Returns its length, or `None` if it is incomplete.
    pub(super) fn deliver(
        &mut self,
        bytes: &[u8],
        read: Read,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<usize>, Unknown> {
        // A reply to a command that was not sent is garbled.
        if let Some(first) = self.sent.front().ok_or(Unknown::Garbled)?.key {
            return self.deliver_gets(&first, bytes, read, woken);
        }
        let Some((reply, length)) = parse(None, bytes)? else { return Ok(None) };
        woken.extend(self.answer_next(reply, read)?);
        Ok(Some(length))
    }

    /// Delivers a piece of the reply to the next `get`. No caller is answered before the end of the reply.
    fn deliver_gets(
        &mut self,
        first: &RecordKey,
        bytes: &[u8],
        read: Read,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<usize>, Unknown> {
        let joined = *self.joined.front().ok_or(Unknown::Garbled)?;
        let missing = self.sent.iter().take(joined).enumerate().filter_map(|(index, get)| {
            let is_found = self.found.iter().any(|(found, _)| *found == index);
            if is_found { None } else { Some((index, get.key.as_ref()?)) }
        });
        let Some((piece, length)) = piece(first, missing, bytes)? else { return Ok(None) };
        match piece {
            Piece::Block(index, value) => self.found.push((index, value)),
            Piece::End(others) => {
                if others == Reply::ServerError && joined > 1 {
                    self.apart_until = Some(instant() + APART);
                }
                self.joined.pop_front();
                let found = std::mem::take(&mut self.found);
                for index in 0..joined {
                    let value = found.iter().find(|(found, _)| *found == index).map(|(_, value)| *value);
                    woken.extend(self.answer_next(value.map_or(others, Reply::Hit), read)?);
                }
                // This may be the reply to the last `add`, after a reply too many: then the reply to this `get` would count for the
                // next one, which may ask for the same keys.
                let is_followed = self.sent.front().is_some_and(|next| next.key.is_some());
                if others == Reply::ServerError && joined > 1 && found.is_empty() && is_followed {
                    return Err(Unknown::Garbled);
                }
            }
        }
        Ok(Some(length))
    }

    /// Gives the reply to the command sent first. Returns the caller to wake, if its exchange is complete.
    fn answer_next(&mut self, reply: Reply, read: Read) -> Result<Option<Waker>, Unknown> {
        let pending = self.sent.pop_front().ok_or(Unknown::Garbled)?;
        let answer = &mut self.exchanges[pending.exchange as usize].answer;
        if let Ok(replies) = &mut answer.result {
            replies[pending.position] = reply;
        }
        answer.read.get_or_insert(read.at);
        let is_slow = read.at.saturating_duration_since(pending.since) > read.slow;
        (answer.written, answer.tcp) = (pending.written, read.tcp.filter(|_| is_slow));
        Ok(self.settle(pending.exchange))
    }

    /// Fails a command, and with it its exchange. Returns the caller to wake, if no reply is outstanding.
    pub(super) fn fail(
        &mut self,
        pending: Pending,
        failure: Failure,
        tcp: Option<TcpFacts>,
    ) -> Option<Waker> {
        let answer = &mut self.exchanges[pending.exchange as usize].answer;
        (answer.result, answer.written, answer.tcp) = (Err(failure), pending.written, tcp);
        self.settle(pending.exchange)
    }

    fn settle(&mut self, index: u32) -> Option<Waker> {
        let exchange = &mut self.exchanges[index as usize];
        exchange.unanswered -= 1;
        if exchange.unanswered > 0 {
            return None;
        }
        if exchange.is_abandoned {
            self.release(index);
            return None;
        }
        exchange.caller.take()
    }

    /// Frees the place of an exchange whose replies have all come.
    pub(super) fn release(&mut self, index: u32) {
        self.exchanges[index as usize] = Exchange::default();
        self.free.push(index);
    }
}

/// A read from the connection: its time, and the facts about the connection if the oldest command has waited for longer than
/// `slow`.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) at: Instant,
    pub(super) slow: Duration,
    pub(super) tcp: Option<TcpFacts>,
}

/// The maximum number of keys in one command, which keeps it below the 2,048 bytes in which memcached looks for a line's end.
const MOST_KEYS: usize = 32;

/// Appends one `get` of all keys, of which there is at least one.
fn encode<'a>(keys: impl Iterator<Item = &'a RecordKey>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// A piece of the reply to a joined `get`.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// The record of a key, by its index among `keys`.
    Block(usize, Value),
    /// The end: all other keys have this reply, [`Reply::Miss`] or [`Reply::ServerError`].
    End(Reply),
}

/// Parses one piece from the beginning of `bytes`. Returns the piece and its length, or `None` if it is incomplete. `missing`
/// are the keys without a block so far, with their indices; `first` is the first key of all.
fn piece<'a>(
    first: &RecordKey,
    mut missing: impl Iterator<Item = (usize, &'a RecordKey)>,
    bytes: &[u8],
) -> Result<Option<(Piece, usize)>, Unknown> {
    if bytes.first() != Some(&b'V') {
        // mcrouter may send the records it found before the error of a dead server. But an error must belong to at least one
        // missing key.
        return match parse(Some(first), bytes)? {
            Some((Reply::ServerError, _)) if missing.next().is_none() => Err(Unknown::Garbled),
            end => Ok(end.map(|(reply, length)| (Piece::End(reply), length))),
        };
    }
    let mut begun = false;
    for (place, key) in missing {
        match block(key, bytes) {
            Ok(Some((value, length))) => return Ok(Some((Piece::Block(place, value), length))),
            Ok(None) => begun = true,
            Err(_) => {}
        }
    }
    if begun { Ok(None) } else { Err(Unknown::Garbled) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::bucket::Bucket;
    use crate::memcached::protocol::{KEY_LEN, Kind, VALUE_LEN};

    fn key(byte: u8) -> RecordKey {
        RecordKey::new(Kind::Probe, &[byte; 32])
    }

    fn block(byte: u8) -> Vec<u8> {
        [b"VALUE ", key(byte).as_bytes(), b" 0 22\r\n", &[b'a' + byte; VALUE_LEN], b"\r\n"].concat()
    }

    fn read(keys: &[RecordKey], bytes: &[u8]) -> Result<Option<(Piece, usize)>, Unknown> {
        piece(&key(1), keys.iter().enumerate(), bytes)
    }

    #[test]
    fn one_command_asks_for_all_keys() {
        let mut out = Vec::new();
        encode([key(1), key(2)].iter(), &mut out);
        assert_eq!(out, format!("get {} {}\r\n", key(1), key(2)).into_bytes());
        let longest = 3 + MOST_KEYS * (KEY_LEN + 1) + 2;
        assert!(longest < 2_048, "{longest}");
    }

    #[test]
    fn pieces_are_read_however_they_are_cut() {
        let keys = [key(1), key(2), key(3)];
        let second = Piece::Block(1, Value::read(&[b'c'; VALUE_LEN]));
        let pieces: [(Vec<u8>, Piece); 3] = [
            (block(2), second),
            (b"END\r\n".to_vec(), Piece::End(Reply::Miss)),
            (b"SERVER_ERROR unavailable\r\n".to_vec(), Piece::End(Reply::ServerError)),
        ];
        for (text, piece) in pieces {
            for end in 0..text.len() {
                assert_eq!(read(&keys, &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
            }
            let length = text.len();
            let followed = [text, block(1)].concat();
            assert_eq!(read(&keys, &followed), Ok(Some((piece, length))));
        }
    }

    #[test]
    fn records_in_buckets_are_shorter() {
        let of_bucket = Bucket::of(&[7; 32]).record(&[1; 16]);
        let text = format!("VALUE {of_bucket} 0 7\r\nAAECAwQ\r\n").into_bytes();
        let keys = [key(1), of_bucket, of_bucket];
        for end in 0..text.len() {
            assert_eq!(read(&keys, &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
        }
        let value = Value::of_bytes(&[0, 1, 2, 3, 4]);
        assert_eq!(read(&keys, &text), Ok(Some((Piece::Block(1, value), text.len()))));
        assert_eq!(read(&keys[..1], &text), Err(Unknown::Garbled));
    }

    #[test]
    fn what_was_not_asked_for_is_garbled() {
        let keys = [key(1), key(2)];
        let with = |from: &str, to: &str| String::from_utf8(block(1)).unwrap().replace(from, to).into_bytes();
        for text in [
            block(3),
            with(" 0 22", " 0 23"),
            with(" 0 22", " 1 22"),
            with("VALUE", "VALVE"),
            with("b\r\n", "bb\r"),
            b"STORED\r\n".to_vec(),
            b"NOT_STORED\r\n".to_vec(),
        ] {
            assert_eq!(read(&keys, &text), Err(Unknown::Garbled), "{:?}", text.escape_ascii());
        }
        // Every key has its block.
        assert_eq!(read(&[], b"SERVER_ERROR late\r\n"), Err(Unknown::Garbled));
        assert_eq!(read(&[], &block(1)), Err(Unknown::Garbled));
        assert_eq!(read(&[], b"END\r\n"), Ok(Some((Piece::End(Reply::Miss), 5))));
    }
}
