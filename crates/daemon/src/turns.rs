//! Fair turns of sources for costly work before anyone has paid for it.
//!
//! A source that sends much waits for its own work, and hardly delays others. One of the waiting requests hands out the turns, so
//! no task is needed, and dropped requests leave nothing behind.

use crate::fair_queue::{FairQueue, Ticket};
use crate::sources::Source;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum number of waiting requests. Above it, the newest request of the source with the most of them is refused.
const MOST_WAITING: usize = 1_024;

pub struct Turns {
    waiting: Mutex<FairQueue<oneshot::Sender<Turn>>>,
    /// Held by the request that hands out the turns.
    giving: tokio::sync::Mutex<()>,
    places: Arc<Semaphore>,
    pace: Pace,
    hashing: RandomState,
}

/// Rate limit on turns: takes one that is about to be handed out, or returns the time to wait.
type Pace = Box<dyn Fn(Instant) -> Result<(), Duration> + Send + Sync>;

/// The right to work for as long as it is held.
pub type Turn = OwnedSemaphorePermit;

/// A request in the queue, removed from the queue on drop.
struct Place<'a> {
    turns: &'a Turns,
    ticket: Ticket,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turns")
    }
}

impl Turns {
    /// Allows `at_once` concurrent turns, each after `pace` has admitted it.
    pub fn new(
        at_once: usize,
        pace: impl Fn(Instant) -> Result<(), Duration> + Send + Sync + 'static,
    ) -> Self {
        Self {
            waiting: Mutex::default(),
            giving: tokio::sync::Mutex::default(),
            places: Arc::new(Semaphore::new(at_once)),
            pace: Box::new(pace),
            hashing: RandomState::new(),
        }
    }

    /// Waits for the next turn of this source. `None` if too many requests wait, and most of them are the source's.
    pub async fn next(&self, source: Option<Source>) -> Option<Turn> {
        let (sender, receiver) = oneshot::channel();
        let _place = self.queue(source, sender)?;
        tokio::select! {
            turn = receiver => turn.ok(),
            never = self.give() => match never {},
        }
    }

    fn queue(&self, source: Option<Source>, sender: oneshot::Sender<Turn>) -> Option<Place<'_>> {
        let caller = source.map_or(0, |source| self.hashing.hash_one(source.widest()));
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST_WAITING {
            waiting.make_room(caller)?;
        }
        let ticket = waiting.push(caller, NonZeroU32::MIN, sender);
        Some(Place { turns: self, ticket })
    }

    /// Hands out turns, one request at a time, until the caller's own turn has come and the caller drops this future.
    async fn give(&self) -> Infallible {
        let _giving = self.giving.lock().await;
        loop {
            if self.waiting.lock().is_empty() {
                return std::future::pending().await;
            }
            let Ok(mut turn) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await; // unreachable: the semaphore is never closed
            };
            while let Err(wait) = (self.pace)(Instant::now()) {
                tokio::time::sleep(wait).await;
            }
            loop {
                let Some(next) = self.waiting.lock().pop() else { break };
                match next.send(turn) {
                    Ok(()) => break,
                    Err(unused) => turn = unused, // the request was dropped just now
                }
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turns.waiting.lock().remove(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SourceLimits;
    use tokio::time::timeout;

    fn source(number: u32) -> Option<Source> {
        SourceLimits::default().source(std::net::IpAddr::V4((0x0a00_0000 + number).into()))
    }

    /// Allows one turn per `pause`.
    fn turns(pause: Duration) -> Arc<Turns> {
        let due = Mutex::new(Instant::now());
        Arc::new(Turns::new(16, move |now| {
            let due = &mut *due.lock();
            let wait = due.saturating_duration_since(now);
            if wait.is_zero() {
                *due = now + pause;
                Ok(())
            } else {
                Err(wait)
            }
        }))
    }

    #[tokio::test]
    async fn a_source_that_comes_last_is_not_behind_the_many_requests_of_another() {
        let turns = turns(Duration::from_millis(50));
        let flood: Vec<_> = (0..500)
            .map(|number| {
                let turns = turns.clone();
                tokio::spawn(async move { turns.next(source(number % 5)).await.is_some() })
            })
            .collect();
        while turns.waiting.lock().len() < 450 {
            tokio::task::yield_now().await; // a few have had their turns
        }
        assert!(timeout(Duration::from_secs(10), turns.next(source(9))).await.unwrap().is_some());
        let served = flood.iter().filter(|request| request.is_finished()).count();
        assert!(served < 100, "{served} of the flood were served before it");
        flood.iter().for_each(|request| request.abort());
        for request in flood {
            let _ = request.await;
        }
        assert_eq!(turns.waiting.lock().len(), 0);
        assert!(timeout(Duration::from_secs(10), turns.next(source(1))).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn where_too_many_wait_the_source_with_the_most_is_refused() {
        let turns = turns(Duration::from_secs(1));
        let request = |number| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.next(source(number)).await.is_some() })
        };
        let flood: Vec<_> = (0..2 * MOST_WAITING).map(|_| request(1)).collect();
        let other = request(2);
        assert!(timeout(Duration::from_secs(30), other).await.unwrap().unwrap());
        let refused = flood.iter().filter(|request| request.is_finished()).count();
        assert!((MOST_WAITING..MOST_WAITING + 100).contains(&refused), "{refused}");
        flood.iter().for_each(|request| request.abort());
    }
}
