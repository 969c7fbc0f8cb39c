//! Next hops, the proxies through which tunnels continue: their URLs, the choice among several, and their health.
//!
//! All workers share this state. The HTTP/2 connections that tunnels share belong to one worker each ([`Connections`]), so a
//! tunnel stays on its thread.

mod checks;
mod member;
mod reach;

pub(crate) use checks::{Checks, examine};
pub(crate) use member::Member;
use member::{Choice, order};
pub(crate) use reach::{Connections, Dialler, Leg};

use crate::config::NextHop as Config;
use crate::error::StartError;
use parking_lot::Mutex;
use postern_proxy::target::{Target, Transport};
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const NO_METHOD: &str =
    "it takes none of our ways to authenticate: set user and password, or remove them";
pub(crate) const WRONG_PASSWORD: &str = "it does not accept the user and the password";

#[derive(Clone, Default)]
pub(crate) struct NextHops(pub(crate) Vec<Arc<NextHop>>);

impl NextHops {
    /// Builds the next hops of a configuration. A next hop that is unchanged since `before` keeps its connections and its
    /// health.
    pub(crate) fn new(configured: &[Config], before: &Self) -> Result<Self, StartError> {
        let next_hop = |config: &Config| match before.0.iter().find(|hop| hop.config == *config) {
            Some(unchanged) => Ok(Arc::clone(unchanged)),
            None => NextHop::new(config).map(Arc::new),
        };
        Ok(Self(configured.iter().map(next_hop).collect::<Result<_, _>>()?))
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<NextHop>> {
        self.0.iter().find(|hop| hop.config.name == name)
    }
}

/// One or several proxies through which tunnels continue.
pub(crate) struct NextHop {
    pub(crate) config: Config,
    members: Vec<Arc<Member>>,
}

impl NextHop {
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let place = format!("the next hop \"{}\"", config.name);
        let tls = config.client_tls().map_err(StartError::tls(place))?;
        let member = |url| Arc::new(Member::new(url, tls.as_ref(), config.udp));
        let members = config.urls.iter().map(member).collect();
        Ok(Self { config: config.clone(), members })
    }

    /// Returns the URLs through which a tunnel may go: for UDP, those that carry it as far as is known.
    fn fit(&self, transport: Transport) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(move |member| transport == Transport::Tcp || member.may_carry_udp())
    }

    /// Returns the URLs in the order in which a tunnel to `target` tries them: those that are down come last, and for UDP those that
    /// lack it are left out.
    pub(crate) fn order(&self, target: &Target, now: Instant) -> Vec<Arc<Member>> {
        let fit: Vec<&Arc<Member>> = self.fit(target.transport()).collect();
        if let [only] = fit[..] {
            return vec![Arc::clone(only)];
        }
        let choices: Vec<Choice<'_>> = fit.iter().map(|member| member.choice(now)).collect();
        let order = order(self.config.balance, &choices, target.host(), rand::random);
        order.into_iter().filter_map(|index| fit.get(index).map(|member| Arc::clone(member))).collect()
    }

    /// Returns `false` if no URL carries it, as far as is known.
    pub(crate) fn may_carry(&self, transport: Transport) -> bool {
        self.fit(transport).next().is_some()
    }

    /// Returns `true` if a URL for `transport` is up, and every such URL that is up leads in a circle.
    pub(crate) fn leads_in_a_circle(&self, transport: Transport) -> bool {
        let mut up = self.fit(transport).filter(|member| member.down().is_none()).peekable();
        up.peek().is_some() && up.all(|member| member.health.lock().is_in_circle)
    }

    /// Returns the reason for the outage of one URL if every URL for `transport` is down.
    pub(crate) fn outage(&self, transport: Transport) -> Option<String> {
        let reasons: Option<Vec<String>> = self.fit(transport).map(|member| member.down()).collect();
        reasons?.into_iter().next()
    }
}

/// Time for which such a target is refused. The next request then spends a token again, and shows if the circle persists.
const STANDS: Duration = Duration::from_secs(60);
/// Maximum number of targets; a new one displaces the oldest.
const MOST: usize = 256;

/// Targets whose tunnels came back from a next hop, as hashes with a key of this process. Rules of several gateways can form a
/// circle for some targets only, which no check detects before a tunnel does. The next request for such a target is refused before
/// its token is read.
#[derive(Default)]
pub(crate) struct Returned {
    hasher: RandomState,
    known: Mutex<VecDeque<(u64, Instant)>>,
    /// `true` once a target was recorded: until then no request takes the lock.
    is_any: AtomicBool,
}

impl Returned {
    pub(crate) fn note(&self, target: &Target, now: Instant) {
        let mut known = self.known.lock();
        known.retain(|(_, since)| now < *since + STANDS);
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back((self.hasher.hash_one(target), now));
        self.is_any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, target: &Target, now: Instant) -> bool {
        let is_it = |of: u64| move |(hash, since): &(u64, Instant)| *hash == of && now < *since + STANDS;
        self.is_any.load(Ordering::Relaxed)
            && self.known.lock().iter().any(is_it(self.hasher.hash_one(target)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_came_back_is_known_for_a_minute_and_among_many() {
        let (returned, now) = (Returned::default(), Instant::now());
        let target = |port: usize| Target::parse(&format!("a.example:{port}"), None).unwrap();
        assert!(!returned.has(&target(1), now));
        returned.note(&target(1), now);
        assert!(returned.has(&target(1), now + STANDS - Duration::from_nanos(1)));
        assert!(!returned.has(&target(1), now + STANDS) && !returned.has(&target(2), now));
        for port in 2..=MOST + 1 {
            returned.note(&target(port), now);
        }
        assert!(!returned.has(&target(1), now) && returned.has(&target(2), now));
        returned.note(&target(1), now + STANDS);
        assert_eq!(returned.known.lock().len(), 1);
    }
}
