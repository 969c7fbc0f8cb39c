//! The challenge that tokens answer: its lifetime, and the file that keeps it for the next start.

use super::beside::FileBeside;
use postern_token::header::Challenge;
use postern_token::{ChallengeDigest, Mark, TokenChallenge, TokenKeyId};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Lifetime of a challenge without `max-age`. RFC 9577 leaves it open.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A gateway's challenge.
#[derive(Clone, Debug)]
pub struct CurrentChallenge {
    pub(crate) challenge: Challenge,
    /// The digest that its tokens carry.
    pub digest: ChallengeDigest,
    pub(crate) issuer_name: String,
    /// `true` if it has a redemption context (RFC 9577, section 2.1.1.2) and may differ each time: nothing is minted ahead.
    pub(crate) has_context: bool,
    /// Its origins without the mark, joined by commas; `None` if it is for any origin.
    pub(crate) names: Option<String>,
    /// `true` if its last name is a mark below the first.
    pub(crate) is_marked: bool,
    /// The key that it names.
    pub key: Option<TokenKeyId>,
    /// `None` for a challenge saved by an earlier run: the gateway may have another by now.
    learned: Option<Learned>,
}

/// The arrival time of a challenge, by two clocks: one does not run while the machine sleeps, the other may be set.
#[derive(Clone, Copy, Debug)]
struct Learned {
    monotonic: Instant,
    wall: SystemTime,
}

impl CurrentChallenge {
    /// Parses a challenge that the gateway has just given. `None` if the bytes are not a `TokenChallenge`.
    #[must_use]
    pub fn new(challenge: Challenge) -> Option<Self> {
        let learned = Learned { monotonic: Instant::now(), wall: SystemTime::now() };
        Some(Self { learned: Some(learned), ..Self::from_saved(challenge)? })
    }

    /// Parses a challenge of an earlier run. `None` if the bytes are not a `TokenChallenge`.
    #[must_use]
    pub fn from_saved(challenge: Challenge) -> Option<Self> {
        let parsed = challenge.token_challenge().ok()?;
        let (origins, has_context) = (parsed.origin_info(), parsed.redemption_context().is_some());
        let is_marked = mark_of(&parsed).is_some();
        let names = &origins[..origins.len() - usize::from(is_marked)];
        Some(Self {
            digest: ChallengeDigest::of(&challenge.bytes),
            issuer_name: parsed.issuer_name().to_owned(),
            has_context,
            names: (!names.is_empty()).then(|| names.join(",")),
            is_marked,
            key: challenge.token_key.as_deref().map(TokenKeyId::of),
            learned: None,
            challenge,
        })
    }

    /// Returns `true` if tokens may be minted for it without fetching it again (`max-age`, RFC 9577, section 2.1).
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        let max_age = self.challenge.max_age.map_or(DEFAULT_MAX_AGE, Duration::from_secs);
        self.learned.is_some_and(|learned| {
            let slept = learned.wall.elapsed().unwrap_or_default();
            learned.monotonic.elapsed().max(slept) < max_age
        })
    }

    /// Returns `true` if tokens for both come from the same key of the same issuer.
    pub(crate) fn has_source_of(&self, other: &Self) -> bool {
        self.issuer_name == other.issuer_name && self.challenge.token_key == other.challenge.token_key
    }

    /// Returns `true` if both are for the same tokens, regardless of their max-age.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.challenge.bytes == other.challenge.bytes && self.has_source_of(other)
    }
}

/// Returns the mark of any gateway's challenge: its last name, which is below the first. A fleet may have several names.
pub(crate) fn mark_of(challenge: &TokenChallenge) -> Option<Mark> {
    let [first, .., last] = challenge.origin_info() else { return None };
    let pair = TokenChallenge::new(challenge.token_type(), "issuer", None, &[first, last]).ok()?;
    Mark::of_challenge(&pair, first)
}

/// The gateways' challenges in a file next to the wallet, so that an agent with tokens works from its first second.
///
/// Two lines of text for each gateway: its address, and the challenge as in `Proxy-Authenticate`, which `postern token inspect`
/// reads. A file with other contents is overwritten: it contains nothing of value.
pub(crate) struct SavedChallenges {
    file: FileBeside,
    /// The text that an earlier run saved.
    read: String,
}

impl SavedChallenges {
    pub(crate) fn read(wallet: &Path) -> Self {
        let losses = [
            "The gateway's challenge is fetched before the first tunnel",
            "the next start must fetch the gateway's challenge before its first tunnel",
        ];
        let (file, read) = FileBeside::read(wallet, ".challenge", losses, |text| Ok(text.to_owned()));
        Self { file, read }
    }

    /// Returns the challenge that an earlier run learned.
    pub(crate) fn challenge(&self, gateway_url: &str) -> Option<CurrentChallenge> {
        let mut lines = self.read.lines();
        while let (Some(first), Some(second)) = (lines.next(), lines.next()) {
            if first.strip_prefix("gateway ") == Some(gateway_url) {
                let challenge =
                    Challenge::parse_all(second.trim_end().as_bytes()).ok()?.into_iter().next()?;
                return CurrentChallenge::from_saved(challenge);
            }
        }
        None
    }

    /// Saves the challenges. A failure only costs one request at the next start.
    pub(crate) async fn save(&mut self, challenges: &[(String, Arc<CurrentChallenge>)]) {
        // A challenge with a context may differ each time. Challenges that differ only in max-age are the same.
        let kept = challenges.iter().filter(|(_, current)| !current.has_context);
        let text: String = kept
            .map(|(url, current)| {
                let challenge = Challenge { max_age: None, ..current.challenge.clone() };
                format!("gateway {url}\n{}\n", challenge.format())
            })
            .collect();
        self.file.save(text).await;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use postern_token::TokenType;

    pub(crate) fn challenge(max_age: Option<u64>) -> Challenge {
        let bytes =
            TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &[]).unwrap().serialize();
        Challenge { bytes, token_key: Some(vec![1; 342]), max_age }
    }

    /// Returns a challenge for `origins`, under the key of this number.
    pub(crate) fn named(context: Option<[u8; 32]>, origins: &[&str], key: u8) -> CurrentChallenge {
        let bytes = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", context, origins).unwrap();
        let challenge =
            Challenge { bytes: bytes.serialize(), token_key: Some(vec![key; 342]), max_age: None };
        CurrentChallenge::new(challenge).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_challenge_is_fresh_for_its_max_age_and_one_of_an_earlier_run_is_not() {
        let current = CurrentChallenge::new(challenge(Some(60))).unwrap();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(current.is_fresh());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!current.is_fresh());
        assert!(!CurrentChallenge::new(challenge(Some(0))).unwrap().is_fresh());
        assert!(!CurrentChallenge::from_saved(challenge(Some(60))).unwrap().is_fresh());
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_ran_on_while_the_machine_slept_ends_the_max_age() {
        let mut current = CurrentChallenge::new(challenge(Some(60))).unwrap();
        let learned = current.learned.as_mut().unwrap();
        learned.wall = SystemTime::now() - Duration::from_secs(61);
        assert!(!current.is_fresh());
    }

    #[test]
    fn another_max_age_is_not_another_challenge() {
        let (one, other) = (challenge(Some(1)), challenge(Some(2)));
        let (one, other) =
            (CurrentChallenge::from_saved(one).unwrap(), CurrentChallenge::from_saved(other).unwrap());
        assert!(one.is_same_as(&other));
    }

    #[tokio::test]
    async fn a_challenge_is_remembered_for_its_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let wallet = directory.path().join("wallet");
        let current = Arc::new(CurrentChallenge::new(challenge(Some(5))).unwrap());
        let mut saved = SavedChallenges::read(&wallet);
        assert!(saved.challenge("http://a").is_none());
        let both = [("http://a".to_owned(), current.clone()), ("http://b".to_owned(), current.clone())];
        saved.save(&both).await;
        for url in ["http://a", "http://b"] {
            let read = SavedChallenges::read(&wallet).challenge(url).unwrap();
            assert!(read.is_same_as(&current) && !read.is_fresh());
        }
        assert!(SavedChallenges::read(&wallet).challenge("http://c").is_none());
    }
}
