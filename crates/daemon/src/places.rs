//! Places for connections at a listener. If all are taken, the oldest inactive connection is displaced.
//!
//! Connections that send no request, and those whose clients do not read their answers, cost an attacker nothing. So they hold a
//! place only while there are enough: see [`Exchange::displaced`].

use crate::exchange::Exchange;
use crate::sources::{Source, SourceLimits, Sources};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Polling interval while every connection is active, or while displaced connections end.
const TICK: Duration = Duration::from_millis(2);

/// The places of one listener. Clones share them.
#[derive(Clone)]
pub struct Places {
    taken: Arc<Mutex<Taken>>,
    /// File descriptors of a connection that becomes a tunnel. A stream has one less: it has no socket of its own to the client.
    each: usize,
    /// Connections for which there are descriptors.
    most: usize,
}

/// Descriptors without a limit.
impl Default for Places {
    fn default() -> Self {
        Self { taken: Arc::default(), each: 0, most: usize::MAX }
    }
}

#[derive(Default)]
struct Taken {
    /// Connections that hold a place.
    places: usize,
    /// File descriptors that they may take.
    files: usize,
    /// Open connections without a place: displaced ones, and rejected ones that are sent an answer.
    leaving: usize,
    /// Connections with a place that can be displaced, the oldest first.
    yielding: BTreeMap<u64, (Exchange, usize)>,
    next: u64,
    sources: Sources,
}

#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// Maximum at once, from all sources.
    pub connections: usize,
    pub sources: &'a SourceLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The source has its maximum number of connections.
    Source,
    /// Every connection is active.
    Full,
}

impl Places {
    /// Creates places for connections that take `each` file descriptors as tunnels, of which there are enough for `most`.
    #[must_use]
    pub fn new(most: usize, each: usize) -> Self {
        Self { taken: Arc::default(), each, most }
    }

    /// Takes a place for a new connection from `address`; `exchange` tracks its activity. A connection without an address, as
    /// from a load balancer, counts for no source until it is [attributed](Place::attribute).
    ///
    /// # Errors
    /// The source is at its limit, or no place is free and no connection can be displaced.
    pub fn take(
        &self,
        address: Option<IpAddr>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        let source = address.and_then(|address| bounds.sources.source(address));
        self.take_some(self.each, source, bounds, exchange)
    }

    /// Takes a place for a stream of a connection, whose source is known. It takes a descriptor less.
    pub fn take_for(
        &self,
        source: Option<Source>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        self.take_some(self.each.saturating_sub(1), source, bounds, exchange)
    }

    fn take_some(
        &self,
        files: usize,
        source: Option<Source>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        let mut taken = self.taken.lock();
        if !taken.sources.count(source, bounds.sources) {
            return Err(NoPlace::Source);
        }
        let most_files = self.most.saturating_mul(self.each);
        let mut has_room = taken.places < bounds.connections || taken.displace_oldest();
        while has_room && taken.files + files > most_files {
            has_room = taken.displace_oldest();
        }
        if !has_room {
            source.into_iter().for_each(|source| taken.sources.release(source));
            return Err(NoPlace::Full);
        }
        let id = taken.next;
        taken.next += 1;
        taken.places += 1;
        taken.files += files;
        taken.yielding.insert(id, (exchange.clone(), files));
        drop(taken);
        Ok(Place { places: self.clone(), id, files, source, is_kept: false })
    }

    /// Waits until few displaced connections are left. Await it before accepting a connection: displaced connections hold their
    /// descriptors until their tasks have run, and new ones could arrive faster. Cancel safe.
    pub async fn settled(&self, connections: usize) {
        while self.taken.lock().leaving > self.most_leaving(connections) {
            sleep(TICK).await;
        }
    }

    /// Grants the right to answer a client that got no place. The number of such clients is bounded: above the bound, closing
    /// without an answer is cheaper.
    #[must_use]
    pub fn leave(&self, connections: usize) -> Option<Leaving> {
        let mut taken = self.taken.lock();
        let may = taken.leaving < self.most_leaving(connections);
        taken.leaving += usize::from(may);
        may.then(|| Leaving(self.clone()))
    }

    fn most_leaving(&self, connections: usize) -> usize {
        most_leaving(connections.min(self.most))
    }
}

/// Repeats `take` while every connection is active. Cancel safe.
///
/// # Errors
/// [`NoPlace::Source`].
pub async fn wait(take: impl Fn() -> Result<Place, NoPlace>) -> Result<Place, NoPlace> {
    loop {
        match take() {
            Err(NoPlace::Full) => sleep(TICK).await,
            decided => return decided,
        }
    }
}

impl Taken {
    /// Displaces the oldest inactive connection; `true` if there was one.
    fn displace_oldest(&mut self) -> bool {
        let Some((&id, &(_, files))) = self.yielding.iter().find(|(_, (exchange, _))| exchange.displace())
        else {
            return false;
        };
        self.yielding.remove(&id);
        self.places -= 1;
        self.files -= files;
        self.leaving += 1;
        true
    }
}

/// Returns the maximum of open connections without a place, in addition to this number of connections.
pub(crate) const fn most_leaving(connections: usize) -> usize {
    connections / 8 + 16
}

/// A place at a listener, released on drop.
pub struct Place {
    places: Places,
    id: u64,
    /// File descriptors that it may take.
    files: usize,
    source: Option<Source>,
    is_kept: bool,
}

impl Place {
    /// Counts the connection for `address` from now on, after its load balancer has named its client.
    ///
    /// # Errors
    /// [`NoPlace::Source`]: the caller must release the place.
    pub fn attribute(&mut self, address: IpAddr, limits: &SourceLimits) -> Result<(), NoPlace> {
        let mut taken = self.places.taken.lock();
        let source = limits.source(address);
        if !taken.sources.count(source, limits) {
            return Err(NoPlace::Source);
        }
        let before = std::mem::replace(&mut self.source, source);
        before.into_iter().for_each(|before| taken.sources.release(before));
        Ok(())
    }

    /// Protects the connection from displacement, and stops counting it for its source: its client has paid for it.
    pub fn keep(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.yielding.remove(&self.id).is_some() {
            self.is_kept = true;
            self.source.take().into_iter().for_each(|source| taken.sources.release(source));
        }
    }

    /// Ends the protection of [`Place::keep`]: the connection, whose activity `exchange` tracks, has nothing open any longer.
    pub fn release(&mut self, exchange: &Exchange) {
        if std::mem::take(&mut self.is_kept) {
            let mut taken = self.places.taken.lock();
            self.id = taken.next;
            taken.next += 1;
            taken.yielding.insert(self.id, (exchange.clone(), self.files));
        }
    }

    /// Returns the source that the connection counts for, until it is [kept](Place::keep); `None` if it is exempt or not
    /// attributed.
    pub fn source(&self) -> Option<Source> {
        self.source
    }

    /// `true` if a displaced client may be sent an answer.
    pub fn may_answer(&self, connections: usize) -> bool {
        self.places.taken.lock().leaving < self.places.most_leaving(connections)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if taken.yielding.remove(&self.id).is_some() || self.is_kept {
            taken.places -= 1;
            taken.files -= self.files;
        } else {
            taken.leaving -= 1;
        }
        self.source.take().into_iter().for_each(|source| taken.sources.release(source));
    }
}

/// A client without a place that is sent an answer, counted until dropped.
pub struct Leaving(Places);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.taken.lock().leaving -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Patience;
    use tokio::time::timeout;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn exchange() -> Exchange {
        Exchange::new(Patience { answer: Duration::MAX, stream: Duration::MAX })
    }

    struct Listener {
        places: Places,
        connections: usize,
        sources: SourceLimits,
    }

    impl Listener {
        fn new(connections: usize) -> Self {
            Self { places: Places::default(), connections, sources: SourceLimits::default() }
        }

        fn bounds(&self) -> Bounds<'_> {
            Bounds { connections: self.connections, sources: &self.sources }
        }

        fn come(&self) -> Result<(Place, Exchange), NoPlace> {
            let exchange = exchange();
            self.places.take(Some(HERE), self.bounds(), &exchange).map(|place| (place, exchange))
        }

        /// Returns the numbers of places held, of connections leaving, and of networks counted.
        fn levels(&self) -> (usize, usize, usize) {
            let taken = self.places.taken.lock();
            (taken.places, taken.leaving, taken.sources.len())
        }
    }

    async fn is_displaced(exchange: &Exchange) -> bool {
        timeout(Duration::from_millis(1), exchange.displaced()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_was_kept_and_released_gives_way_as_one_that_came_then() {
        let listener = Listener::new(2);
        let (mut first, released) = listener.come().unwrap();
        first.keep();
        let (_second, older) = listener.come().unwrap();
        first.release(&released);
        first.release(&released); // once
        assert_eq!(listener.levels(), (2, 0, 1));
        let _third = listener.come().unwrap();
        assert!(is_displaced(&older).await && !is_displaced(&released).await);
        let _fourth = listener.come().unwrap();
        assert!(is_displaced(&released).await);
        drop(first);
        assert_eq!(listener.levels().0, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_without_a_request_gives_way() {
        let listener = Listener::new(3);
        let (_first, at_work) = listener.come().unwrap();
        let answering = at_work.begin().await;
        let (second, idle) = listener.come().unwrap();
        let (_third, younger) = listener.come().unwrap();
        let _fourth = listener.come().unwrap();
        assert!(is_displaced(&idle).await && !is_displaced(&younger).await && !is_displaced(&at_work).await);
        assert_eq!(listener.levels(), (3, 1, 1));
        drop(second);
        assert_eq!(listener.levels(), (3, 0, 1));
        drop(answering);
        at_work.flushed();
        let _fifth = listener.come().unwrap();
        assert!(is_displaced(&at_work).await, "it is idle again, and the oldest");
        let late = timeout(Duration::from_secs(1), at_work.begin()).await;
        assert!(late.is_err(), "a request that comes after is not begun");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_gives_way_unless_it_is_streamed() {
        for (streams, gives_way) in [(false, true), (true, false)] {
            let listener = Listener::new(1);
            let (_place, exchange) = listener.come().unwrap();
            let _answering = exchange.begin().await;
            if streams {
                exchange.stream();
            }
            assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
            exchange.set_unread(true);
            assert_eq!(listener.come().is_ok(), gives_way);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_about_to_be_a_tunnel_does_not_give_way() {
        let listener = Listener::new(1);
        let (_place, exchange) = listener.come().unwrap();
        let answering = exchange.begin().await;
        exchange.keep();
        drop(answering);
        exchange.flushed(); // the client may read the answer before the connection's task continues
        assert!(exchange.is_idle());
        assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_never_gives_way_and_is_not_counted_for_its_source() {
        let mut listener = Listener::new(2);
        listener.sources.connections = 1;
        let (mut tunnel, _exchange) = listener.come().unwrap();
        assert_eq!(listener.come().err().unwrap(), NoPlace::Source);
        tunnel.keep();
        let (mut second, _exchange) = listener.come().unwrap();
        second.keep();
        assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
        assert_eq!(listener.levels(), (2, 0, 0), "who is refused is not counted");
        drop((tunnel, second));
        assert_eq!(listener.levels(), (0, 0, 0));
    }

    #[test]
    fn a_connection_that_is_attributed_is_counted_for_its_client_alone() {
        let mut listener = Listener::new(3);
        listener.sources.connections = 1;
        let through_balancer = || listener.places.take(None, listener.bounds(), &exchange()).unwrap();
        let (mut first, mut second) = (through_balancer(), through_balancer());
        assert_eq!(listener.levels(), (2, 0, 0));
        first.attribute(HERE, &listener.sources).unwrap();
        assert_eq!(second.attribute(HERE, &listener.sources), Err(NoPlace::Source));
        assert_eq!(listener.come().err().unwrap(), NoPlace::Source);
        first.attribute([192, 0, 2, 2].into(), &listener.sources).unwrap();
        second.attribute(HERE, &listener.sources).unwrap();
        assert_eq!(listener.levels(), (2, 0, 2));
        drop((first, second));
        assert_eq!(listener.levels(), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_place_that_is_given_back() {
        let listener = Listener::new(1);
        let (mut tunnel, _exchange) = listener.come().unwrap();
        tunnel.keep();
        let exchange = exchange();
        let mut waiting = Box::pin(wait(|| listener.places.take(Some(HERE), listener.bounds(), &exchange)));
        assert!(timeout(Duration::from_secs(60), &mut waiting).await.is_err());
        drop(tunnel);
        waiting.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_places_leave_open_connections_alone() {
        let mut listener = Listener::new(2);
        let (mut first, mut second) = (listener.come().unwrap().0, listener.come().unwrap().0);
        first.keep();
        second.keep();
        listener.connections = 1;
        drop(first);
        assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
        drop(second);
        assert!(listener.come().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_accepted_while_too_many_that_gave_way_are_still_there() {
        let listener = Listener::new(1);
        let mut there: Vec<_> = (0..17).map(|_| listener.come().unwrap()).collect();
        timeout(Duration::from_secs(1), listener.places.settled(1)).await.unwrap();
        there.push(listener.come().unwrap());
        let mut settling = Box::pin(listener.places.settled(1));
        assert!(timeout(Duration::from_secs(60), &mut settling).await.is_err());
        there.remove(0);
        timeout(Duration::from_secs(1), settling).await.unwrap();
    }

    /// A stream has its connection's socket, so it takes one descriptor where a connection takes two.
    #[tokio::test(start_paused = true)]
    async fn scarce_descriptors_are_enough_for_twice_as_many_streams() {
        let places = Places::new(5, 2);
        let listener = Listener { places, ..Listener::new(100) };
        let stream = || {
            let mut place = listener.places.take_for(None, listener.bounds(), &exchange())?;
            place.keep();
            Ok::<_, NoPlace>(place)
        };
        let idle: Vec<_> = (0..5).map(|_| listener.come().unwrap()).collect();
        let mut streams: Vec<_> = std::iter::from_fn(|| stream().ok()).collect();
        assert_eq!((streams.len(), listener.levels().0), (10, 10), "idle connections gave way");
        drop(idle);
        assert_eq!(stream().err().unwrap(), NoPlace::Full);
        streams.pop();
        assert_eq!(listener.come().err().unwrap(), NoPlace::Full, "a connection takes two");
        streams.pop();
        drop(listener.come().unwrap());
        streams.clear();
        assert_eq!(
            (0..9)
                .filter_map(|_| listener.come().ok())
                .map(|(mut place, _)| {
                    place.keep();
                    place
                })
                .collect::<Vec<_>>()
                .len(),
            5
        );
    }

    #[test]
    fn a_bounded_number_of_clients_without_a_place_is_answered() {
        let places = Places::default();
        let answered: Vec<_> = std::iter::from_fn(|| places.leave(80)).take(100).collect();
        assert_eq!(answered.len(), 26);
        drop(answered);
        assert!(places.leave(80).is_some());
    }
}
