//! Counts of requests and tokens, for metrics and live page. Nothing in them identifies a client or a destination.

pub(crate) use crate::catalogue::TokenFate as Fate;
use crate::catalogue::{self, AgentOutcome, Position};
use metrics::{Counter, counter, gauge};
use parking_lot::Mutex;
use postern_daemon::admin::live::Latency;
use postern_telemetry::catalogue::from_zero;
use postern_telemetry::metrics::{ReadableCounter, ReadableGauge};
use postern_token::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Counters of program requests, by outcome, of streams of UDP, and of lost datagrams.
pub(crate) struct Answers {
    outcomes: Vec<ReadableCounter>,
    udp_open: ReadableGauge,
    udp_opened: ReadableCounter,
    udp_dropped: ReadableCounter,
}

/// UDP of programs, in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpStatus {
    /// Open streams, one for each target of a program.
    pub streams_open: i64,
    /// Streams opened since the start.
    pub streams_opened: u64,
    /// Datagrams of programs, and to them, that were lost in the agent since the start.
    pub datagrams_dropped: u64,
}

/// An open stream of UDP, counted until the value is dropped.
pub(crate) struct OpenUdp(Arc<Answers>);

impl Drop for OpenUdp {
    fn drop(&mut self) {
        self.0.udp_open.add(-1);
    }
}

impl Answers {
    pub(crate) fn new() -> Self {
        let outcome = |outcome: &AgentOutcome| {
            ReadableCounter::new(counter!(catalogue::AGENT_REQUESTS, AgentOutcome::LABEL => outcome.as_str()))
        };
        Self {
            outcomes: AgentOutcome::ALL.iter().map(outcome).collect(),
            udp_open: ReadableGauge::new(gauge!(catalogue::AGENT_UDP_OPEN)),
            udp_opened: ReadableCounter::new(counter!(catalogue::AGENT_UDP_OPENED)),
            udp_dropped: ReadableCounter::new(counter!(catalogue::AGENT_UDP_DROPPED)),
        }
    }

    pub(crate) fn udp_opened(self: &Arc<Self>) -> OpenUdp {
        self.udp_open.add(1);
        self.udp_opened.add(1);
        OpenUdp(Arc::clone(self))
    }

    pub(crate) fn udp_dropped(&self, datagrams: usize) {
        self.udp_dropped.add(datagrams as u64);
    }

    pub(crate) fn udp(&self) -> UdpStatus {
        UdpStatus {
            streams_open: self.udp_open.get(),
            streams_opened: self.udp_opened.total(),
            datagrams_dropped: self.udp_dropped.total(),
        }
    }

    pub(crate) fn count(&self, outcome: AgentOutcome) {
        self.outcomes[outcome as usize].add(1);
    }

    pub(crate) fn total(&self, outcome: AgentOutcome) -> u64 {
        self.outcomes[outcome as usize].total()
    }
}

/// Counters of one hop's tokens and tunnels. Every series exists from the start, so that Prometheus sees the first error as an
/// increase.
pub(crate) struct Recorder {
    fates: Vec<ReadableCounter>,
    wallet: Arc<ReadableGauge>,
    /// For the live page only: a gateway in the same process exports a metric of this name.
    tunnels: AtomicUsize,
    spreads: Vec<Latency>,
    /// Attempts to mint that the gateway's marks prevented.
    pub(crate) marks_refused: Counter,
    pub(crate) minting: Mutex<Minting>,
}

/// The state of minting, for the live page and the status command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Minting {
    /// A failure that lasts, and `true` if the wallet still has tokens.
    pub(crate) trouble: Option<(Failure, bool)>,
    /// Time of the last token minted since the start.
    pub(crate) last_minted: Option<UnixSeconds>,
    /// The last failure since the start.
    pub(crate) last_failure: Option<FailureStatus>,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) sentence: String,
    pub(crate) kind: FailureKind,
    pub(crate) next_attempt: Instant,
}

/// The category of a failure, which decides the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The gateway gave no challenge, without which there is no tunnel.
    Gateway,
    /// Gateway and issuer do not agree on a key.
    Key,
    /// The gateway's challenge comes too soon after others; the error contains the pause. Another one may be acceptable, and a retry
    /// costs nothing.
    Mark,
    /// The failure passes without intervention.
    Passing,
    /// An operator must repair something first.
    Lasting,
}

/// A failure to mint, in the status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureStatus {
    /// The time of the failure.
    pub at: UnixSeconds,
    /// The error message: event, meaning and remedy.
    pub sentence: String,
}

postern_telemetry::label! {
    /// A phase of opening a tunnel, in order, for the live page.
    pub(crate) Part = "part" {
        /// Connecting to the gateway, including the TLS handshake.
        Dial = "dial the gateway",
        /// Getting a token: from the disk, or minted while the request waits.
        Token = "get a token",
        /// Waiting for the gateway's 200, which includes the gateway's dial to the target.
        Answer = "gateway's answer",
        /// The total, from the program's request to the 200, including further attempts.
        Open = "open a tunnel",
    }
}

impl Recorder {
    /// Registers the counters. `wallet` is the gauge that the wallet maintains.
    pub(crate) fn new(hop: Position, wallet: Arc<ReadableGauge>) -> Self {
        let fate = |fate: &Fate| {
            let labels = [(Fate::LABEL, fate.as_str()), (Position::LABEL, hop.as_str())];
            ReadableCounter::new(counter!(catalogue::AGENT_TOKENS, &labels))
        };
        Self {
            fates: Fate::ALL.iter().map(fate).collect(),
            wallet,
            tunnels: AtomicUsize::new(0),
            spreads: Part::ALL.iter().map(|_| Latency::default()).collect(),
            marks_refused: from_zero(
                counter!(catalogue::AGENT_MARKS_REFUSED, Position::LABEL => hop.as_str()),
            ),
            minting: Mutex::default(),
        }
    }

    /// Counts `number` tokens with this fate.
    pub(crate) fn fate(&self, fate: Fate, number: usize) {
        self.fates[fate as usize].add(number as u64);
    }

    pub(crate) fn minted(&self) {
        self.fate(Fate::Minted, 1);
        self.minting.lock().last_minted = Some(UnixSeconds::now());
    }

    pub(crate) fn took(&self, part: Part, time: Duration) {
        self.spreads[part as usize].record(time);
    }

    /// Records an opened tunnel: `answer` is the gateway's answer time, `whole` the total.
    pub(crate) fn opened(self: &Arc<Self>, answer: Duration, whole: Duration) -> OpenTunnel {
        self.took(Part::Answer, answer);
        self.took(Part::Open, whole);
        self.tunnels.fetch_add(1, Relaxed);
        OpenTunnel(self.clone())
    }

    // ---- For the live page and the status command ----

    pub(crate) fn fates(&self, fate: Fate) -> u64 {
        self.fates[fate as usize].total()
    }

    pub(crate) fn wallet(&self) -> i64 {
        self.wallet.get()
    }

    pub(crate) fn tunnels(&self) -> usize {
        self.tunnels.load(Relaxed)
    }

    pub(crate) fn latency(&self, part: Part) -> &Latency {
        &self.spreads[part as usize]
    }
}

/// An open tunnel, counted until the value is dropped.
pub(crate) struct OpenTunnel(Arc<Recorder>);

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Relaxed);
    }
}
