//! The source of tokens: the issuers of the configuration, or the one that the challenge names.
//!
//! All issuers of a list sign with the same keys for the same accounts, so their tokens are equivalent. The first issuer that is
//! not away is used. An issuer is away if it cannot be reached, answers 5xx, or gives an answer that no issuer gives; and, if the
//! account's quota there is used up (429), for the time in its `Retry-After`, up to a limit: issuers that share accounts each
//! grant a part of the quota. A refused account (401, 403) is refused by all of them, and no other issuer is tried.

use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::settings::TokenSettings;
use crate::wallet::challenge::CurrentChallenge;
use http::StatusCode;
use postern_daemon::admin::catalogue::LinkKind;
use postern_daemon::admin::live::{Link, Live};
use postern_daemon::backoff::Backoff;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses for which a failed issuer is skipped.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(30), longest: Duration::from_secs(600) };
/// Maximum time for which an issuer is skipped for an exhausted quota, which may be raised before its `Retry-After` is over.
const LONGEST_SPENT: Duration = Duration::from_secs(240);

/// Name in the link table of an issuer that only a challenge names. A gateway could fill the table with names of its choice.
const BY_CHALLENGE: &str = "by challenge";

pub(crate) struct TokenSource {
    live: Live,
    /// Trusted authorities for the issuer that a challenge names, and the recorder of its requests.
    ca: Option<PathBuf>,
    by_challenge: Option<Link>,
    /// The issuers of the configuration; none if only challenges name one.
    pub(crate) issuers: Issuers<IssuerClient>,
    named: Option<(String, IssuerClient)>,
}

impl TokenSource {
    /// Takes the clients of `settings`. `live` shows their requests.
    pub(crate) fn new(settings: &TokenSettings, live: &Live) -> Self {
        let link = |address: &str| live.link(LinkKind::Issuer, address);
        let recorded = |client: &IssuerClient| client.clone().recorded(Some(link(&client.address())));
        let issuers = Issuers::new(settings.issuers.iter().map(recorded));
        let by_challenge = settings.issuers.is_empty().then(|| link(BY_CHALLENGE));
        Self { live: live.clone(), ca: settings.issuer_ca.clone(), by_challenge, issuers, named: None }
    }

    pub(crate) fn replace(&mut self, settings: &TokenSettings) {
        *self = Self::new(settings, &self.live);
    }

    /// Returns the number of issuers to try: at least one.
    pub(crate) fn tries(&self) -> usize {
        self.issuers.len().max(1)
    }

    pub(crate) fn of(&mut self, current: &CurrentChallenge) -> Result<IssuerClient, MintError> {
        if let Some(client) = self.issuers.choose(Instant::now()) {
            return Ok(client.clone());
        }
        match &self.named {
            Some((name, client)) if *name == current.issuer_name => Ok(client.clone()),
            _ => {
                let client = IssuerClient::named(&current.issuer_name, self.ca.clone())?;
                let client = client.recorded(self.by_challenge.clone());
                self.named = Some((current.issuer_name.clone(), client.clone()));
                Ok(client)
            }
        }
    }

    /// Records a failure; returns `true` if an issuer can be tried at once.
    pub(crate) fn turns_from(&mut self, error: &MintError) -> bool {
        self.issuers.turns_from(error, Instant::now())
    }
}

/// Issuers in order of preference, and those that are away. Time is an argument.
pub(crate) struct Issuers<T> {
    list: Vec<ListedIssuer<T>>,
    in_use: usize,
}

struct ListedIssuer<T> {
    issuer: T,
    failures: u32,
    /// The reason why it is skipped, and until when.
    away: Option<(Cause, Instant)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Outage,
    Spent,
}

impl<T> ListedIssuer<T> {
    fn away(&self, now: Instant) -> Option<(Cause, Instant)> {
        self.away.filter(|(_, until)| now < *until)
    }
}

impl<T> Issuers<T> {
    pub(crate) fn new(list: impl IntoIterator<Item = T>) -> Self {
        let listed = |issuer| ListedIssuer { issuer, failures: 0, away: None };
        Self { list: list.into_iter().map(listed).collect(), in_use: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Chooses the first issuer that is not away; otherwise the first one with an outage, which may have ended; otherwise the one
    /// whose quota returns first.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<&T> {
        let rank = |listed: &ListedIssuer<T>| match listed.away(now) {
            None => (0, None),
            Some((Cause::Outage, _)) => (1, None),
            Some((Cause::Spent, until)) => (2, Some(until)),
        };
        let first = self.list.iter().enumerate().min_by_key(|(_, listed)| rank(listed));
        self.in_use = first.map_or(0, |(place, _)| place);
        self.list.get(self.in_use).map(|listed| &listed.issuer)
    }

    /// Records a failure of the issuer in use; returns true if there is another one to try at once.
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
            listed.away = Some((cause, now + pause));
        }
        self.list.iter().any(|listed| listed.away(now).is_none())
    }

    /// Returns the time until the first issuer is available again.
    pub(crate) fn back_in(&self, now: Instant) -> Option<Duration> {
        let left = |listed: &ListedIssuer<T>| {
            listed.away(now).map_or(Duration::ZERO, |(_, until)| until.saturating_duration_since(now))
        };
        self.list.iter().map(left).min()
    }

    pub(crate) fn worked(&mut self) {
        if let Some(listed) = self.list.get_mut(self.in_use) {
            (listed.failures, listed.away) = (0, None);
        }
    }
}

/// Returns the reason to skip an issuer, if another one may serve.
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
