//! Where tokens come from: the issuers of the configuration, or the one that the challenge names.
//!
//! All issuers of a list sign with the same keys for the same account, so a token of one is as good as a token of another. The
//! first issuer that is not away is used. An issuer is away when it cannot be reached, answers 5xx, or answers what no issuer
//! does; and while it has no more for the account (429), for as long as it says: issuers that share accounts each give a part of
//! the quota. An account that is refused (401, 403) is refused by all of them, and no other one is tried.

use crate::config::IssuerConfig;
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::recorder::Attempts;
use crate::wallet::challenge::CurrentChallenge;
use http::StatusCode;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;
use postern_daemon::backoff::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses for which a failed issuer is skipped.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(30), longest: Duration::from_secs(600) };
/// Limit on the time that an issuer is skipped for an exhausted quota, which may be raised meanwhile.
const LONGEST_SPENT: Duration = Duration::from_secs(240);

/// Name in the link table of an issuer that only a challenge names. With the challenge's names a gateway could fill the
/// table.
const BY_CHALLENGE: &str = "by challenge";

/// The issuers that sign the tokens.
pub(crate) struct TokenSource {
    live: Live,
    config: IssuerConfig,
    /// The issuers of the configuration; none if only challenges name one.
    issuers: Issuers<IssuerClient>,
    /// Records the issuer that a challenge names.
    attempts: Attempts,
    named: Option<(String, IssuerClient)>,
}

impl TokenSource {
    /// Makes the clients of `config`, whose requests `live` shows.
    pub(crate) fn new(config: IssuerConfig, live: &Live) -> Result<Self, MintError> {
        let attempts = |address: &str| Attempts::over(live.link(LinkKind::Issuer, address));
        let recorded = |client: IssuerClient| {
            let attempts = attempts(&client.address());
            client.recorded(attempts)
        };
        let issuers = Issuers::new(IssuerClient::all(&config)?.into_iter().map(recorded));
        let attempts = if issuers.len() == 0 { attempts(BY_CHALLENGE) } else { Attempts::default() };
        Ok(Self { live: live.clone(), config, issuers, attempts, named: None })
    }

    /// Replaces the issuers, or the account there.
    pub(crate) fn replace(&mut self, config: IssuerConfig) -> Result<(), MintError> {
        *self = Self::new(config, &self.live)?;
        Ok(())
    }

    /// Returns the number of issuers to try: at least one.
    pub(crate) fn tries(&self) -> usize {
        self.issuers.len().max(1)
    }

    /// Chooses the issuer for a challenge.
    pub(crate) fn of(&mut self, current: &CurrentChallenge) -> Result<IssuerClient, MintError> {
        if let Some(client) = self.issuers.choose(Instant::now()) {
            return Ok(client.clone());
        }
        match &self.named {
            Some((name, client)) if *name == current.issuer_name => Ok(client.clone()),
            _ => {
                let client = IssuerClient::named(&current.issuer_name, self.config.ca.clone())?;
                let client = client.recorded(self.attempts.clone());
                self.named = Some((current.issuer_name.clone(), client.clone()));
                Ok(client)
            }
        }
    }

    /// Records a failure; returns true if another issuer is to be tried at once.
    pub(crate) fn turns_from(&mut self, error: &MintError) -> bool {
        let turns = self.issuers.turns_from(error, Instant::now());
        if turns {
            tracing::warn!("{error}; the next issuer of the list is used meanwhile");
        }
        turns
    }

    /// Returns the time until an issuer of the list is not away.
    pub(crate) fn back_in(&self) -> Option<Duration> {
        self.issuers.back_in(Instant::now())
    }

    pub(crate) fn worked(&mut self) {
        self.issuers.worked();
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
    away: Option<Away>,
}

/// The reason why an issuer is skipped, and until when.
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

impl<T> ListedIssuer<T> {
    fn away(&self, now: Instant) -> Option<Away> {
        self.away.filter(|away| now < away.until)
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away(now).is_some()
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

    /// Chooses the first issuer that is not away, or the first that may have come back, or the one whose quota begins anew
    /// first.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<&T> {
        let away = |listed: &ListedIssuer<T>| listed.away(now);
        let present = self.list.iter().position(|listed| away(listed).is_none());
        let is_out = |listed| away(listed).is_some_and(|away| away.cause == Cause::Outage);
        let soonest = || {
            let spent = self.list.iter().enumerate();
            spent.min_by_key(|(_, listed)| away(listed).map(|away| away.until)).map(|(place, _)| place)
        };
        self.in_use = present.or_else(|| self.list.iter().position(is_out)).or_else(soonest).unwrap_or(0);
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
            listed.away = Some(Away { cause, until: now + pause });
        }
        self.list.iter().any(|listed| !listed.is_away(now))
    }

    /// Returns the time until an issuer is not away.
    pub(crate) fn back_in(&self, now: Instant) -> Option<Duration> {
        let left = |listed: &ListedIssuer<T>| {
            listed.away(now).map_or(Duration::ZERO, |away| away.until.saturating_duration_since(now))
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
