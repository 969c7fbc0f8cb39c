//! Places for connections at a listener. When all are taken, the oldest connection that does nothing gives way.
//!
//! Connections that bring no request, and those whose clients do not read their answers, cost an attacker nothing. So
//! they hold a place only while there are enough: see [`Exchange::displaced`].

use crate::exchange::Exchange;
use crate::sources::{NoRoom, Source, SourceLimits, Sources};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How often to look for a place while every connection is at work, or for the end of those that gave way.
const TICK: Duration = Duration::from_millis(2);

/// The places of one listener. Clones share them.
#[derive(Clone, Default)]
pub struct Places(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    /// Connections that hold a place.
    places: usize,
    /// Connections without a place whose clients are reading why.
    leaving: usize,
    /// Of those with a place the ones that may give way, the oldest first.
    yielding: BTreeMap<u64, Exchange>,
    next: u64,
    sources: Sources,
}

/// How many connections there may be.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// At once, from all sources.
    pub connections: usize,
    /// From one source.
    pub sources: &'a SourceLimits,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The source has as many connections as it may have.
    Source,
    /// Every connection is at work.
    Full,
}

impl Places {
    /// A place for a new connection from `address`, of which `exchange` knows what it is doing. One without an address, as
    /// from a load balancer, is counted for no source until it is [attributed](Place::attribute).
    ///
    /// # Errors
    /// When there is none, and no connection gives way.
    pub fn take(
        &self,
        address: Option<IpAddr>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        self.take_for(address.and_then(|address| bounds.sources.source(address)), bounds, exchange)
    }

    /// The same for a connection, or a stream of one, whose source is known.
    ///
    /// # Errors
    /// As [`Places::take`].
    pub fn take_for(
        &self,
        source: Option<Source>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        let mut taken = self.0.lock();
        taken.sources.count(source, bounds.sources).map_err(|NoRoom| NoPlace::Source)?;
        if taken.places >= bounds.connections && !taken.displace_oldest() {
            source.into_iter().for_each(|source| taken.sources.release(source));
            return Err(NoPlace::Full);
        }
        let id = taken.next;
        taken.next += 1;
        taken.places += 1;
        taken.yielding.insert(id, exchange.clone());
        drop(taken);
        Ok(Place { places: self.clone(), id, source, is_kept: false })
    }

    /// The same, waiting while every connection is at work.
    ///
    /// # Errors
    /// [`NoPlace::Source`]. Cancel safe.
    pub async fn wait(
        &self,
        address: Option<IpAddr>,
        bounds: Bounds<'_>,
        exchange: &Exchange,
    ) -> Result<Place, NoPlace> {
        self.settled(bounds.connections).await;
        loop {
            match self.take(address, bounds, exchange) {
                Err(NoPlace::Full) => sleep(TICK).await,
                decided => return decided,
            }
        }
    }

    /// To be awaited before a connection is accepted: connections that gave way hold their descriptors until their tasks
    /// have run, and new ones could come faster. Cancel safe.
    pub async fn settled(&self, connections: usize) {
        while self.0.lock().leaving > most_leaving(connections) {
            sleep(TICK).await;
        }
    }

    /// The right to answer a client that got no place. A bounded number have it at once: above it, closing without an
    /// answer is cheaper.
    #[must_use]
    pub fn leave(&self, connections: usize) -> Option<Leaving> {
        let mut taken = self.0.lock();
        let may = taken.may_leave(connections);
        taken.leaving += usize::from(may);
        may.then(|| Leaving(self.clone()))
    }
}

impl Taken {
    /// Whether there was a connection to take a place from.
    fn displace_oldest(&mut self) -> bool {
        let Some(id) = self.yielding.iter().find(|(_, exchange)| exchange.displace()).map(|(&id, _)| id)
        else {
            return false;
        };
        self.yielding.remove(&id);
        self.places -= 1;
        self.leaving += 1;
        true
    }

    fn may_leave(&self, connections: usize) -> bool {
        self.leaving < most_leaving(connections)
    }
}

/// The most clients without a place that read why, beside this number of connections.
pub(crate) const fn most_leaving(connections: usize) -> usize {
    connections / 8 + 16
}

/// A place at a listener, given back when it is dropped.
pub struct Place {
    places: Places,
    id: u64,
    source: Option<Source>,
    is_kept: bool,
}

impl Place {
    /// Counts the connection for `address` from now on: its load balancer has named its client.
    ///
    /// # Errors
    /// [`NoPlace::Source`]: the place is to be given back.
    pub fn attribute(&mut self, address: IpAddr, limits: &SourceLimits) -> Result<(), NoPlace> {
        let mut taken = self.places.0.lock();
        let source = limits.source(address);
        taken.sources.count(source, limits).map_err(|NoRoom| NoPlace::Source)?;
        let before = std::mem::replace(&mut self.source, source);
        before.into_iter().for_each(|before| taken.sources.release(before));
        Ok(())
    }

    /// From now on this connection never gives way, and is not counted for its source: its client has paid for it.
    pub fn keep(&mut self) {
        let mut taken = self.places.0.lock();
        if taken.yielding.remove(&self.id).is_some() {
            self.is_kept = true;
            self.source.take().into_iter().for_each(|source| taken.sources.release(source));
        }
    }

    /// What the connection is counted under, until it is [kept](Place::keep); none if it is exempt.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.source
    }

    /// Whether a client whose place was taken may read why.
    #[must_use]
    pub fn may_answer(&self, connections: usize) -> bool {
        self.places.0.lock().may_leave(connections)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        if taken.yielding.remove(&self.id).is_some() || self.is_kept {
            taken.places -= 1;
        } else {
            taken.leaving -= 1;
        }
        self.source.take().into_iter().for_each(|source| taken.sources.release(source));
    }
}

/// A client without a place that reads why, until this is dropped.
pub struct Leaving(Places);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.0.lock().leaving -= 1;
    }
}

// Addresses of clients are in no log.

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places")
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaving")
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

        /// How many hold a place, how many are leaving, how many sources there are counts of.
        fn levels(&self) -> (usize, usize, usize) {
            let taken = self.places.0.lock();
            (taken.places, taken.leaving, taken.sources.len())
        }
    }

    async fn is_displaced(exchange: &Exchange) -> bool {
        timeout(Duration::from_millis(1), exchange.displaced()).await.is_ok()
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
            assert_eq!(listener.come().unwrap_err(), NoPlace::Full);
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
        exchange.flushed(); // its client may read the answer before its task goes on
        assert!(exchange.is_idle());
        assert_eq!(listener.come().unwrap_err(), NoPlace::Full);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_never_gives_way_and_is_not_counted_for_its_source() {
        let mut listener = Listener::new(2);
        listener.sources.connections = 1;
        let (mut tunnel, _exchange) = listener.come().unwrap();
        assert_eq!(listener.come().unwrap_err(), NoPlace::Source);
        tunnel.keep();
        let (mut second, _exchange) = listener.come().unwrap();
        second.keep();
        assert_eq!(listener.come().unwrap_err(), NoPlace::Full);
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
        assert_eq!(listener.come().unwrap_err(), NoPlace::Source);
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
        let mut waiting = Box::pin(listener.places.wait(Some(HERE), listener.bounds(), &exchange));
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
        assert_eq!(listener.come().unwrap_err(), NoPlace::Full);
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

    #[test]
    fn a_bounded_number_of_clients_without_a_place_is_answered() {
        let places = Places::default();
        let answered: Vec<_> = std::iter::from_fn(|| places.leave(80)).take(100).collect();
        assert_eq!(answered.len(), 26);
        drop(answered);
        assert!(places.leave(80).is_some());
    }
}
