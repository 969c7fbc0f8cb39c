//! The token types of keys, for the store: it knows a key by its id alone, and the id of a mark depends on the type.

use crate::keys::keyring::Keyring;
use parking_lot::RwLock;
use postern_token::{TokenKeyId, TokenType};
use std::collections::HashMap;
use std::sync::Arc;

/// The types of the private keys that this gateway has had since its start. Whatever is not here is of type 2.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTypes(Arc<RwLock<HashMap<TokenKeyId, TokenType>>>);

impl KeyTypes {
    /// Before the store hears of these keys.
    pub(crate) fn learn(&self, keyring: &Keyring) {
        let private = keyring.iter().filter(|known| known.key.token_type().is_private());
        let types: Vec<_> = private.map(|known| (known.key.id(), known.key.token_type())).collect();
        if !types.is_empty() {
            self.0.write().extend(types);
        }
    }

    pub(crate) fn of(&self, key: TokenKeyId) -> TokenType {
        self.0.read().get(&key).copied().unwrap_or(TokenType::BlindRsa2048)
    }
}
