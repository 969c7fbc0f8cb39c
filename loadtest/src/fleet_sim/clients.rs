//! Who presents what, when and where.

use super::counts::Ended;
use super::fleet::RACERS;
use super::flight::Stage;
use super::gateway::{permits, takes};
use super::queue::{MILLISECOND, Nanos, SECOND};
use super::sim::{Event, Sim, Token};
use super::stores::{Name, REWRITTEN};

/// Presentations of one race come within so much.
const RACE: Nanos = 2 * MILLISECOND;

impl Sim {
    pub(super) fn arrives(&mut self) {
        let now = self.queue.now();
        if now >= self.arrivals_end {
            return;
        }
        let wait = self.random.wait(1e9 / self.workload.rate as f64);
        self.queue.at(now + wait, Event::Arrives);
        if !self.tokens.is_empty() && self.random.chance(self.workload.replays) {
            let token = self.random.below(self.tokens.len() as u64) as u32;
            return self.present_anywhere(token);
        }
        let Some(gateway) = self.live_gateway(None) else { return };
        let second = now / SECOND;
        while self.minted.len() <= second as usize {
            self.minted.push(self.tokens.len());
        }
        let last = self.fleet.keys.len() - 1;
        let key = self.fleet.keys.iter().position(|key| second < key.minted_until).unwrap_or(last);
        let token = self.tokens.len() as u32;
        let region = self.gateways[gateway].region as u8;
        self.tokens.push(Token { region, key: key as u8, presented: 0, opened: 0 });
        self.stores.grow(self.tokens.len());
        self.present(token, gateway);
        if self.random.chance(self.workload.raced) {
            // Half of the races at the very same instant, at different gateways.
            let together = self.random.chance(0.5);
            for _ in 0..1 + self.random.below(RACERS - 1) {
                let later = if together { 0 } else { self.random.below(RACE) };
                self.queue.at(now + later, Event::Presented(token));
            }
        }
    }

    pub(super) fn sweep(&mut self, token: u32) {
        if (token as usize) < self.tokens.len() {
            self.present_anywhere(token);
            let wait = self.random.wait(1e9 / self.workload.rate as f64);
            self.queue.at(self.queue.now() + wait, Event::Swept(token + self.workload.sweep_each as u32));
        }
    }

    /// One of the gateways that are there; of a region, where one is given.
    fn live_gateway(&mut self, region: Option<usize>) -> Option<usize> {
        let (first, count) = match region {
            Some(region) => (region * self.fleet.gateways, self.fleet.gateways),
            None => (0, self.gateways.len()),
        };
        let drawn = self.random.below(count as u64) as usize;
        (0..count).map(|next| first + (drawn + next) % count).find(|index| self.gateways[*index].alive)
    }

    pub(super) fn present_anywhere(&mut self, token: u32) {
        if let Some(gateway) = self.live_gateway(None) {
            self.present(token, gateway);
        }
    }

    fn present(&mut self, token: u32, gateway: usize) {
        let now = self.queue.now();
        self.counts.presentations += 1;
        let own = &mut self.tokens[token as usize];
        let attempt = own.presented;
        // Attempts of one token are distinguished up to 254: more presentations of one are not made by any workload
        // here.
        own.presented = own.presented.saturating_add(1).min(REWRITTEN - 1);
        let (region, key) = (usize::from(own.region), usize::from(own.key));
        let there = &self.gateways[gateway];
        let refused = if self.fleet.bound && region != there.region {
            Some(Ended::OtherOrigin)
        } else {
            takes(&self.fleet.keys[key], now / SECOND, there.behind)
                .and_then(|()| permits(there.lost[key], self.fleet.on_loss))
                .err()
                .map(|reason| Ended::Verdict(Err(reason)))
        };
        if let Some(ended) = refused {
            return self.counts.ended(ended, 0, now);
        }
        let stage = if self.fleet.hint { Stage::Hint } else { Stage::Verdict };
        self.begin(Name::Token(token), attempt, gateway as u16, stage);
    }
}
