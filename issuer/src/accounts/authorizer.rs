//! Client of the authorizer: the operator's own service that decides on API keys, where users are managed elsewhere.
//!
//! Questions concern only keys that are not this issuer's own. All requests with one key share one question and its answer,
//! which is cached for `cache`. Questions about keys that the authorizer has not allowed before are limited to [`STRANGERS`] per
//! second, and sources take turns ([`Turns`]): a flood of wrong keys neither overloads the authorizer nor keeps users from it,
//! known or new.

mod answer;

pub(crate) use answer::Verdict;

use super::active::NoAccount;
use super::api_key::KeyDigest;
use super::configured::Tiers;
use crate::catalogue::AuthorizerAnswer;
use crate::config::AuthorizerConfig;
use crate::health::{Fault, Health};
use crate::quota::{Burst, Pace};
use crate::recorder::Recorder;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use postern_daemon::http::{BodyError, ClientError, ClientOptions, client, fetch_limited, no_answer};
use postern_daemon::seldom::Seldom;
use postern_daemon::sources::Source;
use postern_daemon::turns::Turns;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

/// Concurrent questions about keys that the authorizer has allowed before, and as many about others.
const QUESTIONS: usize = 16;
/// Questions per second about other keys, and the largest burst after a pause.
const STRANGERS: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");
const STRANGERS_AT_ONCE: NonZeroU32 = NonZeroU32::new(200).expect("it is not zero");
/// Largest number of cached answers, positive or negative; the oldest are evicted first.
const MOST_ANSWERS: usize = 4_096;
/// Longest key in a question, and longest accepted answer, in bytes.
pub(crate) const MOST_KEY: usize = 4_096;
const MOST_ANSWER: usize = 16 * 1_024;
/// Consecutive failures or invalid answers that indicate an outage and not a problem with one key.
const IN_A_ROW: u32 = 3;
/// Time a request waits beyond its question's timeouts, so that the request that sent a question observes its failure.
const SLACK: Duration = Duration::from_millis(100);
/// Pause without questions after `IN_A_ROW` failures.
const PAUSE: Duration = Duration::from_secs(1);
/// Cache time of an invalid answer.
const KEEP_ABSURD: Duration = Duration::from_secs(5);

/// The authorizer, and its cached answers.
#[derive(Debug)]
pub(crate) struct Authorizer {
    http: reqwest::Client,
    config: AuthorizerConfig,
    answers: Mutex<Answers>,
    /// Failures of questions about keys that were allowed before, and about others: failures of the second kind pause only that
    /// kind.
    known: Breaker,
    strange: Breaker,
    places: Semaphore,
    turns: Turns,
    absurd_in_a_row: AtomicU32,
    line: Seldom,
    health: Arc<Health>,
    recorder: Arc<Recorder>,
}

/// Failures and pause of one kind of question.
#[derive(Debug, Default)]
struct Breaker {
    failed_in_a_row: AtomicU32,
    paused_until: Mutex<Option<Instant>>,
}

type Cell = Arc<OnceCell<Answer>>;

#[derive(Debug, Default)]
struct Answers {
    by_key: HashMap<KeyDigest, Cell>,
    /// Keys, oldest first.
    order: VecDeque<KeyDigest>,
}

/// A verdict, and its expiry.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) until: Instant,
}

/// The sender of a key.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) source: Option<Source>,
    /// `true` if the authorizer's latest answer allowed the key.
    pub(crate) was_allowed: bool,
}

impl Authorizer {
    pub(crate) fn new(
        config: &AuthorizerConfig,
        health: Arc<Health>,
        recorder: Arc<Recorder>,
    ) -> Result<Self, ClientError> {
        let (pace, limit) =
            (Pace::default(), Burst { tokens_per_second: STRANGERS, burst_tokens: STRANGERS_AT_ONCE });
        pace.set(Some(limit));
        Ok(Self {
            http: http_client(config)?,
            config: config.clone(),
            answers: Mutex::default(),
            known: Breaker::default(),
            strange: Breaker::default(),
            places: Semaphore::new(QUESTIONS),
            turns: Turns::new(QUESTIONS, move |now| pace.take(now, 1).map(drop)),
            absurd_in_a_row: AtomicU32::default(),
            line: Seldom::every(Duration::from_secs(60)),
            health,
            recorder,
        })
    }

    /// Returns the answer about a key. Takes at most twice `timeout` plus `SLACK`: for a place, and for the answer. If dropped
    /// early, the next request that waits for the answer sends the question.
    pub(crate) async fn ask(
        &self,
        key: &str,
        digest: &KeyDigest,
        asker: Asker,
        tiers: &Tiers,
    ) -> Result<Answer, NoAccount> {
        let cell = self.answers.lock().cell(digest, Instant::now());
        let asking = cell.get_or_try_init(|| self.question(key, asker, tiers));
        match timeout(2 * self.timeout() + SLACK, asking).await {
            Ok(answer) => answer.cloned(),
            Err(_) => Err(NoAccount::Unanswered), // earlier requests' questions about this key remained unanswered
        }
    }

    /// Drops all cached answers.
    pub(crate) fn forget_all(&self) {
        *self.answers.lock() = Answers::default();
    }

    fn timeout(&self) -> Duration {
        self.config.timeout.get()
    }

    async fn question(&self, key: &str, asker: Asker, tiers: &Tiers) -> Result<Answer, NoAccount> {
        if asker.was_allowed {
            let place = timeout(self.timeout(), self.places.acquire()).await.ok().and_then(Result::ok);
            let _place = place.ok_or_else(|| self.withhold(NoAccount::Unanswered))?;
            self.ask_in(&self.known, key, tiers).await
        } else if self.strange.is_paused() {
            Err(self.withhold(NoAccount::Unanswered))
        } else {
            let turn = timeout(self.timeout(), self.turns.next(asker.source)).await.ok().flatten();
            let _turn = turn.ok_or_else(|| self.withhold(NoAccount::Crowded))?;
            self.ask_in(&self.strange, key, tiers).await
        }
    }

    fn withhold(&self, why: NoAccount) -> NoAccount {
        self.recorder.authorizer_answered(AuthorizerAnswer::Withheld);
        why
    }

    async fn ask_in(&self, breaker: &Breaker, key: &str, tiers: &Tiers) -> Result<Answer, NoAccount> {
        if breaker.is_paused() {
            return Err(self.withhold(NoAccount::Unanswered));
        }
        match self.exchange(key).await {
            Ok(answer) => {
                if answer.is_ok() {
                    breaker.failed_in_a_row.store(0, Ordering::Relaxed);
                }
                Ok(self.judged(answer, tiers))
            }
            Err(reason) => {
                self.recorder.authorizer_answered(AuthorizerAnswer::Failed);
                let row = breaker.failed();
                self.trouble(
                    row,
                    format!(
                        "the authorizer gives no answer: {reason}. Requests with API keys that it has not allowed within [authorizer] \
                         cache are answered 503; accounts of this issuer's own get tokens as before"
                    ),
                );
                Err(NoAccount::Unanswered)
            }
        }
    }

    /// Reports a lasting failure in readiness, and a single one in the log, at a limited rate.
    fn trouble(&self, row: u32, sentence: String) {
        if row >= IN_A_ROW {
            self.health.raise(Fault::Authorizer, sentence);
        } else if self.line.due(Instant::now()).is_some() {
            tracing::warn!("{sentence}");
        }
    }

    /// Sends a question. Returns the body of a 200, or what is wrong with another answer, which may be about this key alone. Fails
    /// if the service cannot be reached, or what is in front of it answers so.
    async fn exchange(&self, key: &str) -> Result<Result<Bytes, String>, String> {
        #[derive(Serialize)]
        struct Question<'a> {
            version: u32,
            api_key: &'a str,
        }
        let body = serde_json::to_vec(&Question { version: 1, api_key: key })
            .map_err(|_| "the question cannot be written".to_owned())?;
        let request = self.http.post(&self.config.url).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|error| no_answer(&error, "authorizer.ca"))?;
        let status = response.status();
        let other = || format!("it answers {} where 200 is expected", status.as_u16());
        match status {
            StatusCode::OK => match fetch_limited(response, MOST_ANSWER).await {
                Err(error @ BodyError::Broken(_)) => Err(error.to_string()),
                read => Ok(read.map_err(|error| error.to_string())),
            },
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(other()),
            _ => Ok(Err(other())),
        }
    }

    fn judged(&self, answer: Result<Bytes, String>, tiers: &Tiers) -> Answer {
        let read = answer.and_then(|body| answer::read(&body, tiers).map_err(str::to_owned));
        let (verdict, answered) = match read {
            Ok(allowed @ Verdict::Allowed(_)) => (allowed, AuthorizerAnswer::Allowed),
            Ok(verdict) => (verdict, AuthorizerAnswer::Denied),
            Err(why) => {
                let row = self.absurd_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                self.trouble(
                    row,
                    format!(
                        "the authorizer's answers make no sense: {why}. Requests with such keys are answered 503; \
                         docs/operate/accounts.md has what it may answer"
                    ),
                );
                (Verdict::Absurd, AuthorizerAnswer::Absurd)
            }
        };
        self.recorder.authorizer_answered(answered);
        let kept = if answered == AuthorizerAnswer::Absurd {
            KEEP_ABSURD
        } else {
            self.absurd_in_a_row.store(0, Ordering::Relaxed);
            self.health.clear(Fault::Authorizer);
            self.config.cache.get()
        };
        Answer { verdict, until: Instant::now() + kept }
    }
}

/// Creates the client of an authorizer. Reads the certificates to trust.
pub(crate) fn http_client(config: &AuthorizerConfig) -> Result<reqwest::Client, ClientError> {
    let (ca_file, timeout) = (config.ca.clone(), config.timeout.get());
    client(&ClientOptions { ca_file, timeout, ..ClientOptions::default() })
}

impl Breaker {
    fn is_paused(&self) -> bool {
        self.paused_until.lock().is_some_and(|end| Instant::now() < end)
    }

    /// Records a failure; returns the number of consecutive failures.
    fn failed(&self) -> u32 {
        let row = self.failed_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if row >= IN_A_ROW {
            *self.paused_until.lock() = Some(Instant::now() + PAUSE);
        }
        row
    }
}

impl Answers {
    /// Returns the cell that has, or will have, the answer about a key.
    fn cell(&mut self, digest: &KeyDigest, now: Instant) -> Cell {
        if let Some(cell) = self.by_key.get_mut(digest) {
            if cell.get().is_some_and(|answer| answer.until <= now) {
                *cell = Cell::default();
            }
            return cell.clone();
        }
        while self.order.len() >= MOST_ANSWERS {
            let oldest = self.order.pop_front();
            oldest.iter().for_each(|oldest| drop(self.by_key.remove(oldest)));
        }
        self.order.push_back(*digest);
        self.by_key.entry(*digest).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(cell: &Cell, until: Instant) {
        cell.set(Answer { verdict: Verdict::Denied(None), until }).unwrap();
    }

    #[test]
    fn answers_are_kept_for_their_time_and_the_oldest_go_where_there_are_too_many() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        let second = Duration::from_secs(1);
        let key = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            key
        };
        answered(&answers.cell(&key(0), start), start + second);
        assert!(answers.cell(&key(0), start).get().is_some());
        assert!(answers.cell(&key(0), start + second).get().is_none(), "it is asked again");
        answered(&answers.cell(&key(0), start + second), start + 9 * second);
        for number in 1..=MOST_ANSWERS {
            answers.cell(&key(number), start);
        }
        assert_eq!((answers.by_key.len(), answers.order.len()), (MOST_ANSWERS, MOST_ANSWERS));
        assert!(answers.cell(&key(0), start).get().is_none(), "it was the oldest");
    }

    #[test]
    fn a_lane_pauses_after_failures_in_a_row() {
        let breaker = Breaker::default();
        assert_eq!((breaker.failed(), breaker.failed(), breaker.is_paused()), (1, 2, false));
        breaker.failed_in_a_row.store(0, Ordering::Relaxed);
        assert_eq!((breaker.failed(), breaker.failed(), breaker.is_paused()), (1, 2, false));
        assert_eq!((breaker.failed(), breaker.is_paused()), (3, true));
    }
}
