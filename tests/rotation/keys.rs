//! The issuer's keys as its directory lists them, over the length of a test.

use crate::support::tokens;
use crate::support::unit::Unit;
use postern_token::{Directory, TokenKeyId, TokenType, UnixSeconds};
use std::collections::BTreeMap;
use std::path::Path;

/// Every key that the directory was seen to list: when it may be used, and until when its tokens are good.
#[derive(Default)]
pub struct Keys(BTreeMap<String, (TokenKeyId, UnixSeconds, UnixSeconds)>);

impl Keys {
    /// Looks at the directory of `issuer`, which may not answer.
    pub async fn look(&mut self, issuer: &Unit) {
        for (id, not_before, not_after) in listed(issuer).await.unwrap_or_default() {
            self.0.insert(id.to_hex(), (id, not_before, not_after));
        }
    }

    /// How many took over after the first one that was seen, by now.
    pub fn rotations(&self) -> usize {
        let now = UnixSeconds::now();
        self.0.values().filter(|(_, not_before, _)| *not_before <= now).count().saturating_sub(1)
    }

    /// The tokens in `wallet` of a key whose time has not come: RFC 9578, section 4, forbids to mint them.
    pub fn too_early_in(&self, wallet: &Path) -> usize {
        let now = UnixSeconds::now();
        let early: Vec<TokenKeyId> =
            self.0.values().filter(|(_, not_before, _)| *not_before > now).map(|(id, ..)| *id).collect();
        let tokens = tokens::in_wallet(wallet);
        tokens.iter().filter(|token| early.contains(&token.token_key_id())).count()
    }
}

/// The keys of type 2 that `issuer` lists: id, not-before, not-after.
pub async fn listed(issuer: &Unit) -> Option<Vec<(TokenKeyId, UnixSeconds, UnixSeconds)>> {
    let (_, body) = crate::support::admin::get(issuer.address, postern_token::DIRECTORY_PATH).await?;
    let directory = Directory::parse(body.as_bytes()).ok()?;
    let keys = directory.keys_for(TokenType::BlindRsa2048).map(|key| {
        let id = TokenKeyId::of(&key.key_bytes().unwrap());
        (id, key.not_before.unwrap_or_default(), key.not_after.unwrap())
    });
    Some(keys.collect())
}
