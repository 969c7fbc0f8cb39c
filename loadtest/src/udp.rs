//! UDP through streams of HTTP/2 (RFC 9298): a tunnel that packs datagrams into capsules, and the target that takes and sends them. The
//! first byte of a datagram selects what the target does. `d`, a number and a size: it sends so many datagrams of that size in a burst.
//! `u`, a number and an index: it counts them, and answers the last one of so many with `u` and its count. Any other datagram is
//! echoed.

use crate::http2::Stream;
use crate::target::Direction;
use anyhow::{Result, ensure};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use std::collections::HashMap;
use std::io::{self, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::runtime::Builder;

/// Room for datagrams that the kernel joins, and for a read of a stream, in bytes.
const ROOM: usize = 64 << 10;
/// Time after which what is missing of a burst is lost.
const LOST: Duration = Duration::from_millis(500);

/// A tunnel whose writes and reads are datagrams; written ones go out together at a flush.
pub(crate) struct Capsules {
    stream: Stream,
    written: Vec<u8>,
    read: Vec<u8>,
    /// Begin of what was not returned yet.
    at: usize,
}

impl Capsules {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, written: Vec::new(), read: Vec::new(), at: 0 }
    }

    /// Returns the place of the next whole datagram's payload, and the length of its capsule.
    fn next(&self) -> Option<(usize, usize, usize)> {
        let bytes = &self.read[self.at..];
        let first = *bytes.get(1)?;
        let (head, length) = match first >> 6 {
            0 => (2, usize::from(first)),
            1 => (3, usize::from(u16::from_be_bytes([first & 0x3f, *bytes.get(2)?]))),
            _ => (
                5,
                u32::from_be_bytes([first & 0x3f, *bytes.get(2)?, *bytes.get(3)?, *bytes.get(4)?]) as usize,
            ),
        };
        // The first byte of the value is the context.
        (bytes.len() >= head + length).then_some((
            self.at + head + 1,
            length.saturating_sub(1),
            head + length,
        ))
    }
}

impl Read for Capsules {
    /// Reads one datagram; 0 is one without a payload, or the end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some((begin, length, whole)) = self.next() {
                let payload = self.read.get(begin..begin + length).unwrap_or_default();
                let room = buffer.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
                room.copy_from_slice(payload);
                self.at += whole;
                return Ok(length);
            }
            self.read.drain(..std::mem::take(&mut self.at));
            let kept = self.read.len();
            self.read.resize(kept + ROOM, 0);
            let arrived = self.stream.read(&mut self.read[kept..]);
            self.read.truncate(kept + *arrived.as_ref().unwrap_or(&0));
            if arrived? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Write for Capsules {
    fn write(&mut self, payload: &[u8]) -> io::Result<usize> {
        let length = u16::try_from(payload.len() + 1).map_err(io::Error::other)?;
        self.written.push(0);
        match length {
            0..0x40 => self.written.push(length as u8),
            0x40..0x4000 => self.written.extend((length | 0x4000).to_be_bytes()),
            _ => self.written.extend((u32::from(length) | 0x8000_0000).to_be_bytes()),
        }
        self.written.push(0);
        self.written.extend_from_slice(payload);
        Ok(payload.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&std::mem::take(&mut self.written))
    }
}

/// Datagrams of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sent: usize,
    pub(crate) delivered: usize,
}

/// Sends `count` datagrams through a tunnel in bursts; each waits for the end of the one before.
pub(crate) fn transfer(
    tunnel: &mut Capsules,
    direction: Direction,
    (count, size, burst): (usize, usize, usize),
) -> Result<Tally> {
    let (mut tally, mut room) = (Tally::default(), vec![0; ROOM]);
    let number = u16::try_from(burst)?.to_be_bytes();
    tunnel.stream.set_patience(LOST);
    while tally.sent < count {
        tally.sent += burst;
        let expected = match direction {
            Direction::Down => {
                let size = u16::try_from(size)?.to_be_bytes();
                tunnel.write_all(&[b'd', number[0], number[1], size[0], size[1]])?;
                burst
            }
            Direction::Up => {
                let mut datagram = vec![0x5a; size];
                datagram[..3].copy_from_slice(&[b'u', number[0], number[1]]);
                for index in 0..burst {
                    datagram[3..5].copy_from_slice(&u16::try_from(index)?.to_be_bytes());
                    tunnel.write_all(&datagram)?;
                }
                1
            }
        };
        tunnel.flush()?;
        for _ in 0..expected {
            match tunnel.read(&mut room) {
                Ok(0) => anyhow::bail!("the proxy ended the tunnel"),
                Ok(3) if room[0] == b'u' => {
                    tally.delivered += usize::from(u16::from_be_bytes([room[1], room[2]]))
                }
                Ok(_) => tally.delivered += 1,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    ensure!(tally.delivered * 10 >= tally.sent * 9, "{tally:?}: more than a tenth was lost");
    Ok(tally)
}

/// Serves datagrams at `address` for as long as the process runs; returns the address.
pub(crate) fn serve(address: SocketAddr) -> Result<SocketAddr> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let served = async { answer_all(&UdpSocket::from_std(socket)?, &state).await };
            served.await.map_err(|error| eprintln!("the target of UDP failed: {error}"))
        })
    });
    Ok(address)
}

async fn answer_all(socket: &UdpSocket, state: &UdpSocketState) -> io::Result<()> {
    let (mut room, mut counts) = (vec![0; ROOM], HashMap::new());
    loop {
        let mut meta = [RecvMeta::default()];
        let receive = || state.recv(UdpSockRef::from(socket), &mut [IoSliceMut::new(&mut room)], &mut meta);
        match socket.async_io(Interest::READABLE, receive).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue, // a tunnel has ended
            Err(error) => return Err(error),
        }
        let [RecvMeta { addr: from, len, stride, .. }] = meta;
        for datagram in room[..len].chunks(stride.max(1)) {
            let (answer, segment_size) = answer(datagram, counts.entry(from).or_insert(0));
            if answer.is_empty() {
                continue;
            }
            let transmit =
                Transmit { destination: from, ecn: None, contents: &answer, segment_size, src_ip: None };
            let send = || state.try_send(UdpSockRef::from(socket), &transmit);
            let _ = socket.async_io(Interest::WRITABLE, send).await; // the tunnel may have ended
        }
    }
}

/// Returns what the target sends for a datagram, and the size of each datagram of a burst. `count` is its sender's.
fn answer(datagram: &[u8], count: &mut u16) -> (Vec<u8>, Option<usize>) {
    let number =
        |at: usize| datagram.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match datagram.first() {
        Some(b'd') => {
            let (burst, size) = (usize::from(number(1)), usize::from(number(3)));
            (vec![0x5a; burst * size], (burst > 1).then_some(size))
        }
        Some(b'u') => {
            *count += 1;
            let is_last = number(3) + 1 == number(1);
            let bytes =
                if is_last { std::mem::take(count).to_be_bytes() } else { return (Vec::new(), None) };
            (vec![b'u', bytes[0], bytes[1]], None)
        }
        _ => (datagram.to_vec(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_asked_for_and_counted_at_its_last_datagram() {
        let mut count = 0;
        assert_eq!(answer(b"d\x00\x20\x04\xb0", &mut count), (vec![0x5a; 32 * 1200], Some(1200)));
        assert_eq!(answer(b"u\x00\x02\x00\x00", &mut count).0, b"");
        assert_eq!(answer(b"u\x00\x02\x00\x01", &mut count).0, b"u\x00\x02");
        assert_eq!((answer(b"x", &mut count).0, count), (b"x".to_vec(), 0));
    }
}
