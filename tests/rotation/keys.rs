//! The issuer's keys as its directory lists them, over the length of a test.

use crate::support::unit::Unit;
use postern_token::{Directory, Token, TokenKeyId, TokenType, UnixSeconds};
use std::collections::BTreeMap;

/// Every key that the directory was seen to list: when it may be used, and until when its tokens are good.
pub struct Keys {
    token_type: TokenType,
    seen: BTreeMap<String, (TokenKeyId, UnixSeconds, UnixSeconds)>,
}

impl Keys {
    /// Keys of one type; none was seen yet.
    pub fn of(token_type: TokenType) -> Self {
        Self { token_type, seen: BTreeMap::new() }
    }

    /// Looks at the directory of `issuer`, which may not answer.
    pub async fn look(&mut self, issuer: &Unit) {
        for (id, not_before, not_after) in listed(issuer, self.token_type).await.unwrap_or_default() {
            self.seen.insert(id.to_hex(), (id, not_before, not_after));
        }
    }

    /// Counts the keys that took over after the first one seen.
    pub fn rotations(&self) -> usize {
        let now = UnixSeconds::now();
        self.seen.values().filter(|(_, not_before, _)| *not_before <= now).count().saturating_sub(1)
    }

    /// Counts the tokens of `wallet` whose key is not yet valid: RFC 9578, section 4, forbids to mint them.
    pub fn too_early_in(&self, wallet: &[Token]) -> usize {
        let now = UnixSeconds::now();
        let early: Vec<TokenKeyId> =
            self.seen.values().filter(|(_, not_before, _)| *not_before > now).map(|(id, ..)| *id).collect();
        wallet.iter().filter(|token| early.contains(&token.token_key_id())).count()
    }
}

/// The keys of a type that `issuer` lists: id, not-before, not-after.
pub async fn listed(
    issuer: &Unit,
    token_type: TokenType,
) -> Option<Vec<(TokenKeyId, UnixSeconds, UnixSeconds)>> {
    let (_, body) = crate::support::admin::get(issuer.address, postern_token::DIRECTORY_PATH).await?;
    let directory = Directory::parse(body.as_bytes()).ok()?;
    let keys = directory.keys_for(token_type).map(|key| {
        let id = TokenKeyId::of(&key.key_bytes().unwrap());
        (id, key.not_before.unwrap_or_default(), key.not_after.unwrap())
    });
    Some(keys.collect())
}
