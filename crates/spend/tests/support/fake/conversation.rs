//! One connection to the fake.

use super::super::PATIENCE;
use super::script::{Acted, Manner, Plan, Records, State, Step, Verb};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;

/// More than the sockets of both sides hold, by far.
const ENDLESS: u64 = 64 << 20;

pub(super) async fn accept(listener: TcpListener, state: Arc<State>) {
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
            let mut conversation = Conversation {
                stream,
                state,
                held: Vec::with_capacity(65_536),
                acted: None,
                is_silent: false,
                last_added: None,
                is_the_watchs: false,
            };
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
    /// Has room for whole writes, so that commands of one are read at once.
    held: Vec<u8>,
    /// The record of the misbehaviour on this connection.
    acted: Option<Arc<Acted>>,
    /// It answers nothing more.
    is_silent: bool,
    /// The key of the last `add` in a bucket.
    last_added: Option<String>,
    /// It wrote or read sentinels. What a test plans is for callers: the watch, which any failure wakes, is answered honestly.
    is_the_watchs: bool,
}

/// A command as it came.
struct Asked {
    verb: Verb,
    /// Several for a joined `get`, none for `version` and `stats settings`.
    keys: Vec<String>,
    value: Vec<u8>,
}

impl Conversation {
    async fn hold(&mut self) -> std::io::Result<()> {
        let mut replies = Vec::new();
        loop {
            let before = self.acted.clone(); // what comes in the same write is no use of it afterwards
            while let Some(asked) = self.next_command()? {
                if let Some(acted) = &before {
                    acted.reused.store(true, SeqCst);
                }
                if self.is_silent {
                    continue;
                }
                let in_bucket = asked.keys.first().is_some_and(|key| key.starts_with('|'));
                if in_bucket {
                    self.recognise_the_watch(&asked);
                }
                let ours = in_bucket && !self.is_the_watchs;
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

    /// The records of a mark have one name in all buckets, as no two tokens have, and its sentinels are written first.
    fn recognise_the_watch(&mut self, asked: &Asked) {
        let mut sentinels = self.state.sentinels.lock().unwrap();
        let (bucket, name) = asked.keys[0].split_at("|AAAA|#|".len());
        if asked.verb == Verb::Add && !self.is_the_watchs {
            let before = self.last_added.replace(asked.keys[0].clone());
            if before.is_some_and(|before| before.ends_with(name) && !before.starts_with(bucket)) {
                sentinels.insert(name.to_owned());
            }
        }
        self.is_the_watchs |= sentinels.contains(name);
    }

    /// The next whole command.
    fn next_command(&mut self) -> std::io::Result<Option<Asked>> {
        let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(&self.held[..end]).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let (asked, length) = match words[..] {
            ["get", ref keys @ ..] if !keys.is_empty() && keys.iter().all(|key| value_of(key).is_some()) => {
                let keys = keys.iter().map(|&key| key.to_owned()).collect();
                (Asked { verb: Verb::Get, keys, value: Vec::new() }, end + 2)
            }
            ["stats", "settings"] => {
                (Asked { verb: Verb::Settings, keys: Vec::new(), value: Vec::new() }, end + 2)
            }
            ["version"] => (Asked { verb: Verb::Version, keys: Vec::new(), value: Vec::new() }, end + 2),
            ["add", key, "0", _, length] if value_of(key).is_some_and(|of| of.to_string() == length) => {
                let behind = end + 2 + value_of(key).unwrap();
                if self.held.len() < behind + 2 {
                    return Ok(None);
                }
                let value = self.held[end + 2..behind].to_vec();
                (Asked { verb: Verb::Add, keys: vec![key.to_owned()], value }, behind + 2)
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

    /// Executes a command as an honest server does, and returns the reply.
    fn answer(&self, asked: &Asked) -> Vec<u8> {
        match asked.verb {
            Verb::Version => b"VERSION fake\r\n".to_vec(),
            Verb::Settings => b"STAT evictions off\r\nEND\r\n".to_vec(),
            Verb::Get | Verb::Add if self.state.fails.load(SeqCst) => b"SERVER_ERROR no server\r\n".to_vec(),
            Verb::Get => {
                let mut reply = Vec::new();
                for key in asked.keys.iter().filter(|key| !self.is_away(key)) {
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
                if self.is_away(key) {
                    return b"SERVER_ERROR no server\r\n".to_vec();
                }
                let mut records = self.records(key).lock().unwrap();
                if records.contains_key(key) {
                    return b"NOT_STORED\r\n".to_vec();
                }
                records.insert(key.clone(), asked.value.clone());
                b"STORED\r\n".to_vec()
            }
        }
    }

    fn is_away(&self, key: &str) -> bool {
        self.state.away.lock().unwrap().is_some_and(|away| away(key))
    }

    /// Returns the records that hold a key.
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
                Step::Silence => self.is_silent = true,
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
        plan.acted.done.store(true, SeqCst);
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

/// The length of the value under a key, if it is one that the store writes: in a bucket, or not.
fn value_of(key: &str) -> Option<usize> {
    match (key.len(), key.starts_with('|')) {
        (47, false) => Some(22),
        (30, true) => Some(7),
        _ => None,
    }
}

fn filled_in(bytes: &[u8], key: &str) -> Vec<u8> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.replace("{key}", key).into_bytes(),
        Err(_) => bytes.to_vec(),
    }
}
