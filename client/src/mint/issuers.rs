//! Which issuer of a list is used: the first that is not away. No I/O; time is an argument.
//!
//! All of a list sign with the same keys for the same account, so that tokens of one are as good as those of another. An issuer is away
//! when it cannot be reached, answers 5xx, or answers what no issuer does; and when it has no more for the account at the moment (429),
//! for as long as it says: issuers that share accounts each give a part of the quota. That the account itself is refused (401, 403) it
//! says in place of all, and another one is not tried.

use crate::mint::error::MintError;
use http::StatusCode;
use postern_daemon::backoff::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// For how long one that failed is passed over.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(30), longest: Duration::from_secs(600) };
/// The longest that an issuer can have itself passed over for a quota that is used up, which may be raised meanwhile.
const LONGEST_SPENT: Duration = Duration::from_secs(240);

/// A list of issuers in order of preference, and which of them were found away.
pub(crate) struct Issuers<T> {
    list: Vec<Listed<T>>,
    in_use: usize,
}

struct Listed<T> {
    issuer: T,
    failures: u32,
    away: Option<Away>,
}

/// Why an issuer is passed over, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Away {
    cause: Cause,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It does not serve.
    Outage,
    /// It gives the account no more at the moment.
    Spent,
}

impl<T> Listed<T> {
    fn away(&self, now: Instant) -> Option<Away> {
        self.away.filter(|away| now < away.until)
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away(now).is_some()
    }
}

impl<T> Issuers<T> {
    pub(crate) fn new(list: impl IntoIterator<Item = T>) -> Self {
        let listed = |issuer| Listed { issuer, failures: 0, away: None };
        Self { list: list.into_iter().map(listed).collect(), in_use: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The one to use: the first that is not away, else the first that may have come back, else the one whose quota begins anew
    /// first. `None` of an empty list.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<&T> {
        let away = |listed: &Listed<T>| listed.away(now);
        let present = self.list.iter().position(|listed| away(listed).is_none());
        let is_out = |listed| away(listed).is_some_and(|away| away.cause == Cause::Outage);
        let soonest = || {
            let spent = self.list.iter().enumerate();
            spent.min_by_key(|(_, listed)| away(listed).map(|away| away.until)).map(|(place, _)| place)
        };
        self.in_use = present.or_else(|| self.list.iter().position(is_out)).or_else(soonest).unwrap_or(0);
        self.list.get(self.in_use).map(|listed| &listed.issuer)
    }

    /// Minting with the one in use failed. Whether there is another one to try at once.
    pub(crate) fn turns_from(&mut self, error: &MintError, now: Instant) -> bool {
        let Some(cause) = cause(error) else { return false };
        if let Some(listed) = self.list.get_mut(self.in_use) {
            let asked = error.retry_after();
            let pause = match cause {
                Cause::Outage => {
                    let pause =
                        PAUSES.pause(listed.failures).max(asked.unwrap_or_default().min(PAUSES.longest));
                    listed.failures = listed.failures.saturating_add(1);
                    pause
                }
                Cause::Spent => asked.unwrap_or(PAUSES.first).min(LONGEST_SPENT),
            };
            listed.away = Some(Away { cause, until: now + pause });
        }
        self.list.iter().any(|listed| !listed.is_away(now))
    }

    /// How long until one of them is not away; nothing of an empty list.
    pub(crate) fn back_in(&self, now: Instant) -> Option<Duration> {
        let left = |listed: &Listed<T>| {
            listed.away(now).map_or(Duration::ZERO, |away| away.until.saturating_duration_since(now))
        };
        self.list.iter().map(left).min()
    }

    /// Minting with the one in use worked.
    pub(crate) fn worked(&mut self) {
        if let Some(listed) = self.list.get_mut(self.in_use) {
            (listed.failures, listed.away) = (0, None);
        }
    }
}

/// Why an issuer is away, if it is, and another one may not be.
fn cause(error: &MintError) -> Option<Cause> {
    match error {
        MintError::Unreachable { .. } | MintError::Unusable { .. } => Some(Cause::Outage),
        MintError::Status { status, .. } if status.is_server_error() => Some(Cause::Outage),
        MintError::Status { status: StatusCode::TOO_MANY_REQUESTS, .. } => Some(Cause::Spent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> MintError {
        let (url, status) = ("http://a".parse().unwrap(), StatusCode::from_u16(status).unwrap());
        MintError::Status { url, status, text: String::new(), retry_after: None }
    }

    fn spent(seconds: u64) -> MintError {
        let (url, status) = ("http://a".parse().unwrap(), StatusCode::TOO_MANY_REQUESTS);
        MintError::Status {
            url,
            status,
            text: String::new(),
            retry_after: Some(Duration::from_secs(seconds)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_no_more_for_the_account_is_passed_over_for_as_long_as_it_says() {
        let (mut issuers, now) = (Issuers::new(["a", "b", "c"]), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(issuers.choose(now), Some(&"a"));
        assert!(issuers.turns_from(&spent(200), now));
        assert_eq!(issuers.choose(now), Some(&"b"));
        assert!(issuers.turns_from(&spent(90), now));
        assert_eq!(issuers.choose(now), Some(&"c"));
        assert!(!issuers.turns_from(&answered(503), now), "none is left");
        assert_eq!(
            issuers.choose(now),
            Some(&"c"),
            "a quota does not come back early, and an outage may end"
        );
        assert_eq!(issuers.back_in(now), Some(PAUSES.first));
        assert!(issuers.turns_from(&spent(7_200), after(90)), "b has a quota again");
        assert_eq!(issuers.choose(after(90)), Some(&"b"));
        assert!(!issuers.turns_from(&spent(230), after(90)));
        assert_eq!(issuers.choose(after(91)), Some(&"a"));
        assert_eq!(issuers.back_in(after(91)), Some(Duration::from_secs(109)));
        assert!(issuers.choose(after(91 + 300)).is_some());
        assert_eq!(issuers.back_in(after(91 + 300)), Some(Duration::ZERO), "minutes are the longest");
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
        for status in [401, 403, 422] {
            assert!(!issuers.turns_from(&answered(status), now), "{status}");
            assert_eq!(issuers.choose(now), Some(&"a"));
        }
        assert_eq!(Issuers::<u8>::new([]).choose(now), None);
    }
}
