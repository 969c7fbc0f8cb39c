//! Comparison of the keys and challenges at several addresses: `postern token inspect --compare`.

use super::consistency::{Times, ids};
use crate::hop::connection::{ChallengeFetchError, fetch_challenge};
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use postern_token::header::Challenge;
use postern_token::{Directory, TokenKeyId, TokenType, UnixSeconds};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// An address and its contents.
#[derive(Clone, Debug)]
pub struct View {
    /// The address.
    pub url: String,
    /// Its contents.
    pub shown: Shown,
}

/// The contents of an address.
#[derive(Clone, Debug)]
pub enum Shown {
    /// An issuer's directory, or a mirror's copy of one.
    Directory(Directory),
    /// A gateway's challenge.
    Challenge(Challenge),
}

/// The error of an address with neither a directory nor a challenge.
#[derive(Debug, thiserror::Error)]
#[error("{url} gives neither an issuer's directory nor a gateway's challenge: {directory}; {challenge}")]
pub struct NothingShown {
    url: String,
    directory: MintError,
    challenge: ChallengeFetchError,
}

impl View {
    /// Fetches the directory at `url`, or else the challenge of the gateway there. Trusts the certificates in `ca` instead
    /// of the platform's.
    ///
    /// # Errors
    /// [`NothingShown`], with the reasons.
    pub async fn fetch(url: &str, ca: Option<&Path>) -> Result<Self, NothingShown> {
        let view = |shown| Self { url: url.to_owned(), shown };
        let published = match IssuerClient::new(url, None, ca.map(Path::to_owned)) {
            Ok(issuer) => issuer.mirrored().await,
            Err(error) => Err(error),
        };
        let directory = match published {
            Ok(published) => return Ok(view(Shown::Directory(published.directory))),
            Err(error) => error,
        };
        match fetch_challenge(url, ca).await {
            Ok(challenge) => Ok(view(Shown::Challenge(challenge))),
            Err(challenge) => Err(NothingShown { url: url.to_owned(), directory, challenge }),
        }
    }
}

/// Lists the differences between views, a sentence each. Compares each view with the first of its kind, and each
/// challenge's key with every directory.
#[must_use]
pub fn differences(views: &[View], now: UnixSeconds) -> Vec<String> {
    let (mut directories, mut challenges, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for View { url, shown } in views {
        match shown {
            Shown::Directory(directory) => directories.push((url.as_str(), directory)),
            Shown::Challenge(challenge) => challenges.push((url.as_str(), challenge)),
        }
    }
    for other in directories.iter().skip(1) {
        compare_directories(directories[0], *other, now, &mut found);
    }
    for other in challenges.iter().skip(1) {
        compare_challenges(challenges[0], *other, &mut found);
    }
    for (gateway, challenge) in &challenges {
        let Some(key) = challenge.token_key.as_deref().map(TokenKeyId::of) else { continue };
        for (issuer, directory) in &directories {
            if Times::of(directory, key).is_none() {
                found.push(format!(
                    "the challenge of {gateway} names the key {}, which {issuer} does not list",
                    key.short()
                ));
            }
        }
    }
    found
}

fn compare_directories(
    (one, first): (&str, &Directory),
    (other, second): (&str, &Directory),
    now: UnixSeconds,
    found: &mut Vec<String>,
) {
    let (ours, theirs): (BTreeMap<_, _>, BTreeMap<_, _>) = (ids(first).collect(), ids(second).collect());
    for (key, times) in &ours {
        match theirs.get(key) {
            None => found.push(format!("the key {} is listed by {one} and not by {other}", key.short())),
            Some(theirs) if theirs != times => {
                found.push(format!("the key {} has other times at {other} than at {one}", key.short()));
            }
            Some(_) => {}
        }
    }
    for key in theirs.keys().filter(|key| !ours.contains_key(key)) {
        found.push(format!("the key {} is listed by {other} and not by {one}", key.short()));
    }
    for token_type in TokenType::ISSUED {
        let preferred = |directory: &Directory| Some(directory.preferred(token_type, now)?.token_key.clone());
        if preferred(first) != preferred(second) {
            found.push(format!("{one} and {other} prefer different keys of type {token_type}"));
        }
    }
}

fn compare_challenges(
    (one, first): (&str, &Challenge),
    (other, second): (&str, &Challenge),
    found: &mut Vec<String>,
) {
    if first.token_key != second.token_key {
        found.push(format!("the challenges of {one} and {other} name different keys"));
    }
    let parts = |challenge: &Challenge| challenge.token_challenge().ok();
    let (Some(first), Some(second)) = (parts(first), parts(second)) else {
        return found.push(format!("the challenges of {one} and {other} cannot both be read"));
    };
    let same = [
        ("token types", first.token_type() == second.token_type()),
        ("issuer names", first.issuer_name() == second.issuer_name()),
        ("origins or marks", first.origin_info() == second.origin_info()),
        ("redemption contexts", first.redemption_context() == second.redemption_context()),
    ];
    for (what, _) in same.iter().filter(|(_, is_same)| !is_same) {
        found.push(format!("the challenges of {one} and {other} have different {what}"));
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shown {
            Shown::Directory(directory) => {
                let keys: Vec<_> = ids(directory).map(|(key, _)| key.short()).collect();
                write!(f, "{}: a directory with the keys {}", self.url, keys.join(", "))
            }
            Shown::Challenge(challenge) => {
                let key = challenge
                    .token_key
                    .as_deref()
                    .map_or("no key".to_owned(), |key| format!("the key {}", TokenKeyId::of(key).short()));
                write!(f, "{}: a challenge that names {key}", self.url)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{DirectoryKey, TokenChallenge};

    fn directory(url: &str, keys: &[(u8, u64)]) -> View {
        let key = |&(byte, start): &(u8, u64)| {
            DirectoryKey::new(TokenType::BlindRsa2048, &[byte; 342], Some(UnixSeconds(start)), None)
        };
        let token_keys = keys.iter().map(key).collect();
        let directory = Directory {
            issuer_request_uri: "/r".to_owned(),
            token_keys,
            batch_limit: None,
            revoked: Vec::new(),
        };
        View { url: url.to_owned(), shown: Shown::Directory(directory) }
    }

    fn challenge(url: &str, origin: &str, key: u8) -> View {
        let bytes = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &[origin]);
        let challenge =
            Challenge { bytes: bytes.unwrap().serialize(), token_key: Some(vec![key; 342]), max_age: None };
        View { url: url.to_owned(), shown: Shown::Challenge(challenge) }
    }

    fn found(views: &[View]) -> Vec<String> {
        differences(views, UnixSeconds(100))
    }

    #[test]
    fn views_that_agree_have_no_differences() {
        let same = [(1, 5), (2, 200)];
        assert_eq!(found(&[directory("a", &same), directory("b", &same), challenge("g", "x", 1)]), [""; 0]);
        assert_eq!(found(&[challenge("g", "x", 1), challenge("h", "x", 1)]), [""; 0]);
    }

    #[test]
    fn each_difference_is_named_by_where_it_is() {
        let one = directory("a", &[(1, 5)]);
        assert_eq!(
            found(&[one.clone(), directory("b", &[(2, 5)])])
                .iter()
                .map(|text| text.len() > 20)
                .collect::<Vec<_>>(),
            [true; 3]
        );
        assert!(
            found(&[one.clone(), directory("b", &[(1, 6)])])[0].contains("has other times at b than at a")
        );
        let two = found(&[directory("a", &[(1, 5), (2, 5)]), directory("b", &[(2, 5), (1, 5)])]);
        assert_eq!(two, ["a and b prefer different keys of type 2 (blind RSA 2048)"]);
        let unlisted = found(&[one, challenge("g", "x", 9)]);
        assert!(unlisted[0].contains("which a does not list"), "{unlisted:?}");
        let marked = found(&[challenge("g", "x", 1), challenge("h", "y", 2)]);
        assert_eq!(
            marked,
            [
                "the challenges of g and h name different keys",
                "the challenges of g and h have different origins or marks"
            ]
        );
    }
}
