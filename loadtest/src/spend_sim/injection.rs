//! How a fault changes the network, and how it ends.

use super::deployment::Kind;
use super::fault::{Millis, What};
use super::network::Network;

impl Network {
    pub(crate) fn begin(&mut self, what: &What, lasts: Millis) {
        match what {
            What::Restart { server } => self.stop(*server),
            What::Freeze { server } => self.servers[*server].is_frozen = true,
            What::Cut { server, router } => self.cuts.push((*router, *server)),
            What::Refuse { server } => {
                self.servers[*server].is_refusing = true;
                self.break_off(*server);
            }
            What::Slow { server, by } => self.servers[*server].slower = by * 1_000,
            What::Evict { server, percent } => self.servers[*server].memory.evict(*percent),
            What::Full { server } => self.servers[*server].memory.is_full = true,
            What::Reset { gateway } => self.links_of(*gateway).into_iter().for_each(|link| self.reset(link)),
            What::Hang { gateway } => {
                self.links_of(*gateway).into_iter().for_each(|link| self.links[link].hangs = true);
            }
            What::Stall { gateway } => self.stalled[*gateway] = self.now + lasts * 1_000,
            What::HalfWrite { gateway } => {
                let links = self.links_of(*gateway);
                if !links.is_empty() {
                    let link = links[self.chance.index(links.len())];
                    self.links[link].is_halved = true;
                }
            }
            What::RouterRestart { router } => self.stop_router(*router),
            What::Servers { router, list } => {
                self.routers[*router].plan.list.clone_from(list);
                if self.routers[*router].plan.kind == Kind::Twemproxy {
                    self.stop_router(*router); // it cannot reload
                    self.routers[*router].is_up = true;
                }
            }
            What::Clock { .. } | What::GatewayRestart { .. } => {} // not of the network
        }
    }

    pub(crate) fn heal(&mut self, what: &What) {
        match what {
            What::Restart { server } => self.servers[*server].is_running = true,
            What::Freeze { server } => {
                self.servers[*server].is_frozen = false;
                self.resume(*server, false);
            }
            What::Cut { server, router } => {
                if let Some(index) = self.cuts.iter().position(|cut| *cut == (*router, *server)) {
                    self.cuts.remove(index);
                }
                let is_lost = self.chance.one_in(2);
                self.resume(*server, is_lost);
            }
            What::Refuse { server } => self.servers[*server].is_refusing = false,
            What::Slow { server, .. } => self.servers[*server].slower = 0,
            What::Full { server } => self.servers[*server].memory.is_full = false,
            What::RouterRestart { router } => self.routers[*router].is_up = true,
            What::Reset { .. }
            | What::Hang { .. }
            | What::Stall { .. }
            | What::HalfWrite { .. }
            | What::Evict { .. }
            | What::Clock { .. }
            | What::GatewayRestart { .. }
            | What::Servers { .. } => {}
        }
    }
}
