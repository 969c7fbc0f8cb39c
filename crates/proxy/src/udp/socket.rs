//! A UDP socket that sends to one address and receives from no other.

use super::capsule::encode;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};
use tokio::net::UdpSocket;

/// Room of one receive: the kernel joins packets of one size up to this many bytes.
const ROOM: usize = 64 << 10;
/// Receives of one system call.
const RECEIVES: usize = 8;
/// Longest burst of one send, in bytes: the kernel treats it as one packet of IPv4.
const MOST_SENT: usize = 65_507;

/// Packets that a new socket may have queued before it was connected. With more, somebody floods its port.
const QUEUED: usize = 1024;

#[derive(Debug)]
pub(super) struct Bursts {
    received: Box<[u8]>,
    sent: Vec<u8>,
}

impl Bursts {
    pub(super) fn new() -> Self {
        Self { received: vec![0; ROOM * RECEIVES].into_boxed_slice(), sent: Vec::with_capacity(ROOM) }
    }
}

/// Keeps GRO of UDP switched on in the kernel: when the first socket with it opens or the last one closes, the kernel rewrites its
/// code and interrupts all processors, half the cost of a tunnel. One of IPv6 counts for both families.
///
/// Its state serves no other socket: [`UdpSocketState::new`] sets the socket's options as well, and a state gives up GSO for good once
/// the path to one target refuses it.
static GRO: LazyLock<Option<Socket>> = LazyLock::new(|| {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).ok()?;
    UdpSocketState::new(UdpSockRef::from(&socket)).ok()?;
    Some(socket)
});

type Failing = Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>;

/// A UDP socket connected to a target, whose address `Debug` does not show.
pub struct Datagrams {
    socket: Arc<UdpSocket>,
    /// Wait for an error: one that the network reports wakes neither readers nor writers.
    failing: Option<Failing>,
    /// Features of the kernel. It also set the socket not to fragment (RFC 9298, section 5).
    state: UdpSocketState,
    to: SocketAddr,
}

impl Datagrams {
    /// Creates a socket that is connected to `to`, from the local address `from` or one that the system chooses. Sends nothing.
    ///
    /// # Errors
    /// The address cannot be reached from this machine, or the local one cannot be used.
    pub fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        socket.connect(&to.into())?;
        // Before it was connected, packets of any address were queued. The target was sent none, so these are no answers.
        if (0..QUEUED).all(|_| socket.recv(&mut [MaybeUninit::uninit()]).is_ok()) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        LazyLock::force(&GRO);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        Ok(Self { socket, failing: None, state, to })
    }

    /// Becomes ready when the socket takes a datagram.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_send_ready(cx)
    }

    /// Becomes ready when the system reports that the target cannot be reached.
    pub(super) fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let failing = self.failing.get_or_insert_with(|| {
                let socket = Arc::clone(&self.socket);
                Box::pin(async move { socket.ready(Interest::ERROR).await })
            });
            if let Err(error) = ready!(failing.as_mut().poll(cx)) {
                return Poll::Ready(error);
            }
            self.failing = None;
            match self.socket.take_error() {
                Err(error) => return Poll::Ready(error),
                Ok(Some(error)) if is_final(&error) => return Poll::Ready(error),
                // A send may have reported it already. The socket waits for the next one.
                Ok(_) => {
                    _ = self.socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()))
                }
            }
        }
    }

    /// Begins a burst of datagrams, in the buffers of this thread.
    pub(super) fn burst<'a>(&'a self, bursts: &'a mut Bursts) -> Burst<'a> {
        bursts.sent.clear();
        Burst {
            to: self,
            bytes: &mut bursts.sent,
            segment: 0,
            count: 0,
            is_closed: false,
            sends: 0,
            tally: Tally::default(),
        }
    }

    /// Sends one datagram, or datagrams of `segment` bytes each, the last of which may be shorter.
    fn send(&self, contents: &[u8], segment_size: Option<usize>) -> io::Result<()> {
        let transmit = Transmit { destination: self.to, ecn: None, contents, segment_size, src_ip: None };
        let send = || self.state.try_send(UdpSockRef::from(&*self.socket), &transmit);
        self.socket.try_io(Interest::WRITABLE, send)
    }

    /// Receives a burst: appends a capsule for each datagram to `capsules`, and calls `each` with the length of its payload.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        bursts: &mut Bursts,
        capsules: &mut Vec<u8>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            let mut metas = [RecvMeta::default(); RECEIVES];
            let mut chunks = bursts.received.chunks_exact_mut(ROOM);
            // `ROOM * RECEIVES` bytes have as many chunks; an empty one would receive nothing.
            let mut rooms: [IoSliceMut<'_>; RECEIVES] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let receive = || self.state.recv(UdpSockRef::from(&*self.socket), &mut rooms, &mut metas);
            let received = match self.socket.try_io(Interest::READABLE, receive) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            for (meta, room) in metas.iter().zip(bursts.received.chunks_exact(ROOM)).take(received) {
                let joined = &room[..meta.len.min(ROOM)];
                let mut one = |payload: &[u8]| {
                    encode(payload, capsules);
                    each(payload.len(), capsules);
                };
                if joined.is_empty() {
                    one(joined);
                } else {
                    joined.chunks(meta.stride.max(1)).for_each(one);
                }
            }
            return Poll::Ready(Ok(()));
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
}

/// Datagrams of one length, the last of which may be shorter: the kernel takes them in one call.
pub(super) struct Burst<'a> {
    to: &'a Datagrams,
    bytes: &'a mut Vec<u8>,
    segment: usize,
    count: usize,
    /// `true` after a shorter datagram.
    is_closed: bool,
    /// System calls so far.
    pub(super) sends: usize,
    tally: Tally,
}

impl Burst<'_> {
    /// Adds a datagram, and sends those before it if it does not fit to them.
    ///
    /// # Errors
    /// The target cannot be reached any longer.
    pub(super) fn add(&mut self, payload: &[u8]) -> io::Result<()> {
        let fits = self.count > 0
            && !self.is_closed
            && (1..=self.segment).contains(&payload.len())
            && self.count < self.to.state.max_gso_segments()
            && self.bytes.len() + payload.len() <= MOST_SENT;
        if !fits {
            self.send()?;
            self.segment = payload.len();
        }
        self.is_closed = payload.len() < self.segment;
        self.bytes.extend_from_slice(payload);
        self.count += 1;
        Ok(())
    }

    /// Sends the last datagrams, and returns what became of all of them.
    ///
    /// # Errors
    /// The target cannot be reached any longer.
    pub(super) fn end(mut self) -> io::Result<Tally> {
        self.send()?;
        Ok(self.tally)
    }

    fn send(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let sent = self.to.send(self.bytes, (self.count > 1).then_some(self.segment));
        self.sends += 1;
        match sent {
            // The path takes no packet of the largest size (RFC 9298, section 5); it may take the last one.
            Err(error)
                if self.count > 1 && !is_final(&error) && error.kind() != io::ErrorKind::WouldBlock =>
            {
                for payload in self.bytes.chunks(self.segment) {
                    self.sends += 1;
                    self.tally.count(self.to.send(payload, None), 1, payload.len())?;
                }
            }
            sent => self.tally.count(sent, self.count, self.bytes.len())?,
        }
        self.bytes.clear();
        self.count = 0;
        Ok(())
    }
}

impl Tally {
    /// Counts datagrams that were sent or, if the socket is full or the path does not take them, dropped.
    ///
    /// # Errors
    /// The target cannot be reached any longer.
    fn count(&mut self, sent: io::Result<()>, datagrams: usize, bytes: usize) -> io::Result<()> {
        match sent {
            Ok(()) => (self.sent, self.bytes) = (self.sent + datagrams as u64, self.bytes + bytes as u64),
            Err(error) if is_final(&error) => return Err(error),
            Err(_) => self.dropped += datagrams as u64,
        }
        Ok(())
    }
}

/// What Linux makes of ICMP's "no UDP there", "host unknown" and "host isolated", for which the standard library has no kinds.
#[cfg(target_os = "linux")]
const OF_ICMP: [nix::errno::Errno; 3] =
    [nix::errno::Errno::ENOPROTOOPT, nix::errno::Errno::EHOSTDOWN, nix::errno::Errno::ENONET];
#[cfg(not(target_os = "linux"))]
const OF_ICMP: [i32; 0] = [];

/// Returns `true` if the system reports that the target cannot be reached: RFC 9298, section 3.1, ends the stream then.
pub(super) fn is_final(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let is_of_icmp =
        error.raw_os_error().is_some_and(|code| OF_ICMP.iter().any(|known| *known as i32 == code));
    is_of_icmp
        || matches!(
            error.kind(),
            Kind::ConnectionRefused
                | Kind::ConnectionReset
                | Kind::HostUnreachable
                | Kind::NetworkUnreachable
                | Kind::NetworkDown
                | Kind::PermissionDenied
        )
}
