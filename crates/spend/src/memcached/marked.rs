//! The keys whose tokens a mark binds, and the mark of each that is offered now.

use crate::Binding;
use parking_lot::RwLock;
use postern_token::{MarkId, TokenKeyId};

/// The keys, as the watch finds them and callers use them: few, so a list.
#[derive(Default)]
pub(super) struct Marked(RwLock<Vec<MarkedKey>>);

struct MarkedKey {
    key: TokenKeyId,
    binding: Binding,
    /// The id of the mark that is offered.
    id: Option<MarkId>,
    /// A token of that mark was void: records may be lost.
    suspect: bool,
    /// Buckets that no longer know it.
    torn: usize,
    /// Buckets in which some replica does not know it.
    lacking: usize,
}

impl Marked {
    /// Watches these keys, and no others. True if one of them is new.
    pub(super) fn watch(&self, keys: &[TokenKeyId]) -> bool {
        let mut list = self.0.write();
        list.retain(|known| keys.contains(&known.key));
        let before = list.len();
        for &key in keys {
            if !list.iter().any(|known| known.key == key) {
                list.push(MarkedKey {
                    key,
                    binding: Binding::Unknown,
                    id: None,
                    suspect: false,
                    torn: 0,
                    lacking: 0,
                });
            }
        }
        list.len() > before
    }

    pub(super) fn keys(&self) -> Vec<TokenKeyId> {
        self.0.read().iter().map(|known| known.key).collect()
    }

    /// `None` for a key that is not watched.
    pub(super) fn binding(&self, key: TokenKeyId) -> Option<Binding> {
        self.0.read().iter().find(|known| known.key == key).map(|known| known.binding)
    }

    pub(super) fn set(&self, key: TokenKeyId, binding: Binding, id: Option<MarkId>) {
        if let Some(known) = self.0.write().iter_mut().find(|known| known.key == key) {
            (known.binding, known.id, known.suspect) = (binding, id, false);
            (known.torn, known.lacking) = (0, 0);
        }
    }

    /// Whether tokens are requested for this mark now.
    pub(super) fn is_offered(&self, key: TokenKeyId, mark: MarkId) -> bool {
        self.0.read().iter().any(|known| known.key == key && known.id == Some(mark))
    }

    /// Sets in how many buckets tokens of the mark on offer are void, and how many some replica no longer knows it.
    pub(super) fn set_torn(&self, key: TokenKeyId, void: usize, lacking: usize) {
        if let Some(known) = self.0.write().iter_mut().find(|known| known.key == key) {
            (known.torn, known.lacking) = (void, lacking);
        }
    }

    /// Of the mark that has lost most, how many buckets no longer know it.
    pub(super) fn torn(&self) -> usize {
        self.0.read().iter().map(|known| known.torn).max().unwrap_or(0)
    }

    /// Of the mark that fewest replicas know, how many buckets some replica lacks.
    pub(super) fn lacking(&self) -> usize {
        self.0.read().iter().map(|known| known.lacking).max().unwrap_or(0)
    }

    /// A token of this mark was void. True if that is the mark on offer, so that the watch should look.
    pub(super) fn suspect(&self, key: TokenKeyId, mark: MarkId) -> bool {
        let mut list = self.0.write();
        let offered = list.iter_mut().find(|known| known.key == key && known.id == Some(mark));
        offered.is_some_and(|known| !std::mem::replace(&mut known.suspect, true))
    }

    /// Whether that is so of any key.
    pub(super) fn is_suspect(&self) -> bool {
        self.0.read().iter().any(|known| known.suspect)
    }

    /// Whether that was so since the last call.
    pub(super) fn take_suspicion(&self, key: TokenKeyId) -> bool {
        let mut list = self.0.write();
        let known = list.iter_mut().find(|known| known.key == key);
        known.is_some_and(|known| std::mem::take(&mut known.suspect))
    }
}
