//! A target of an association: one stream to the gateway for one token, and the datagrams that wait for it.

use super::datagram::WHOLE;
use crate::catalogue::AgentOutcome;
use crate::front::answer::Refusal;
use crate::front::state::UDP_IDLE;
use crate::hop::limits::REMEMBERED;
use crate::hop::tunnel::Opener;
use crate::recorder::Answers;
use parking_lot::Mutex;
use postern_proxy::idle::Idle;
use postern_proxy::reset::Reset;
use postern_proxy::target::Target;
use postern_proxy::tunnel::Tunnel;
use postern_proxy::udp::capsule::{Decoder, MAX_HEAD, MAX_PAYLOAD, encode};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum bytes of capsules that wait for the gateway, unless one capsule alone has more.
const KEPT: usize = 64 << 10;
/// Maximum number of datagrams that wait for the gateway.
const KEPT_DATAGRAMS: usize = 64;
/// Size of a read from the gateway, in bytes.
const READ: usize = 16 << 10;

/// A target, and what waits for its stream.
pub(super) struct Flow {
    target: Target,
    /// Begin of each answer: the header with the target's address as the program wrote it.
    header: Vec<u8>,
    /// The association's socket, and the program's.
    path: (Arc<UdpSocket>, SocketAddr),
    answers: Arc<Answers>,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

struct Waiting {
    capsules: Vec<u8>,
    datagrams: usize,
    /// Time of the last datagram in either direction.
    moved: Instant,
    /// `true` once the gateway has opened the stream.
    is_open: bool,
}

/// The end of a flow.
pub(super) struct Ended {
    pub(super) flow: Arc<Flow>,
    /// Time before which no further stream may be opened to the target.
    pub(super) until: Instant,
    pub(super) refusal: Option<Refusal>,
}

impl Flow {
    /// Creates a flow to `target`, which the program wrote as `address`.
    pub(super) fn new(
        (target, address): (Target, &[u8]),
        path: (Arc<UdpSocket>, SocketAddr),
        answers: &Arc<Answers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            header: [&WHOLE, address].concat(),
            path,
            answers: Arc::clone(answers),
            waiting: Mutex::new(Waiting {
                capsules: Vec::new(),
                datagrams: 0,
                moved: Instant::now(),
                is_open: false,
            }),
            arrived: Notify::new(),
        })
    }

    /// Adds a datagram to those that wait, or drops it if they are too many.
    pub(super) fn add(&self, payload: &[u8]) {
        let mut waiting = self.waiting.lock();
        let has_room =
            waiting.datagrams < KEPT_DATAGRAMS && waiting.capsules.len() + MAX_HEAD + payload.len() <= KEPT;
        if !has_room && waiting.datagrams > 0 {
            return self.answers.udp_dropped(1);
        }
        encode(payload, &mut waiting.capsules);
        waiting.datagrams += 1;
        waiting.moved = Instant::now();
        drop(waiting);
        self.arrived.notify_one();
    }

    pub(super) fn moved(&self) -> Instant {
        self.waiting.lock().moved
    }

    pub(super) fn is_open(&self) -> bool {
        self.waiting.lock().is_open
    }

    pub(super) async fn run(self: Arc<Self>, opener: Arc<Opener>) -> Ended {
        match opener.open(&self.target).await {
            Ok(tunnel) => {
                self.answers.count(AgentOutcome::Opened);
                let _open = self.answers.udp_opened();
                self.waiting.lock().is_open = true;
                let opened = Instant::now();
                let received = tunnel.received();
                received.keep_taking(self.relay(tunnel)).await;
                opener.failed.udp_ended(&self.target, opened.into_std());
                Ended { until: opened + REMEMBERED, refusal: None, flow: self }
            }
            Err(error) => {
                let refusal = Refusal::from(error);
                self.answers.count(refusal.outcome());
                Ended { until: Instant::now() + REMEMBERED, refusal: Some(refusal), flow: self }
            }
        }
    }

    async fn relay(&self, tunnel: Tunnel) {
        let (mut reader, mut writer) = split(tunnel);
        let relaying = async {
            tokio::select! {
                ended = self.send(&mut writer) => ended,
                ended = self.receive(&mut reader) => ended,
            }
        };
        let ended = Idle::new(UDP_IDLE).during(|| self.moved(), relaying).await;
        if let Some(Ok(true)) = ended {
            reader.unsplit(writer).reset_as_malformed();
        }
    }

    /// Sends the program's datagrams to the gateway, as fast as it takes them.
    async fn send(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<bool> {
        loop {
            let capsules = {
                let mut waiting = self.waiting.lock();
                waiting.datagrams = 0;
                std::mem::take(&mut waiting.capsules)
            };
            if capsules.is_empty() {
                self.arrived.notified().await;
                continue;
            }
            writer.write_all(&capsules).await?;
            writer.flush().await?;
        }
    }

    /// Sends the target's datagrams to the program until the gateway ends the stream; returns true if the stream is malformed.
    async fn receive(&self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        let (mut decoder, mut room) = (Decoder::new(MAX_PAYLOAD), vec![0; READ]);
        let (mut answer, (socket, program)) = (self.header.clone(), &self.path);
        loop {
            let read = reader.read(&mut room).await?;
            let mut input = &room[..read];
            if read == 0 {
                return Ok(!decoder.is_between());
            }
            loop {
                let payload = match decoder.next(&mut input) {
                    Ok(Some(payload)) => payload,
                    Ok(None) => break,
                    Err(_) => return Ok(true),
                };
                answer.truncate(self.header.len());
                answer.extend_from_slice(payload);
                self.waiting.lock().moved = Instant::now();
                if socket.send_to(&answer, program).await.is_err() {
                    self.answers.udp_dropped(1); // with its header it is longer than a packet
                }
            }
        }
    }
}

/// Counts what was never sent.
impl Drop for Flow {
    fn drop(&mut self) {
        self.answers.udp_dropped(self.waiting.get_mut().datagrams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    async fn flow() -> Arc<Flow> {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let program = socket.local_addr().unwrap();
        let target = Target::parse("target.example:53", None).unwrap();
        Flow::new((target, &[3, 1, b'x', 0, 53]), (socket, program), &Arc::new(Answers::new()))
    }

    fn waiting(flow: &Flow) -> (usize, usize) {
        let waiting = flow.waiting.lock();
        (waiting.datagrams, waiting.capsules.len())
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_number_and_in_bytes_but_for_one_datagram() {
        for (size, datagrams, bytes) in [
            (0, KEPT_DATAGRAMS, 3 * KEPT_DATAGRAMS),
            (1200, 54, 54 * 1204),
            (40_000, 1, 40_006),
            (65_500, 1, 65_506),
        ] {
            let flow = flow().await;
            (0..200).for_each(|_| flow.add(&vec![7; size]));
            assert_eq!(waiting(&flow), (datagrams, bytes), "{size}");
        }
    }

    #[tokio::test]
    async fn a_gateway_that_takes_nothing_loses_datagrams_and_goes_on_with_whole_ones() {
        let (flow, (mut near, mut far)) = (flow().await, duplex(2000));
        let sender = Arc::clone(&flow);
        let sending = tokio::spawn(async move { sender.send(&mut near).await.is_ok() });
        for _ in 0..1000 {
            flow.add(&[7; 1200]);
            tokio::task::yield_now().await;
            assert!(waiting(&flow).1 <= KEPT);
        }
        let (mut decoder, mut room, mut found) = (Decoder::new(MAX_PAYLOAD), [0; 1000], 0);
        while found < 100 {
            let read = far.read(&mut room).await.unwrap();
            let mut input = &room[..read];
            while let Ok(Some(payload)) = decoder.next(&mut input) {
                assert_eq!(payload, [7; 1200]);
                found += 1;
                flow.add(&[7; 1200]);
            }
        }
        drop(far);
        flow.add(b"to nobody");
        assert!(!sending.await.unwrap());
    }

    #[tokio::test]
    async fn answers_carry_the_programs_form_of_the_address_and_malformed_ones_end_the_stream() {
        let (flow, (mut near, mut far)) = (flow().await, duplex(2000));
        let mut stream = Vec::new();
        encode(b"one", &mut stream);
        stream.extend([0, 0]); // a datagram without a context
        far.write_all(&stream).await.unwrap();
        assert!(matches!(flow.receive(&mut near).await, Ok(true)));
        let (mut room, (socket, _)) = ([0; 32], &flow.path);
        let length = socket.recv(&mut room).await.unwrap();
        assert_eq!(&room[..length], b"\0\0\0\x03\x01x\0\x35one");
        far.write_all(&[0, 9]).await.unwrap();
        drop(far);
        assert!(matches!(flow.receive(&mut near).await, Ok(true)), "it is cut off");
    }
}
