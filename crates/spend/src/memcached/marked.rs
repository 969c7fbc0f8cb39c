//! The keys whose tokens are bound by marks, and the mark of each that is on offer.

use super::bucket::BUCKETS;
use super::votes::REPLICAS;
use parking_lot::RwLock;
use postern_token::{Mark, MarkId, TokenKeyId};

/// The keys, written by the watch and read by callers: few, so a list.
#[derive(Default)]
pub(super) struct Marked(RwLock<Vec<MarkedKey>>);

struct MarkedKey {
    key: TokenKeyId,
    offered: Option<(Mark, MarkId)>,
    /// A token of that mark was void: records may be lost.
    suspect: bool,
    /// Buckets whose tokens are void: too few replicas know the mark.
    torn: usize,
    /// Buckets in which some replica does not know the mark, and these replicas.
    lacking: (usize, [bool; REPLICAS]),
}

impl Marked {
    /// Watches exactly these keys. Returns `true` if one of them is new.
    pub(super) fn watch(&self, keys: &[TokenKeyId]) -> bool {
        let mut list = self.0.write();
        list.retain(|known| keys.contains(&known.key));
        let before = list.len();
        for &key in keys {
            if !list.iter().any(|known| known.key == key) {
                list.push(MarkedKey {
                    key,
                    offered: None,
                    suspect: false,
                    torn: 0,
                    lacking: Default::default(),
                });
            }
        }
        list.len() > before
    }

    pub(super) fn keys(&self) -> Vec<TokenKeyId> {
        self.0.read().iter().map(|known| known.key).collect()
    }

    /// Returns the mark of a key. `None` if the key is not watched, or if no token of its mark could be admitted.
    pub(super) fn binding(&self, key: TokenKeyId) -> Option<Mark> {
        let offered = self.find(key, |known| known.offered.filter(|_| known.torn < usize::from(BUCKETS)));
        offered.flatten().map(|(mark, _)| mark)
    }

    fn find<T>(&self, key: TokenKeyId, read: impl FnOnce(&MarkedKey) -> T) -> Option<T> {
        self.0.read().iter().find(|known| known.key == key).map(read)
    }

    fn change<T>(&self, key: TokenKeyId, change: impl FnOnce(&mut MarkedKey) -> T) -> Option<T> {
        self.0.write().iter_mut().find(|known| known.key == key).map(change)
    }

    pub(super) fn offered(&self, key: TokenKeyId) -> Option<MarkId> {
        self.find(key, |known| known.offered).flatten().map(|(_, id)| id)
    }

    pub(super) fn offer(&self, key: TokenKeyId, mark: Mark, id: MarkId) {
        let offered = Some((mark, id));
        self.change(key, |known| {
            *known = MarkedKey { key, offered, suspect: false, torn: 0, lacking: Default::default() }
        });
    }

    /// Sets the number of buckets in which tokens of the mark on offer are void, and in which some replica does not know the
    /// mark, and these replicas.
    pub(super) fn set_torn(&self, key: TokenKeyId, void: usize, lacking: (usize, [bool; REPLICAS])) {
        self.change(key, |known| (known.torn, known.lacking) = (void, lacking));
    }

    /// Returns the largest number of void buckets over all keys.
    pub(super) fn torn(&self) -> usize {
        self.0.read().iter().map(|known| known.torn).max().unwrap_or(0)
    }

    /// Returns the largest number of lacking buckets over all keys, and the replicas that lack them.
    pub(super) fn lacking(&self) -> (usize, [bool; REPLICAS]) {
        self.0.read().iter().map(|known| known.lacking).max().unwrap_or_default()
    }

    /// Records a void token. Returns `true` if its mark is on offer and not under suspicion yet, so that the watch must look.
    pub(super) fn suspect(&self, key: TokenKeyId, mark: MarkId) -> bool {
        let is_news = |known: &mut MarkedKey| {
            known.offered.is_some_and(|(_, id)| id == mark) && !std::mem::replace(&mut known.suspect, true)
        };
        self.change(key, is_news).unwrap_or(false)
    }

    pub(super) fn take_suspicion(&self, key: TokenKeyId) -> bool {
        self.change(key, |known| std::mem::take(&mut known.suspect)).unwrap_or(false)
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

    /// Watches both keys, each with its own mark on offer.
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
        assert_eq!((marked.keys(), marked.binding(SECOND)), (vec![FIRST], None));
        assert!(marked.watch(&[FIRST, SECOND]));
        assert_eq!(marked.binding(FIRST), Some(Mark::new([1; 16])));
        assert_eq!(marked.binding(SECOND), None);
    }

    #[test]
    fn a_mark_is_offered_for_its_own_key_only() {
        let marked = offering();
        assert_eq!((marked.offered(FIRST), marked.offered(SECOND)), (Some(id(1)), Some(id(2))));
        marked.watch(&[SECOND]);
        assert_eq!(marked.offered(FIRST), None);
    }

    #[test]
    fn the_key_that_has_lost_most_is_counted_until_its_next_mark() {
        const SECOND_LACKS: [bool; REPLICAS] = [false, false, true];
        let marked = offering();
        marked.set_torn(FIRST, 5, (7, [true, false, false]));
        marked.set_torn(SECOND, 2, (9, SECOND_LACKS));
        assert_eq!((marked.torn(), marked.lacking()), (5, (9, SECOND_LACKS)));
        marked.offer(FIRST, Mark::new([3; 16]), id(3));
        assert_eq!((marked.torn(), marked.lacking()), (2, (9, SECOND_LACKS)));
        marked.watch(&[FIRST]);
        assert_eq!((marked.torn(), marked.lacking()), (0, Default::default()));
    }

    #[test]
    fn no_token_is_requested_for_a_mark_that_is_void_everywhere() {
        let marked = offering();
        marked.set_torn(FIRST, usize::from(BUCKETS) - 1, Default::default());
        assert_ne!(marked.binding(FIRST), None);
        marked.set_torn(FIRST, usize::from(BUCKETS), Default::default());
        assert_eq!(marked.binding(FIRST), None);
        marked.offer(FIRST, Mark::new([3; 16]), id(3));
        assert_eq!(marked.binding(FIRST), Some(Mark::new([3; 16])));
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
