//! Whether a memcached of the store drops records when it is full. Started without `-M` it serves like any other until that moment,
//! and then tokens are good again. Only the server itself says how it was started: a router answers in its place.

use crate::state::Core;
use parking_lot::Mutex;
use postern_spend::Backend;
use postern_spend::memcached::{Address, Server};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often the servers are looked at: they may have been started again, in another way.
const EVERY: Duration = Duration::from_secs(60);

/// The addresses of servers that drop records, as of the last look.
#[derive(Default)]
pub(crate) struct Evictions(Mutex<Vec<String>>);

impl Evictions {
    pub(crate) fn found(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Looks now and every minute, at the servers of the present store. Goes on until it is dropped.
    pub(crate) async fn watch(&self, core: &Core) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let backend = core.generation.load().backend.clone();
            let servers = match &*backend {
                Backend::Memcached(memcached) => memcached.servers().await,
                Backend::Embedded(_) => Vec::new(),
            };
            *self.0.lock() = evicting(&servers);
        }
    }
}

fn evicting(servers: &[(Address, Server)]) -> Vec<String> {
    let evicts = |server: &Server| server.memcached.is_some_and(|memory| memory.evicts);
    servers.iter().filter(|(_, server)| evicts(server)).map(|(address, _)| address.to_string()).collect()
}
