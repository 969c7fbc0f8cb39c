//! Users of agents: programs that open one tunnel after another, and what each of them got.

use super::proxy::{Head, connect, dial, echoes};
use super::udp::{capsule, upgrade};
use super::unit::Unit;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex as Turn;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than any deadline of an agent: its user has an answer by then.
const LONGEST: Duration = Duration::from_secs(90);
/// With a target of UDP, one request of this many asks for it.
const UDP_SHARE: usize = 4;
/// A busy machine may lose a datagram, so it is sent again.
const DATAGRAMS: usize = 4;
const ECHOED: Duration = Duration::from_secs(2);
/// The agent's answer for a target whose last stream broke: a program goes on over TCP, as browsers do.
const AGAIN: &str = "of a few seconds ago again";

/// A user's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// 200, and bytes went there and back.
    Tunnel,
    /// 200, and the tunnel broke before the bytes were back.
    Broken(String),
    /// Another status, and the sentence that came with it.
    Refusal(u16, String),
    /// No answer: the agent does not listen, or ended.
    Nothing(String),
}

/// One request of a user.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub agent: String,
    pub began: Duration,
    pub ended: Duration,
    pub got: Got,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, began, ended, got } = self;
        let (began, took) = (began.as_secs_f64(), (*ended - *began).as_secs_f64());
        match got {
            Got::Tunnel => write!(f, "{began:7.2} s {agent}: a tunnel after {took:.2} s"),
            Got::Broken(why) => write!(f, "{began:7.2} s {agent}: 200, and then it broke: {why}"),
            Got::Refusal(status, output) => {
                write!(f, "{began:7.2} s {agent}: {status} after {took:.2} s: {output}")
            }
            Got::Nothing(why) => write!(f, "{began:7.2} s {agent}: no answer: {why}"),
        }
    }
}

/// Everything that users did.
#[derive(Clone)]
pub struct Users {
    clock: Instant,
    target: SocketAddr,
    udp_target: Option<SocketAddr>,
    requests: Arc<AtomicUsize>,
    attempts: Arc<Mutex<Vec<Attempt>>>,
}

/// A program that opens tunnels until it is stopped.
pub struct Program {
    turn: Arc<Turn<()>>,
    running: JoinHandle<()>,
}

impl Users {
    /// Users whose tunnels lead to the echo at `target`. Moments are counted from now.
    pub fn of(target: SocketAddr) -> Self {
        Self {
            clock: Instant::now(),
            target,
            udp_target: None,
            requests: Arc::default(),
            attempts: Arc::default(),
        }
    }

    /// The same users, some of whose requests lead to the echo of UDP at `target`.
    pub fn with_udp(self, target: SocketAddr) -> Self {
        Self { udp_target: Some(target), ..self }
    }

    pub fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// One tunnel through `agent`; what came of it is also kept.
    pub async fn request(&self, agent: &Unit) -> Attempt {
        self.request_at(&agent.name, agent.address).await
    }

    async fn request_at(&self, name: &str, agent: SocketAddr) -> Attempt {
        let began = self.now();
        let is_udp = self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(UDP_SHARE);
        let attempting = async {
            match self.udp_target.filter(|_| is_udp) {
                Some(udp_target) => match stream(agent, udp_target).await? {
                    Got::Refusal(_, why) if why.contains(AGAIN) => tunnel(agent, self.target).await,
                    got => Ok(got),
                },
                None => tunnel(agent, self.target).await,
            }
        };
        let got = match timeout(LONGEST, attempting).await {
            Ok(Ok(got)) => got,
            Ok(Err(error)) => Got::Nothing(error.to_string()),
            Err(_) => Got::Nothing(format!("not within {LONGEST:?}")),
        };
        let attempt = Attempt { agent: name.to_owned(), began, ended: self.now(), got };
        self.attempts.lock().unwrap().push(attempt.clone());
        attempt
    }

    /// A program that uses `agent`: a tunnel, `pause`, a tunnel, and so on.
    pub fn program(&self, agent: &Unit, pause: Duration) -> Program {
        let (users, name, address) = (self.clone(), agent.name.clone(), agent.address);
        let turn = Arc::new(Turn::new(()));
        let mine = turn.clone();
        let running = tokio::spawn(async move {
            loop {
                let held = mine.lock().await;
                users.request_at(&name, address).await;
                drop(held);
                sleep(pause).await;
            }
        });
        Program { turn, running }
    }

    pub fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap().clone()
    }

    /// Counts the tunnels of one agent's users: answers of 200, also those that broke later.
    pub fn tunnels(&self, agent: &str) -> usize {
        let opened = |attempt: &&Attempt| matches!(attempt.got, Got::Tunnel | Got::Broken(_));
        self.attempts.lock().unwrap().iter().filter(|attempt| attempt.agent == agent).filter(opened).count()
    }

    /// Fails unless every attempt was a tunnel.
    pub fn assert_all_served(&self, what: &str) {
        let attempts = self.attempts();
        let others: Vec<_> = attempts.iter().filter(|attempt| attempt.got != Got::Tunnel).collect();
        assert!(!attempts.is_empty(), "{what}: no user sent a request");
        assert!(others.is_empty(), "{what}: {}", refusals(&others, attempts.len()));
    }
}

/// Describes the refusals: how many of how many, for which agents, and the first sentences.
pub fn refusals(refused: &[&Attempt], all: usize) -> String {
    let mut text = format!("{} of {all} requests were not served:\n", refused.len());
    let mut by_sentence: Vec<(String, usize, &Attempt)> = Vec::new();
    for attempt in refused {
        let kind = format!("{} {:?}", attempt.agent, attempt.got);
        match by_sentence.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, _)) => *count += 1,
            None => by_sentence.push((kind, 1, attempt)),
        }
    }
    for (_, count, first) in by_sentence.iter().take(12) {
        text += &format!("  {count} times, first at {first}\n");
    }
    text
}

impl Program {
    /// Lets the request under way end, and no other begin.
    pub async fn stop(self) {
        let _held = self.turn.lock().await;
        self.running.abort();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// A tunnel to `target` as curl opens it, used once.
async fn tunnel(agent: SocketAddr, target: SocketAddr) -> io::Result<Got> {
    let mut stream = dial(agent).await?;
    let head = connect(&mut stream, &target.to_string(), None).await?;
    if head.status != 200 {
        return refusal(&head, &mut stream).await;
    }
    Ok(match echoes(&mut stream, b"there and back").await {
        Ok(()) => Got::Tunnel,
        Err(error) => Got::Broken(error.to_string()),
    })
}

/// Datagrams to `target` by an upgrade, used once.
async fn stream(agent: SocketAddr, target: SocketAddr) -> io::Result<Got> {
    let mut stream = dial(agent).await?;
    let head = upgrade(&mut stream, target, None).await?;
    if head.status != 101 {
        return refusal(&head, &mut stream).await;
    }
    let mut echoed = Err(io::ErrorKind::TimedOut.into());
    for _ in 0..DATAGRAMS {
        if let Ok(ended) = timeout(ECHOED, echoes(&mut stream, &capsule(b"there and back"))).await {
            echoed = ended;
            break;
        }
    }
    Ok(match echoed {
        Ok(()) => Got::Tunnel,
        Err(error) => Got::Broken(error.to_string()),
    })
}

async fn refusal(head: &Head, stream: &mut BufReader<TcpStream>) -> io::Result<Got> {
    let length = head.value("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Got::Refusal(head.status, String::from_utf8_lossy(&body).trim().to_owned()))
}
