//! Key files: their names, which have the keys' times, and their contents.

use super::KeysError;
use crate::rotation::{self, Lifetime, Phase};
use postern_daemon::files::exposed_mode;
use postern_token::{SigningKey, TokenType, UnixSeconds, key_file};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

#[derive(Clone, Debug)]
pub(crate) struct TokenKey {
    pub(crate) signing: Arc<SigningKey>,
    pub(crate) life: Lifetime,
}

/// Returns the key with the same type and truncated id, by which requests name a key.
pub(super) fn colliding<'k>(keys: &'k [TokenKey], signing: &SigningKey) -> Option<&'k TokenKey> {
    let named = |key: &SigningKey| (key.token_type(), key.id().truncated());
    keys.iter().find(|key| named(&key.signing) == named(signing))
}

/// Fails if requests would name the `key` of the file at `path` like one of `keys`.
pub(super) fn check_distinct(keys: &[TokenKey], key: &TokenKey, path: &Path) -> Result<(), KeysError> {
    match colliding(keys, &key.signing).map(|other| FileName::of(other).text) {
        Some(other) => Err(KeysError::Collision { path: path.to_owned(), other }),
        None => Ok(()),
    }
}

pub(crate) fn lives(keys: &[TokenKey], token_type: TokenType) -> Vec<Lifetime> {
    keys.iter().filter(|key| key.signing.token_type() == token_type).map(|key| key.life).collect()
}

postern_telemetry::label! {
    /// The phase of a token key's life.
    pub(crate) KeyPhase = "phase" {
        /// Published, but not yet in use.
        Upcoming = "upcoming",
        /// The newest key in use, which challenges name.
        Newest = "newest",
        /// An older key whose tokens are still valid.
        Older = "older",
    }
}

/// Returns the keys that have not expired, newest first.
pub(crate) fn view(keys: &[TokenKey], now: UnixSeconds) -> Vec<(TokenKey, KeyPhase)> {
    let phase = |key: &TokenKey| match key.life {
        life if Some(life) == rotation::current(&lives(keys, key.signing.token_type()), now) => {
            KeyPhase::Newest
        }
        life if now < life.not_before => KeyPhase::Upcoming,
        _ => KeyPhase::Older,
    };
    let alive = keys.iter().filter(|key| key.life.phase(now) != Phase::Over);
    let mut view: Vec<_> = alive.map(|key| (key.clone(), phase(key))).collect();
    view.sort_by_key(|(key, _)| std::cmp::Reverse(key.life.not_before));
    view
}

/// The name of a key's file, which describes the key.
#[derive(Debug)]
pub(super) struct FileName {
    pub(super) text: String,
    pub(super) life: Lifetime,
    /// The first eight hex digits of the token key id.
    pub(super) id: String,
    pub(super) token_type: TokenType,
}

impl FileName {
    pub(super) fn of(TokenKey { signing, life }: &TokenKey) -> Self {
        let Lifetime { not_before, issue_until, not_after } = life;
        let (id, ending) = (signing.id().short(), key_file::ending_of(signing));
        let text = format!("{not_before}-{issue_until}-{not_after}-{id}.{ending}");
        Self { text, life: *life, id, token_type: signing.token_type() }
    }

    /// Parses the name of the file at `path`; `None` if it is not the name of a key file.
    pub(super) fn parse(path: &Path) -> Option<Self> {
        let token_type = key_file::token_type(path)?;
        let mut parts = path.file_stem()?.to_str()?.split('-');
        let mut time = || Some(UnixSeconds(parts.next()?.parse().ok()?));
        let life = Lifetime { not_before: time()?, issue_until: time()?, not_after: time()? };
        let id = parts.next()?.to_owned();
        let in_order = life.not_before < life.issue_until && life.issue_until < life.not_after;
        let text = path.file_name()?.to_str()?.to_owned();
        (in_order && id.len() == 8 && parts.next().is_none()).then_some(Self { text, life, id, token_type })
    }

    /// `true` if both names are of one key, whose times may have changed.
    pub(super) fn is_of_same_key(&self, other: &Self) -> bool {
        (self.token_type, &self.id) == (other.token_type, &other.id)
    }
}

/// Reads a key file. Fails if other users can read it, unless it is a reference, which holds no secret.
pub(super) fn content(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeysError> {
    let unreadable = KeysError::unreadable(path);
    let exposed = exposed_mode(&std::fs::metadata(path).map_err(&unreadable)?);
    if let Some(mode) = exposed.filter(|_| !key_file::is_reference(path)) {
        return Err(KeysError::Exposed { path: path.to_owned(), mode });
    }
    std::fs::read(path).map(Zeroizing::new).map_err(&unreadable)
}

/// Returns the key of the file at `path`, which `read` reads, with the times in the file's name. Fails if the name states another
/// key.
pub(super) fn named<E: Into<Box<dyn Error + Send + Sync>>>(
    path: &Path,
    read: impl FnOnce(TokenType) -> Result<SigningKey, E>,
) -> Result<TokenKey, KeysError> {
    let path = path.to_owned();
    let Some(name) = FileName::parse(&path) else { return Err(KeysError::Name { path }) };
    match read(name.token_type) {
        Err(error) => Err(KeysError::Corrupt { path, source: error.into() }),
        Ok(signing) if signing.id().short() != name.id => Err(KeysError::OtherKey { path }),
        Ok(signing) => Ok(TokenKey { signing: Arc::new(signing), life: name.life }),
    }
}
