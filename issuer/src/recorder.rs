//! Records the issuer's requests, through handles made once: a lookup by name takes a lock that the signing threads
//! would share with every connection.
//!
//! A request is recorded when it is answered ([`Recorder::answered`]), a token when it is signed
//! ([`Recorder::signed`]). Metrics and live page use the same counts, which contain nothing about the sender of a request.

use crate::catalogue::{self, AuthorizerAnswer, IssuerOutcome, TokenTypeAsked};
use metrics::{Counter, Histogram, counter, gauge, histogram};
use postern_daemon::admin::live::Latency;
use postern_telemetry::metrics::{ReadableCounter, ReadableGauge, from_zero};
use postern_token::TokenType;
use std::sync::Arc;
use std::time::Duration;

/// The handles. Every series exists from the start, so that Prometheus sees the first error as an increase.
pub(crate) struct Recorder {
    outcomes: Vec<ReadableCounter>,
    /// By type, then by outcome.
    issuances: Vec<Counter>,
    /// By type, in the order of [`TokenType::ISSUED`].
    tokens: Vec<ReadableCounter>,
    queue: ReadableGauge,
    queue_limit: ReadableGauge,
    active_accounts: ReadableGauge,
    sign_duration: Histogram,
    authorizer: Vec<Counter>,
    /// For the live page.
    spreads: Vec<Latency>,
}

postern_telemetry::label! {
    /// A part of the time that a token takes, in order.
    pub(crate) Part = "part" {
        /// Receiving the request's body: the client's and the network's time.
        Body = "receive the request",
        /// Waiting for a thread.
        Wait = "wait for a thread",
        /// Signing one token; of an amortized batch, its part.
        Sign = "sign a token",
        /// The whole request, from its head to its answer, if tokens were issued.
        Request = "answer a request",
    }
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let outcome = |outcome: &IssuerOutcome| {
            ReadableCounter::new(
                counter!(catalogue::ISSUER_REQUESTS, IssuerOutcome::LABEL => outcome.as_str()),
            )
        };
        let issuances = TokenTypeAsked::ALL
            .iter()
            .flat_map(|asked| IssuerOutcome::ALL.iter().map(|outcome| issuance(*asked, *outcome)));
        let tokens = |token_type: &TokenType| {
            let label = TokenTypeAsked::of(*token_type).as_str();
            ReadableCounter::new(counter!(catalogue::TOKENS_ISSUED, catalogue::TYPE.name => label))
        };
        let answers = |answer: &AuthorizerAnswer| {
            from_zero(counter!(catalogue::AUTHORIZER_ANSWERS, AuthorizerAnswer::LABEL => answer.as_str()))
        };
        Self {
            outcomes: IssuerOutcome::ALL.iter().map(outcome).collect(),
            issuances: issuances.collect(),
            tokens: TokenType::ISSUED.iter().map(tokens).collect(),
            queue: ReadableGauge::new(gauge!(catalogue::ISSUER_QUEUE)),
            queue_limit: ReadableGauge::new(gauge!(catalogue::ISSUER_QUEUE_LIMIT)),
            active_accounts: ReadableGauge::new(gauge!(catalogue::ISSUER_ACTIVE_ACCOUNTS)),
            sign_duration: histogram!(catalogue::ISSUER_SIGN_DURATION),
            authorizer: AuthorizerAnswer::ALL.iter().map(answers).collect(),
            spreads: Part::ALL.iter().map(|_| Latency::default()).collect(),
        }
    }

    // ---- A request ----

    /// Records an answer after `took`. `asked` is the requested token type, if it was a token request.
    pub(crate) fn answered(&self, asked: Option<TokenTypeAsked>, outcome: IssuerOutcome, took: Duration) {
        self.outcomes[outcome as usize].add(1);
        if let Some(asked) = asked {
            self.issuances[asked as usize * IssuerOutcome::ALL.len() + outcome as usize].increment(1);
        }
        if matches!(outcome, IssuerOutcome::Issued | IssuerOutcome::Partial) {
            self.took(Part::Request, took);
        }
    }

    /// Records `tokens` of one type that were signed together. `took` is the time of signing alone.
    pub(crate) fn signed(&self, token_type: TokenType, tokens: usize, took: Duration) {
        let index = TokenType::ISSUED.iter().position(|issued| *issued == token_type);
        if let Some(counter) = index.and_then(|index| self.tokens.get(index)) {
            counter.add(tokens as u64);
        }
        let each = took / u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
        self.sign_duration.record_many(each, tokens);
        for _ in 0..tokens {
            self.took(Part::Sign, each);
        }
    }

    pub(crate) fn took(&self, part: Part, time: Duration) {
        self.spreads[part as usize].record(time);
    }

    // ---- The queue ----

    /// Sets the maximum number of requests that may be signed or wait.
    pub(crate) fn set_queue_limit(&self, places: usize) {
        self.queue_limit.set(i64::try_from(places).unwrap_or(i64::MAX));
    }

    /// Counts a request in the queue until the value is dropped.
    pub(crate) fn queued(self: &Arc<Self>) -> Queued {
        self.queue.add(1);
        Queued(self.clone())
    }

    // ---- Accounts ----

    pub(crate) fn set_active_accounts(&self, accounts: usize) {
        self.active_accounts.set(i64::try_from(accounts).unwrap_or(i64::MAX));
    }

    /// Counts a question to the authorizer by its result.
    pub(crate) fn authorizer_answered(&self, answer: AuthorizerAnswer) {
        self.authorizer[answer as usize].increment(1);
    }

    // ---- For the live page ----

    pub(crate) fn active_accounts(&self) -> i64 {
        self.active_accounts.get()
    }

    pub(crate) fn total(&self, outcome: IssuerOutcome) -> u64 {
        self.outcomes[outcome as usize].total()
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.iter().map(ReadableCounter::total).sum()
    }

    /// Returns (places taken, places).
    pub(crate) fn queue(&self) -> (i64, i64) {
        (self.queue.get(), self.queue_limit.get())
    }

    pub(crate) fn latency(&self, part: Part) -> &Latency {
        &self.spreads[part as usize]
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

/// A request in the queue, counted until the value is dropped: after signing, when its client disconnects, or when its thread
/// panics.
#[derive(Debug)]
pub(crate) struct Queued(Arc<Recorder>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.queue.add(-1);
    }
}

/// Returns the counter of token requests of one type with one outcome.
fn issuance(asked: TokenTypeAsked, outcome: IssuerOutcome) -> Counter {
    // Not an answer to a token request: the series would always be 0.
    if matches!(
        outcome,
        IssuerOutcome::Directory
            | IssuerOutcome::Description
            | IssuerOutcome::NotModified
            | IssuerOutcome::SourceLimit
            | IssuerOutcome::SourceHandshakes
            | IssuerOutcome::Displaced
    ) {
        return Counter::noop();
    }
    let labels = [(TokenTypeAsked::LABEL, asked.as_str()), (IssuerOutcome::LABEL, outcome.as_str())];
    from_zero(counter!(catalogue::ISSUANCES, &labels))
}
