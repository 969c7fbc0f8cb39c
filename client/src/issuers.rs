//! Which issuer of a list is used: the first that is not away. No I/O; time is an argument.
//!
//! All of a list sign with the same keys for the same account, so that tokens of one are as good as those of another. An issuer is away
//! when it cannot be reached, answers 5xx, or answers what no issuer does. What it says of the account (401, 403, 429) it says in place of
//! all: another one is not tried, because that would be a way around quota and rate.

use crate::mint::MintError;
use postern_daemon::backoff::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// For how long one that failed is passed over.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(30), longest: Duration::from_secs(600) };

/// A list of issuers in order of preference, and which of them were found away.
pub(crate) struct Issuers<T> {
    list: Vec<Listed<T>>,
    in_use: usize,
}

struct Listed<T> {
    issuer: T,
    failures: u32,
    away_until: Option<Instant>,
}

impl<T> Listed<T> {
    fn is_away(&self, now: Instant) -> bool {
        self.away_until.is_some_and(|until| now < until)
    }
}

impl<T> Issuers<T> {
    pub(crate) fn new(list: impl IntoIterator<Item = T>) -> Self {
        let listed = |issuer| Listed { issuer, failures: 0, away_until: None };
        Self { list: list.into_iter().map(listed).collect(), in_use: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The one to use: the first that is not away, else the first. `None` of an empty list.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<&T> {
        self.in_use = self.list.iter().position(|listed| !listed.is_away(now)).unwrap_or(0);
        self.list.get(self.in_use).map(|listed| &listed.issuer)
    }

    /// Minting with the one in use failed. Whether there is another one to try at once.
    pub(crate) fn turns_from(&mut self, error: &MintError, now: Instant) -> bool {
        if !is_outage(error) {
            return false;
        }
        if let Some(listed) = self.list.get_mut(self.in_use) {
            let pause = PAUSES
                .pause(listed.failures)
                .max(error.retry_after().unwrap_or_default().min(PAUSES.longest));
            listed.failures = listed.failures.saturating_add(1);
            listed.away_until = Some(now + pause);
        }
        self.list.iter().any(|listed| !listed.is_away(now))
    }

    /// Minting with the one in use worked.
    pub(crate) fn worked(&mut self) {
        if let Some(listed) = self.list.get_mut(self.in_use) {
            (listed.failures, listed.away_until) = (0, None);
        }
    }
}

/// Whether an issuer is away, and another one may not be.
fn is_outage(error: &MintError) -> bool {
    match error {
        MintError::Unreachable { .. } | MintError::Unusable { .. } => true,
        MintError::Status { status, .. } => status.is_server_error(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn answered(status: u16) -> MintError {
        let (url, status) = ("http://a".parse().unwrap(), StatusCode::from_u16(status).unwrap());
        MintError::Status { url, status, text: String::new(), retry_after: None }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_is_not_away_is_used_and_comes_back_after_its_pause() {
        let (mut issuers, now) = (Issuers::new(["a", "b"]), Instant::now());
        assert_eq!(issuers.choose(now), Some(&"a"));
        assert!(issuers.turns_from(&answered(503), now));
        assert_eq!(issuers.choose(now), Some(&"b"));
        issuers.worked();
        assert_eq!(issuers.choose(now + PAUSES.first), Some(&"a"));
        assert!(issuers.turns_from(&answered(500), now + PAUSES.first));
        assert_eq!(issuers.choose(now + 2 * PAUSES.first), Some(&"b"), "the second pause is longer");
        assert!(!issuers.turns_from(&answered(500), now + 2 * PAUSES.first), "none is left");
        assert_eq!(issuers.choose(now + 2 * PAUSES.first), Some(&"a"), "the first one, when all are away");
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_issuer_says_of_the_account_it_says_for_all() {
        let (mut issuers, now) = (Issuers::new(["a", "b"]), Instant::now());
        for status in [401, 403, 422, 429] {
            assert!(!issuers.turns_from(&answered(status), now), "{status}");
            assert_eq!(issuers.choose(now), Some(&"a"));
        }
        assert_eq!(Issuers::<u8>::new([]).choose(now), None);
    }
}
