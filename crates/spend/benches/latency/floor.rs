//! The least that a check can cost: the same bytes on one connection, without a store around them. Several callers are
//! as many commands in one write, and the next ones when all replies are there.

use crate::rig::{self, Server};
use crate::{Check, LATENCIES, Turn, WARM_UP, measured};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HEADS: [&[u8]; 2] = [b"get ", b"add "];
const TAILS: [&[u8]; 2] = [b"\r\n", b" 0 2000000000 22\r\nabcdefghijklmnopqrstuv\r\n"];
const REPLIES: [&[u8]; 2] = [b"END\r\n", b"STORED\r\n"];

/// The commands of all callers, made once; only the names in them are rewritten.
struct Commands {
    text: [Vec<u8>; 2],
    replies: [Vec<u8>; 2],
    /// The commands to send, by index.
    sent: std::ops::RangeInclusive<usize>,
    callers: usize,
    /// The end of the first name in each command, and the distance to the next.
    ends: [(usize, usize); 2],
    done: u64,
}

impl Commands {
    /// `joined`: one `get` of all names instead of one each.
    fn new(check: Check, callers: usize, joined: bool) -> Self {
        let name = rig::next_name();
        let mut text = [0, 1].map(|kind| [HEADS[kind], name.as_bytes(), TAILS[kind]].concat());
        let mut ends = [0, 1].map(|kind| (HEADS[kind].len() + name.len(), text[kind].len()));
        let mut replies = REPLIES.map(|reply| reply.repeat(callers));
        if joined {
            let further = [b" ", name.as_bytes()].concat();
            ends[0].1 = further.len();
            text[0] = [b"get", &*further.repeat(callers), b"\r\n"].concat();
            replies[0] = REPLIES[0].to_vec();
        } else {
            text[0] = text[0].repeat(callers);
        }
        text[1] = text[1].repeat(callers);
        let sent = if check == Check::Spend { 1..=1 } else { 0..=1 };
        Self { text, replies, sent, callers, ends, done: 0 }
    }

    /// Gives each command another name: the last 16 digits of it.
    fn rename(&mut self) {
        for caller in 0..self.callers {
            let number = NUMBER.get();
            NUMBER.set(number + 1);
            for (text, (first, step)) in self.text.iter_mut().zip(self.ends) {
                let end = first + caller * step;
                let mut rest = number;
                for digit in text[end - 16..end].iter_mut().rev() {
                    *digit = b'a' + (rest & 15) as u8;
                    rest >>= 4;
                }
            }
        }
    }

    fn finished(&mut self, since: Instant) {
        let took = since.elapsed().as_nanos() as u64;
        LATENCIES.with_borrow_mut(|latencies| latencies.saturating_record_n(took, self.callers as u64));
        self.done += 1;
    }

    fn each(&self) -> Vec<u64> {
        vec![self.done; self.callers]
    }
}

thread_local! {
    static NUMBER: std::cell::Cell<u64> = std::cell::Cell::new(rand::random::<u64>() >> 1);
}

/// No runtime: a write and a read.
pub(crate) fn blocking(server: &Server, check: Check, callers: usize, length: Duration) -> Turn {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut run = |length: Duration| {
        let mut commands = Commands::new(check, callers, false);
        let end = Instant::now() + length;
        while Instant::now() < end {
            commands.rename();
            let since = Instant::now();
            for kind in commands.sent.clone() {
                stream.write_all(&commands.text[kind]).unwrap();
                let mut reply = vec![0; commands.replies[kind].len()];
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(reply, commands.replies[kind]);
            }
            commands.finished(since);
        }
        commands.each()
    };
    run(WARM_UP);
    rig::runtime().block_on(measured(server, async || run(length)))
}

/// On the runtime that the store uses.
pub(crate) fn tokio(server: &Server, check: Check, callers: usize, length: Duration) -> Turn {
    on_tokio(server, check, callers, length, false)
}

/// The same with one `get` for the names of all callers.
pub(crate) fn tokio_joined(server: &Server, check: Check, callers: usize, length: Duration) -> Turn {
    on_tokio(server, check, callers, length, true)
}

fn on_tokio(server: &Server, check: Check, callers: usize, length: Duration, joined: bool) -> Turn {
    rig::runtime().block_on(async {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut commands = Commands::new(check, callers, joined);
        asynchronous(&mut stream, &mut commands, WARM_UP).await;
        commands.done = 0;
        measured(server, async || asynchronous(&mut stream, &mut commands, length).await).await
    })
}

async fn asynchronous(
    stream: &mut tokio::net::TcpStream,
    commands: &mut Commands,
    length: Duration,
) -> Vec<u64> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        commands.rename();
        let since = Instant::now();
        for kind in commands.sent.clone() {
            stream.write_all(&commands.text[kind]).await.unwrap();
            let mut reply = vec![0; commands.replies[kind].len()];
            stream.read_exact(&mut reply).await.unwrap();
            assert_eq!(reply, commands.replies[kind]);
        }
        commands.finished(since);
    }
    commands.each()
}
