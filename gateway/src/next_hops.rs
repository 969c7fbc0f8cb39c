//! Proxies that tunnels go on through: their URLs, which of several takes a tunnel, and which of them are up.
//!
//! What is here is shared by all workers. The connections of HTTP/2 that tunnels share are each worker's own ([`Connections`]), so
//! that a tunnel stays on its thread.

mod checks;
mod choose;
mod connections;
pub(crate) mod examine;
mod health;
mod member;
mod reach;
mod returned;

pub(crate) use checks::Checks;
pub(crate) use connections::Connections;
pub(crate) use member::Member;
pub(crate) use reach::{Dialler, Reached, reach};
pub(crate) use returned::Returned;

use crate::config::NextHop as Config;
use choose::Choice;
use postern_proxy::target::Target;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

/// The next hops of a configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct NextHops(Vec<Arc<NextHop>>);

impl NextHops {
    /// Those of a configuration. One that was there `before` and has not changed stays, with its connections and its health.
    pub(crate) fn new(configured: &[Config], before: &Self) -> Self {
        let next_hop = |config: &Config| match before.0.iter().find(|hop| hop.config == *config) {
            Some(unchanged) => Arc::clone(unchanged),
            None => Arc::new(NextHop::new(config)),
        };
        Self(configured.iter().map(next_hop).collect())
    }

    /// The one of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<NextHop>> {
        self.0.iter().find(|hop| hop.config.name == name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<NextHop>> {
        self.0.iter()
    }
}

/// A proxy that tunnels go on through, or several.
pub(crate) struct NextHop {
    config: Config,
    members: Vec<Arc<Member>>,
}

impl NextHop {
    fn new(config: &Config) -> Self {
        let tls = config.client_tls().map_err(|error| error.to_string());
        let weights = config.weights.iter().copied().map(Some).chain(std::iter::repeat(None));
        let members = config.urls.iter().zip(weights);
        let members = members.map(|(url, weight)| Arc::new(Member::new(url, weight, &tls))).collect();
        Self { config: config.clone(), members }
    }

    #[cfg(test)]
    pub(crate) fn only(config: Config) -> Self {
        Self::new(&config)
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// Its URLs in the order in which a tunnel to `target` tries them: those that are down come last.
    pub(crate) fn order(&self, target: &Target, now: Instant) -> Vec<Arc<Member>> {
        if let [only] = &self.members[..] {
            return vec![Arc::clone(only)];
        }
        let choices: Vec<Choice<'_>> = self.members.iter().map(|member| member.choice(now)).collect();
        let order = choose::order(self.config.balance, &choices, target.host(), rand::random);
        order.into_iter().filter_map(|index| self.members.get(index).map(Arc::clone)).collect()
    }

    /// Whether it leads in a circle at each URL that is up.
    pub(crate) fn leads_in_a_circle(&self) -> bool {
        let mut up = self.members.iter().filter(|member| member.down().is_none()).peekable();
        up.peek().is_some() && up.all(|member| member.is_in_circle())
    }

    /// Whether no URL of it is up, and why one of them is not.
    pub(crate) fn outage(&self) -> Option<String> {
        let reasons: Option<Vec<String>> = self.members.iter().map(|member| member.down()).collect();
        reasons?.into_iter().next()
    }
}

impl fmt::Debug for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NextHop").field(&self.config.name).finish()
    }
}
