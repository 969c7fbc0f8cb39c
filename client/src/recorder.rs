//! Records requests and tokens through handles made once, for metrics and live page alike. Holds nothing about who sent a request,
//! or for what.

pub(crate) use crate::catalogue::TokenFate as Fate;
use crate::catalogue::{self, AgentOutcome, Position};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use postern_admin::live::{Latency, Link};
use postern_telemetry::metrics::{ReadableCounter, ReadableGauge};
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Requests of programs, counted by outcome.
pub(crate) struct Answers(Vec<ReadableCounter>);

impl Answers {
    pub(crate) fn new() -> Self {
        let outcome = |outcome: &AgentOutcome| {
            ReadableCounter::new(counter!(catalogue::AGENT_REQUESTS, AgentOutcome::LABEL => outcome.as_str()))
        };
        Self(AgentOutcome::ALL.iter().map(outcome).collect())
    }

    /// Counts an answered request.
    pub(crate) fn count(&self, outcome: AgentOutcome) {
        self.0[outcome as usize].add(1);
    }

    pub(crate) fn total(&self, outcome: AgentOutcome) -> u64 {
        self.0[outcome as usize].total()
    }
}

/// Tokens of one hop, and the tunnels they pay for. Every series exists from the start, so that Prometheus sees the first
/// error as an increase.
pub(crate) struct Recorder {
    hop: Position,
    fates: Vec<ReadableCounter>,
    wallet: Arc<ReadableGauge>,
    /// A gateway in the same process has the metric of this name, so it is for the page only.
    tunnels: AtomicUsize,
    spreads: Vec<Latency>,
    trouble: Mutex<Option<Trouble>>,
    last_minted: Mutex<Option<UnixSeconds>>,
    last_failed: Mutex<Option<(UnixSeconds, String)>>,
}

/// A part of the time that opening a tunnel takes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A connection to the gateway, TLS handshake included.
    Dial,
    /// A token: off the disk, or minted while the request waits.
    Token,
    /// The gateway's 200; its own dial to the target is in it.
    Answer,
    /// All of it, from the program's request to the 200, second tries included.
    Open,
}

/// The failure of the last attempt to mint, for the live page.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// The sentence, with the issuer's own words and what to do.
    pub(crate) sentence: String,
    pub(crate) next_attempt: Instant,
    /// There are still tokens.
    pub(crate) is_stocked: bool,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [Self::Dial, Self::Token, Self::Answer, Self::Open];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Dial => "dial the gateway",
            Self::Token => "get a token",
            Self::Answer => "gateway's answer",
            Self::Open => "open a tunnel",
        }
    }
}

impl Recorder {
    /// Makes the handles. `wallet` is the level that the wallet keeps.
    pub(crate) fn new(hop: Position, wallet: Arc<ReadableGauge>) -> Self {
        let fate = |fate: &Fate| {
            let labels = [(Fate::LABEL, fate.as_str()), (Position::LABEL, hop.as_str())];
            ReadableCounter::new(counter!(catalogue::AGENT_TOKENS, &labels))
        };
        marks_refused(hop).increment(0); // there from the start
        Self {
            hop,
            fates: Fate::ALL.iter().map(fate).collect(),
            wallet,
            tunnels: AtomicUsize::new(0),
            spreads: Part::ALL.iter().map(|_| Latency::default()).collect(),
            trouble: Mutex::default(),
            last_minted: Mutex::default(),
            last_failed: Mutex::default(),
        }
    }

    /// Counts the fate of `number` tokens.
    pub(crate) fn fate(&self, fate: Fate, number: usize) {
        self.fates[fate as usize].add(number as u64);
    }

    /// Counts a minted token.
    pub(crate) fn minted(&self) {
        self.fate(Fate::Minted, 1);
        *self.last_minted.lock() = Some(UnixSeconds::now());
    }

    /// Records a failed attempt to mint.
    pub(crate) fn mint_failed(&self, sentence: &str) {
        *self.last_failed.lock() = Some((UnixSeconds::now(), sentence.to_owned()));
    }

    pub(crate) fn took(&self, part: Part, time: Duration) {
        self.spreads[part as usize].record(time);
    }

    /// Records an open tunnel: the gateway answered after `answer`, and all of it took `whole`.
    pub(crate) fn opened(self: &Arc<Self>, answer: Duration, whole: Duration) -> OpenTunnel {
        self.took(Part::Answer, answer);
        self.took(Part::Open, whole);
        self.tunnels.fetch_add(1, Relaxed);
        OpenTunnel(self.clone())
    }

    /// Counts an attempt to mint that the gateway's marks prevented.
    pub(crate) fn marks_refused(&self) {
        marks_refused(self.hop).increment(1);
    }

    /// Sets or clears the failure of minting.
    pub(crate) fn minting(&self, trouble: Option<Trouble>) {
        *self.trouble.lock() = trouble;
    }

    // ---- For the live page and the status command ----

    /// Returns when the last token was minted since the start.
    pub(crate) fn last_minted(&self) -> Option<UnixSeconds> {
        *self.last_minted.lock()
    }

    /// Returns the last failure to mint since the start.
    pub(crate) fn last_failed(&self) -> Option<(UnixSeconds, String)> {
        self.last_failed.lock().clone()
    }

    pub(crate) fn fates(&self, fate: Fate) -> u64 {
        self.fates[fate as usize].total()
    }

    pub(crate) fn wallet(&self) -> i64 {
        self.wallet.get()
    }

    pub(crate) fn tunnels(&self) -> usize {
        self.tunnels.load(Relaxed)
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().clone()
    }

    pub(crate) fn latency(&self, part: Part) -> &Latency {
        &self.spreads[part as usize]
    }
}

fn marks_refused(hop: Position) -> Counter {
    counter!(catalogue::AGENT_MARKS_REFUSED, Position::LABEL => hop.as_str())
}

/// An open tunnel, counted until the value is dropped.
pub(crate) struct OpenTunnel(Arc<Recorder>);

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Relaxed);
    }
}

/// Records attempts over a link; a command that runs once records none.
///
/// To the gateway an attempt is a dial, name, TCP and TLS: it is answered when there is a connection. An exchange on
/// that connection that ends without an answer we can read is one more attempt, and a lost one; the time of an answer
/// is not the link's, for the gateway's dial to the target is in it. To the issuer an attempt is a request: it is
/// answered when its whole answer is there, whatever the status. A request given up because a program hung up is not an
/// attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(Option<Link>);

impl Attempts {
    pub(crate) fn over(link: Link) -> Self {
        Self(Some(link))
    }

    pub(crate) fn answered(&self, took: Duration) {
        if let Some(link) = &self.0 {
            link.answered(took);
        }
    }

    pub(crate) fn lost(&self) {
        if let Some(link) = &self.0 {
            link.lost(1);
        }
    }
}
