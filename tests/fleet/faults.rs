//! Faults of a deployment while tokens are raced for.

use super::driver::{Fleet, PRESENTERS};
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use std::ops::Range;
use std::time::Duration;

/// Time after a fault in which the store may still fail to answer: a gateway recovers within a second.
pub const MARGIN: Duration = Duration::from_secs(1);

/// One thing that goes wrong, and right again.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// All connections through one of the relays are closed.
    Cut,
    /// One of the servers that may fail stops for 50 to 800 ms.
    Freeze,
}

/// The parts of a deployment that can fail.
pub struct Deployment {
    /// In front of the endpoints.
    pub relays: Vec<Relay>,
    pub servers: Vec<Memcached>,
    /// The servers that may fail.
    pub fallible: Range<usize>,
}

impl Deployment {
    pub fn endpoints(&self) -> Vec<String> {
        self.relays.iter().map(Relay::address).collect()
    }

    /// Causes `faults` in a random order, distributed over a race for `tokens`. Its first quarter and its last third
    /// stay quiet.
    pub async fn suffer(&mut self, fleet: &Fleet, tokens: usize, faults: &[Fault]) {
        let presentations = tokens * PRESENTERS;
        let (first, step) = (presentations / 4, presentations * 5 / 12 / faults.len());
        for (index, fault) in fleet.seed.shuffled(faults.to_vec()).into_iter().enumerate() {
            fleet.history.written(first + index * step).await;
            let from = fleet.history.now();
            let what = self.strike(fleet, index, fault).await;
            fleet.history.write_outage(from, MARGIN, &what);
        }
    }

    async fn strike(&mut self, fleet: &Fleet, index: usize, fault: Fault) -> String {
        let draw = |purpose, bound| fleet.seed.draw(purpose, index, bound);
        let server = self.fallible.start + draw("server", self.fallible.len());
        match fault {
            Fault::Cut => {
                let relay = draw("relay", self.relays.len());
                self.relays[relay].cut();
                format!("relay {relay} cut")
            }
            Fault::Freeze => {
                let span = Duration::from_millis(50 + draw("span", 751) as u64);
                self.servers[server].freeze();
                tokio::time::sleep(span).await;
                self.servers[server].thaw();
                format!("server {server} frozen for {span:?}")
            }
        }
    }
}
