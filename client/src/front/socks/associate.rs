//! UDP ASSOCIATE (RFC 1928, sections 4, 6 and 7): a UDP socket for one program, while its TCP connection is open.
//!
//! Each target is a [`Flow`]. Targets at once are limited for an association, and each has a place like a connection, of the half that
//! UDP may have; datagrams that find no room are dropped, as UDP is.

use super::datagram::Datagram;
use super::flow::{Ended, Flow};
use crate::catalogue::AgentOutcome;
use crate::front::own_pages::canonical;
use crate::front::state::{AgentState, UdpPlace};
use postern_daemon::exchange::Exchange;
use postern_daemon::places::Place;
use postern_daemon::serve::Endpoint;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Longest datagram of a program, with its header.
const LONGEST: usize = 1 << 16;
/// Time for which datagrams to a target are dropped if there was no place for it.
const FULL: Duration = Duration::from_secs(1);

/// The socket of a program, and the targets that it sends to.
pub(super) struct Association<'a> {
    state: &'a AgentState,
    socket: Arc<UdpSocket>,
    /// Address of the TCP connection's client, with the port of UDP that it announced, or 0.
    announced: SocketAddr,
    /// Address of the program's socket, once known.
    program: Option<SocketAddr>,
    /// By the address as the program writes it.
    targets: HashMap<Box<[u8]>, Slot>,
    flows: JoinSet<Ended>,
    /// The association's own place counts while it has targets.
    own: Option<UdpPlace>,
}

enum Slot {
    Open(Arc<Flow>, AbortHandle),
    /// Datagrams are dropped until this time.
    Shut(Instant),
}

impl<'a> Association<'a> {
    /// Binds a socket to the local address of the program's connection.
    pub(super) async fn bind(stream: &TcpStream, port: u16, state: &'a AgentState) -> io::Result<Self> {
        let (mut local, mut announced) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
        local.set_port(0);
        announced.set_port(port);
        let socket = Arc::new(UdpSocket::bind(local).await?);
        let (targets, flows) = (HashMap::new(), JoinSet::new());
        Ok(Self { state, socket, announced, program: None, targets, flows, own: None })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Relays datagrams until the connection ends, or a drain comes and no stream is left. While it has no target, another
    /// connection may take the place: a program that vanished would otherwise hold it for ever.
    pub(super) async fn run(mut self, mut stream: TcpStream, mut place: Place, exchange: Exchange) {
        let (mut room, mut unread, shutdown) = (vec![0; LONGEST], [0; 64], &self.state.shutdown);
        let mut is_draining = false;
        while !is_draining || !self.flows.is_empty() {
            if self.flows.is_empty() {
                self.own = None;
                place.release(&exchange);
            }
            tokio::select! {
                biased; // a datagram opens nothing for an association that has been displaced
                () = exchange.displaced() => return,
                read = stream.read(&mut unread) => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                }
                () = shutdown.draining(), if !is_draining => is_draining = true,
                Some(ended) = self.flows.join_next() => {
                    if let Ok(ended) = ended {
                        self.end(ended);
                    }
                }
                received = self.socket.recv_from(&mut room) => match received {
                    Ok((length, from)) => {
                        if self.take(&room[..length], from, &mut place).is_none() {
                            self.state.answers.udp_dropped(1);
                        }
                    }
                    // Windows reports an answer that the program's machine refused.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                    Err(_) => return,
                },
            }
        }
    }

    /// Passes a datagram to the flow of its target; `None` if it is dropped.
    fn take(&mut self, bytes: &[u8], from: SocketAddr, place: &mut Place) -> Option<()> {
        let datagram = Datagram::parse(bytes).filter(|_| self.is_expected(from))?;
        self.program = Some(from);
        match self.targets.get(datagram.address) {
            Some(Slot::Open(flow, _)) => {
                flow.add(datagram.payload);
                return Some(());
            }
            Some(Slot::Shut(until)) if Instant::now() < *until => return None,
            _ if self.state.shutdown.is_draining() => return None,
            _ => {}
        }
        self.targets.remove(datagram.address);
        place.keep();
        let Some(places) = self.places() else {
            self.state.count(AgentOutcome::TooMany);
            if self.targets.len() < self.state.limit.udp_targets() {
                self.targets.insert(datagram.address.into(), Slot::Shut(Instant::now() + FULL));
            }
            return None;
        };
        self.make_room()?;
        let address = datagram.address.into();
        let opened = self.open(datagram, from, places);
        self.targets.insert(address, opened);
        Some(())
    }

    /// Returns `true` for the program's socket: the first one at the address of its connection, with the port that it announced.
    fn is_expected(&self, from: SocketAddr) -> bool {
        match self.program {
            Some(program) => from == program,
            None => {
                let has_port = [0, from.port()].contains(&self.announced.port());
                has_port && from.ip() == self.announced.ip()
            }
        }
    }

    /// Begins a flow with its first datagram.
    fn open(
        &mut self,
        Datagram { address, target, payload }: Datagram<'_>,
        from: SocketAddr,
        places: (UdpPlace, Place),
    ) -> Slot {
        let path = (Arc::clone(&self.socket), from);
        let flow = Flow::new((target, address), path, &self.state.answers);
        flow.add(payload);
        let running = Arc::clone(&flow).run(Arc::clone(&self.state.opener));
        let running = async move {
            let _places = places;
            running.await
        };
        let task = self.flows.spawn(self.state.shutdown.tracker().track_future(running));
        Slot::Open(flow, task)
    }

    /// Frees a slot: ends the target that was silent for longest if there are too many. `None` if all are being opened, whose
    /// tokens may have been sent already, or if none is allowed.
    fn make_room(&mut self) -> Option<()> {
        let most = self.state.limit.udp_targets();
        while most > 0 && self.targets.len() >= most {
            let silence = |slot: &Slot| match slot {
                Slot::Shut(until) => Some((false, *until)),
                Slot::Open(flow, _) => flow.is_open().then(|| (true, flow.moved())),
            };
            let silences = self.targets.iter().filter_map(|(address, slot)| Some((silence(slot)?, address)));
            let silent = silences.min_by_key(|(silence, _)| *silence)?.1.clone();
            if let Some(Slot::Open(_, task)) = self.targets.remove(&silent) {
                task.abort();
            }
        }
        (most > 0).then_some(())
    }

    /// Takes a place for a target, which no connection can take from it.
    fn places(&mut self) -> Option<(UdpPlace, Place)> {
        let AgentState { places, udp_places, limit, .. } = self.state;
        if self.own.is_none() {
            self.own = Some(udp_places.take(limit)?);
        }
        let of_udp = udp_places.take(limit)?;
        let taken = self
            .state
            .with_limits(|limits| places.take_for(None, limits.bounds, &Exchange::new(limits.patience)));
        taken.ok().map(|mut place| {
            place.keep();
            (of_udp, place)
        })
    }

    fn end(&mut self, Ended { flow, until, refusal }: Ended) {
        if let Some(refusal) = &refusal {
            self.state.log_failure("UDP stream", refusal);
        }
        // A flow that made room has no slot, and another one may have its address.
        let slot = self
            .targets
            .iter_mut()
            .find(|(_, slot)| matches!(slot, Slot::Open(open, _) if Arc::ptr_eq(open, &flow)));
        if let Some((_, slot)) = slot {
            *slot = Slot::Shut(until);
        }
    }
}
