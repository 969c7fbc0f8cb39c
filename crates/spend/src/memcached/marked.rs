//! The keys whose tokens a mark binds, and the mark of each that is offered now.

use super::bucket::BUCKETS;
use crate::Binding;
use parking_lot::RwLock;
use postern_token::{Mark, MarkId, TokenKeyId};

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

    /// Unknown for a key that is not watched, and while no token of its mark could be admitted.
    pub(super) fn binding(&self, key: TokenKeyId) -> Binding {
        let list = self.0.read();
        let known = list.iter().find(|known| known.key == key && known.torn < usize::from(BUCKETS));
        known.map_or(Binding::Unknown, |known| known.binding)
    }

    pub(super) fn offer(&self, key: TokenKeyId, mark: Mark, id: MarkId) {
        if let Some(known) = self.0.write().iter_mut().find(|known| known.key == key) {
            (known.binding, known.id, known.suspect) = (Binding::Offered(mark), Some(id), false);
            (known.torn, known.lacking) = (0, 0);
        }
    }

    /// Whether a mark of this key is offered.
    pub(super) fn has_offer(&self, key: TokenKeyId) -> bool {
        self.0.read().iter().any(|known| known.key == key && known.id.is_some())
    }

    /// Whether tokens are requested for this mark now.
    pub(super) fn is_offered(&self, key: TokenKeyId, mark: MarkId) -> bool {
        self.0.read().iter().any(|known| known.key == key && known.id == Some(mark))
    }

    /// Whether tokens are requested for another mark now.
    pub(super) fn is_superseded(&self, key: TokenKeyId, mark: MarkId) -> bool {
        self.0.read().iter().any(|known| known.key == key && known.id.is_some_and(|id| id != mark))
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

    /// Whether that was so since the last call.
    pub(super) fn take_suspicion(&self, key: TokenKeyId) -> bool {
        let mut list = self.0.write();
        let known = list.iter_mut().find(|known| known.key == key);
        known.is_some_and(|known| std::mem::take(&mut known.suspect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::ChallengeDigest;

    const FIRST: TokenKeyId = TokenKeyId([1; 32]);
    const SECOND: TokenKeyId = TokenKeyId([2; 32]);

    fn id(byte: u8) -> MarkId {
        MarkId::derive("a", FIRST, ChallengeDigest([byte; 32]))
    }

    /// Both keys are watched, and each offers a mark of its own.
    fn offering() -> Marked {
        let marked = Marked::default();
        assert!(marked.watch(&[FIRST, SECOND]));
        for (key, byte) in [(FIRST, 1), (SECOND, 2)] {
            marked.offer(key, Mark::new([byte; 16]), id(byte));
        }
        marked
    }

    #[test]
    fn keys_that_go_on_keep_their_marks_and_only_new_ones_are_news() {
        let marked = offering();
        assert!(!marked.watch(&[FIRST, SECOND]));
        assert!(!marked.watch(&[FIRST]), "one that goes is no news");
        assert_eq!((marked.keys(), marked.binding(SECOND)), (vec![FIRST], Binding::Unknown));
        assert!(marked.watch(&[FIRST, SECOND]));
        assert_eq!(marked.binding(FIRST), Binding::Offered(Mark::new([1; 16])));
        assert_eq!(marked.binding(SECOND), Binding::Unknown);
    }

    #[test]
    fn a_mark_is_offered_for_its_own_key_only() {
        let marked = offering();
        assert!(marked.is_offered(FIRST, id(1)) && marked.is_offered(SECOND, id(2)));
        assert!(!marked.is_offered(FIRST, id(2)) && !marked.is_offered(SECOND, id(1)));
        assert!(!marked.is_offered(FIRST, id(3)));
        assert!(marked.is_superseded(FIRST, id(3)) && !marked.is_superseded(FIRST, id(1)));
        marked.watch(&[SECOND]);
        assert!(!marked.is_superseded(FIRST, id(3)), "there is no other to request tokens for");
    }

    #[test]
    fn the_key_that_has_lost_most_is_counted_until_its_next_mark() {
        let marked = offering();
        marked.set_torn(FIRST, 5, 7);
        marked.set_torn(SECOND, 2, 9);
        assert_eq!((marked.torn(), marked.lacking()), (5, 9));
        marked.offer(FIRST, Mark::new([3; 16]), id(3));
        assert_eq!((marked.torn(), marked.lacking()), (2, 9));
        marked.watch(&[FIRST]);
        assert_eq!((marked.torn(), marked.lacking()), (0, 0));
    }

    #[test]
    fn no_token_is_requested_for_a_mark_that_is_void_everywhere() {
        let marked = offering();
        marked.set_torn(FIRST, usize::from(BUCKETS) - 1, 0);
        assert_ne!(marked.binding(FIRST), Binding::Unknown);
        marked.set_torn(FIRST, usize::from(BUCKETS), 0);
        assert_eq!(marked.binding(FIRST), Binding::Unknown);
        marked.offer(FIRST, Mark::new([3; 16]), id(3));
        assert_eq!(marked.binding(FIRST), Binding::Offered(Mark::new([3; 16])));
    }

    /// The watch is woken once, however many tokens are void before it looks, and never by tokens of older marks.
    #[test]
    fn a_void_token_of_the_mark_on_offer_is_a_suspicion_once() {
        let marked = offering();
        assert!(
            !marked.suspect(FIRST, id(2)) && !marked.suspect(FIRST, id(3)) && !marked.suspect(SECOND, id(1))
        );
        assert!(!marked.take_suspicion(FIRST));
        assert!(marked.suspect(FIRST, id(1)));
        assert!(!marked.suspect(FIRST, id(1)), "it is known");
        assert!(!marked.take_suspicion(SECOND));
        assert!(marked.take_suspicion(FIRST));
        assert!(!marked.take_suspicion(FIRST), "it was taken");
        assert!(marked.suspect(FIRST, id(1)), "another one");
        marked.offer(FIRST, Mark::new([3; 16]), id(3));
        assert!(!marked.take_suspicion(FIRST), "the next mark is under none");
    }
}
