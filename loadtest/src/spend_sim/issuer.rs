//! The issuer: it signs whenever an agent wants a token, and counts.

use super::chance::Chance;
use super::fault::Micros;
use super::history::Happening;
use super::token::EPOCH;
use super::token::{KeyPlan, Offer, Token};
use super::world::Fabric;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Issuer {
    keys: Vec<KeyPlan>,
    fabric: Fabric,
    /// Numbers tokens.
    count: AtomicUsize,
    /// Signatures by the second.
    signed: Mutex<BTreeMap<u64, u64>>,
}

/// What it has signed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signatures {
    pub(crate) all: u64,
    /// In the busiest second, and after how many seconds it came.
    pub(crate) most: u64,
    pub(crate) at: u64,
}

impl Issuer {
    pub(crate) fn new(keys: Vec<KeyPlan>, fabric: Fabric) -> Self {
        Self { keys, fabric, count: AtomicUsize::new(0), signed: Mutex::default() }
    }

    /// A token for what a gateway asks for.
    pub(crate) fn sign(&self, holder: usize, offer: Offer, chance: &mut Chance) -> Arc<Token> {
        let now = self.fabric.now();
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        *self.signed.lock().entry(now / 1_000_000).or_default() += 1;
        let token = Arc::new(self.keys[offer.key].mint(offer, number, chance));
        let ends: Micros = (token.not_after.0 - EPOCH) * 1_000_000;
        self.fabric.change(|network| network.note(Happening::Issued { token: number, holder, ends }));
        token
    }

    /// From a second of the run on.
    pub(crate) fn since(&self, second: u64) -> Signatures {
        let signed = self.signed.lock();
        let busiest = signed.range(second..).max_by_key(|(_, count)| **count);
        let (at, most) = busiest.map_or((second, 0), |(at, count)| (*at, *count));
        Signatures { all: signed.range(second..).map(|(_, count)| *count).sum(), most, at: at - second }
    }
}
