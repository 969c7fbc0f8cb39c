//! The issuer: signs every token that is requested.

use super::chance::Chance;
use super::fault::Micros;
use super::history::Happening;
use super::token::{EPOCH, KeyPlan, Offer, Token};
use super::world::Fabric;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Issuer {
    keys: Vec<KeyPlan>,
    fabric: Fabric,
    /// Number of the next token.
    count: AtomicUsize,
}

impl Issuer {
    pub(crate) fn new(keys: Vec<KeyPlan>, fabric: Fabric) -> Self {
        Self { keys, fabric, count: AtomicUsize::new(0) }
    }

    /// Signs a token for a gateway's offer.
    pub(crate) fn sign(&self, holder: usize, offer: Offer, chance: &mut Chance) -> Arc<Token> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let token = Arc::new(self.keys[offer.key].mint(offer, number, chance));
        let ends: Micros = (token.not_after.0 - EPOCH) * 1_000_000;
        self.fabric.change(|network| network.note(Happening::Issued { token: number, holder, ends }));
        token
    }
}
