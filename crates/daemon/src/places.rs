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
mod tests;
