//! What a wallet holds, by key: of the one that is open, and of a file that no agent has open.

use super::file::{Contents, Wallet, WalletError, check_header, offset};
use super::format::{FREE, SECTOR, Slot, Unspent, decode};
use postern_daemon::files::AtOffset;
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::Path;

/// Tokens of one key. It has nothing of the tokens themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyTokens {
    /// The first four bytes of the token key id, 8 hex digits.
    pub key: String,
    /// The token type's number and name.
    pub token_type: String,
    /// How many.
    pub tokens: usize,
    /// When they are no longer accepted, if the issuer's directory said so.
    pub not_after: Option<UnixSeconds>,
}

impl Wallet {
    /// The tokens by key, of any challenge.
    pub(crate) fn by_key(&self) -> Vec<KeyTokens> {
        self.contents.lock().by_key()
    }
}

impl Contents {
    fn by_key(&self) -> Vec<KeyTokens> {
        by_key(self.held.iter().map(|held| &held.unspent))
    }
}

fn by_key<'a>(tokens: impl Iterator<Item = &'a Unspent>) -> Vec<KeyTokens> {
    let mut keys = BTreeMap::new();
    for Unspent { token, not_after } in tokens {
        let entry = keys.entry((*not_after, token.token_key_id())).or_insert((token.token_type(), 0));
        entry.1 += 1;
    }
    let shown = keys.into_iter().map(|((not_after, key), (token_type, tokens))| KeyTokens {
        key: key.short(),
        token_type: token_type.to_string(),
        tokens,
        not_after,
    });
    shown.collect()
}

/// The tokens in the wallet file at `path`, by key. It writes nothing, and holds the wallet's lock while it reads.
///
/// # Errors
/// There is no such file, an agent has it open, or it is no wallet.
pub fn wallet_by_key(path: &Path) -> Result<Vec<KeyTokens>, WalletError> {
    let failed = |what| move |source| WalletError::Io { path: path.to_owned(), what, source };
    let file = File::open(path).map_err(failed("open"))?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(WalletError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
    }
    let length = file.metadata().map_err(failed("read"))?.len();
    check_header(&file, path, length)?;
    let mut tokens = Vec::new();
    for slot in 0..(length / SECTOR as u64).saturating_sub(1) {
        let mut sector = FREE;
        file.read_exact_at(&mut sector, offset(slot)).map_err(failed("read"))?;
        if let Slot::Holds(unspent) = decode(&sector) {
            tokens.push(*unspent);
        }
    }
    let _ = file.unlock(); // as in `Drop for Contents`
    Ok(by_key(tokens.iter()))
}
