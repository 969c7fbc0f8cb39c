//! A memcached of bytes, in this process: honest about probes and canaries, and about spent records too until a test
//! scripts its misbehaviour.

use super::PATIENCE;
use postern_spend::memcached::Address;
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener as StdListener;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;

/// More than the sockets of both sides hold, by far.
const ENDLESS: u64 = 64 << 20;

/// What the fake does for one command, step by step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes; `{key}` is the key of the command.
    Send(Vec<u8>),
    /// Sends what an honest server would.
    Honest,
    /// Sends these bytes one at a time, with a pause before each.
    Slowly(Vec<u8>, Duration),
    Pause(Duration),
    /// Waits for [`Fake::go_on`].
    Wait,
    /// Sends these bytes again and again, for as long as they are taken.
    Endlessly(Vec<u8>),
    /// Closes the connection.
    Close,
    /// Closes it with a reset.
    Reset,
}

pub fn send(bytes: &[u8]) -> Step {
    Step::Send(bytes.to_vec())
}

/// How spent records are answered when no step is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    AtOnce,
    /// After other tasks had many turns, now and then a millisecond later.
    Late,
    /// Cut anywhere, with pauses between.
    InPieces,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Add,
    Version,
}

/// What became of a planned misbehaviour.
#[derive(Debug, Default)]
pub struct Acted {
    begun: AtomicBool,
    /// The client closed the connection.
    dropped: AtomicBool,
    /// The client used the connection again.
    reused: AtomicBool,
    pushed: AtomicU64,
}

impl Acted {
    pub fn begun(&self) -> bool {
        self.begun.load(SeqCst)
    }

    pub fn dropped(&self) -> bool {
        self.dropped.load(SeqCst)
    }

    pub fn reused(&self) -> bool {
        self.reused.load(SeqCst)
    }

    /// Bytes that were taken from the fake for this one command.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(SeqCst)
    }
}

struct Plan {
    verb: Verb,
    /// Commands of this verb that are answered honestly before.
    after: usize,
    /// Whether an `add` takes effect all the same.
    writes: bool,
    steps: Vec<Step>,
    acted: Arc<Acted>,
}

type Records = Arc<Mutex<HashMap<String, Vec<u8>>>>;
type Elsewhere = (fn(&str) -> bool, Records);

struct State {
    records: Records,
    /// Keys that lie elsewhere, and where.
    elsewhere: Option<Elsewhere>,
    plans: Mutex<VecDeque<Plan>>,
    manner: Mutex<Manner>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    /// The most connections at once.
    limit: AtomicUsize,
    go_on: tokio::sync::Semaphore,
    /// Something came that is neither of the commands the store speaks.
    confused: AtomicBool,
}

/// The server. It ends when it is dropped.
pub struct Fake {
    port: u16,
    state: Arc<State>,
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Fake {
    pub fn start() -> Self {
        Self::with(None)
    }

    /// An endpoint to another store, except for the keys that it `shares` with this one: as with two routers of which
    /// one has been given a new server.
    pub fn beside(&self, shares: fn(&str) -> bool) -> Self {
        Self::with(Some((shares, Arc::clone(&self.state.records))))
    }

    fn with(elsewhere: Option<Elsewhere>) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            records: Records::default(),
            elsewhere,
            plans: Mutex::default(),
            manner: Mutex::new(Manner::AtOnce),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            go_on: tokio::sync::Semaphore::new(0),
            confused: AtomicBool::new(false),
        });
        let (end, ended) = tokio::sync::oneshot::channel();
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! { _ = ended => {}, () = accept(listener, serving) => {} }
            });
        });
        Self { port, state, _end: end }
    }

    pub fn address(&self) -> Address {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Misbehaves at the next command of this kind for a spent record.
    pub fn plan(&self, verb: Verb, writes: bool, steps: Vec<Step>) -> Arc<Acted> {
        self.plan_after(0, verb, writes, steps)
    }

    /// The same, after this number of honest answers to commands of this kind.
    pub fn plan_after(&self, after: usize, verb: Verb, writes: bool, steps: Vec<Step>) -> Arc<Acted> {
        let acted = Arc::<Acted>::default();
        let plan = Plan { verb, after, writes, steps, acted: Arc::clone(&acted) };
        self.state.plans.lock().unwrap().push_back(plan);
        acted
    }

    pub fn set_manner(&self, manner: Manner) {
        *self.state.manner.lock().unwrap() = manner;
    }

    /// Closes new connections immediately above this number, as a memcached at its limit does.
    pub fn limit(&self, connections: usize) {
        self.state.limit.store(connections, SeqCst);
    }

    /// Ends every [`Step::Wait`].
    pub fn go_on(&self) {
        self.state.go_on.add_permits(1 << 20);
    }

    /// Connections that were ever made.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    /// Records of spent tokens.
    pub fn spent(&self) -> usize {
        self.state.records.lock().unwrap().keys().filter(|key| key.starts_with("ps1.")).count()
    }

    /// Changes records behind the store's back.
    pub fn alter(&self, alter: impl FnMut((&String, &mut Vec<u8>))) {
        self.state.records.lock().unwrap().iter_mut().for_each(alter);
    }

    /// Nothing came that the store does not speak: a command that was cut or mixed with another would show here.
    pub fn assert_understood(&self) {
        assert!(!self.state.confused.load(SeqCst), "the fake was sent something that is no command");
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if state.open.load(SeqCst) >= state.limit.load(SeqCst) {
            continue;
        }
        state.open.fetch_add(1, SeqCst);
        stream.set_nodelay(true).unwrap();
        state.accepted.fetch_add(1, SeqCst);
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let mut conversation = Conversation { stream, state, held: Vec::new(), acted: None };
            let _ = conversation.hold().await; // either side may close it
            conversation.state.open.fetch_sub(1, SeqCst);
            if let Some(acted) = &conversation.acted {
                acted.dropped.store(true, SeqCst);
            }
        });
    }
}

struct Conversation {
    stream: TcpStream,
    state: Arc<State>,
    held: Vec<u8>,
    /// What was done on this connection.
    acted: Option<Arc<Acted>>,
}

/// A command as it came.
struct Asked {
    verb: Verb,
    /// Several for a joined `get`, none for `version`.
    keys: Vec<String>,
    value: Vec<u8>,
}

impl Conversation {
    async fn hold(&mut self) -> std::io::Result<()> {
        let mut replies = Vec::new();
        loop {
            while let Some(asked) = self.next_command()? {
                if let Some(acted) = &self.acted {
                    acted.reused.store(true, SeqCst);
                }
                let ours = asked.keys.first().is_some_and(|key| key.starts_with("ps1."));
                if let Some(plan) = ours.then(|| self.planned(asked.verb)).flatten() {
                    self.stream.write_all(&std::mem::take(&mut replies)).await?;
                    self.act(&asked, plan).await?;
                } else if ours && *self.state.manner.lock().unwrap() != Manner::AtOnce {
                    self.stream.write_all(&std::mem::take(&mut replies)).await?;
                    let reply = self.answer(&asked);
                    self.send_in_its_manner(&reply).await?;
                } else {
                    replies.extend(self.answer(&asked));
                }
            }
            self.stream.write_all(&std::mem::take(&mut replies)).await?;
            if self.stream.read_buf(&mut self.held).await? == 0 {
                return Ok(());
            }
        }
    }

    /// The next whole command.
    fn next_command(&mut self) -> std::io::Result<Option<Asked>> {
        let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(&self.held[..end]).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let (asked, length) = match words[..] {
            ["get", ref keys @ ..] if !keys.is_empty() && keys.iter().all(|key| key.len() == 47) => {
                let keys = keys.iter().map(|&key| key.to_owned()).collect();
                (Asked { verb: Verb::Get, keys, value: Vec::new() }, end + 2)
            }
            ["version"] => (Asked { verb: Verb::Version, keys: Vec::new(), value: Vec::new() }, end + 2),
            ["add", key, "0", _, "22"] if key.len() == 47 => {
                if self.held.len() < end + 26 {
                    return Ok(None);
                }
                let value = self.held[end + 2..end + 24].to_vec();
                (Asked { verb: Verb::Add, keys: vec![key.to_owned()], value }, end + 26)
            }
            _ => {
                self.state.confused.store(true, SeqCst);
                return Err(std::io::ErrorKind::InvalidData.into());
            }
        };
        self.held.drain(..length);
        Ok(Some(asked))
    }

    fn planned(&self, verb: Verb) -> Option<Plan> {
        let mut plans = self.state.plans.lock().unwrap();
        let index = plans.iter().position(|plan| plan.verb == verb)?;
        if plans[index].after > 0 {
            plans[index].after -= 1;
            return None;
        }
        plans.remove(index)
    }

    /// What an honest server does and answers.
    fn answer(&self, asked: &Asked) -> Vec<u8> {
        match asked.verb {
            Verb::Version => b"VERSION fake\r\n".to_vec(),
            Verb::Get => {
                let mut reply = Vec::new();
                for key in &asked.keys {
                    if let Some(value) = self.records(key).lock().unwrap().get(key) {
                        reply.extend(format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes());
                        reply.extend_from_slice(value);
                        reply.extend_from_slice(b"\r\n");
                    }
                }
                reply.extend_from_slice(b"END\r\n");
                reply
            }
            Verb::Add => {
                let key = &asked.keys[0];
                let mut records = self.records(key).lock().unwrap();
                if records.contains_key(key) {
                    return b"NOT_STORED\r\n".to_vec();
                }
                records.insert(key.clone(), asked.value.clone());
                b"STORED\r\n".to_vec()
            }
        }
    }

    /// Where a key lives.
    fn records(&self, key: &str) -> &Records {
        match &self.state.elsewhere {
            Some((shares, records)) if shares(key) => records,
            _ => &self.state.records,
        }
    }

    async fn act(&mut self, asked: &Asked, plan: Plan) -> std::io::Result<()> {
        let honest = if plan.writes || asked.verb == Verb::Get { self.answer(asked) } else { Vec::new() };
        self.acted = Some(Arc::clone(&plan.acted));
        plan.acted.begun.store(true, SeqCst);
        for step in plan.steps {
            match step {
                Step::Send(bytes) => self.push(&filled_in(&bytes, &asked.keys[0]), &plan.acted).await?,
                Step::Honest => self.push(&honest, &plan.acted).await?,
                Step::Slowly(bytes, pause) => {
                    for byte in bytes {
                        tokio::time::sleep(pause).await;
                        self.push(&[byte], &plan.acted).await?;
                    }
                }
                Step::Wait => self.state.go_on.acquire().await.unwrap().forget(),
                Step::Pause(pause) => tokio::time::sleep(pause).await,
                Step::Endlessly(bytes) => {
                    while plan.acted.pushed() < ENDLESS {
                        tokio::time::timeout(PATIENCE, self.push(&bytes, &plan.acted)).await??;
                    }
                }
                Step::Close => return Err(std::io::ErrorKind::ConnectionAborted.into()),
                Step::Reset => {
                    socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
            }
        }
        Ok(())
    }

    async fn push(&mut self, bytes: &[u8], acted: &Acted) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        acted.pushed.fetch_add(bytes.len() as u64, SeqCst);
        Ok(())
    }

    async fn send_in_its_manner(&mut self, reply: &[u8]) -> std::io::Result<()> {
        let manner = *self.state.manner.lock().unwrap();
        pause().await;
        match manner {
            Manner::AtOnce | Manner::Late => self.stream.write_all(reply).await,
            Manner::InPieces => {
                let cut = rand::random_range(0..reply.len());
                self.stream.write_all(&reply[..cut]).await?;
                pause().await;
                self.stream.write_all(&reply[cut..]).await
            }
        }
    }
}

/// Some microseconds for the most part, a millisecond now and then.
async fn pause() {
    if rand::random_ratio(1, 64) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..rand::random_range(0..16) {
        yield_now().await;
    }
}

fn filled_in(bytes: &[u8], key: &str) -> Vec<u8> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.replace("{key}", key).into_bytes(),
        Err(_) => bytes.to_vec(),
    }
}
