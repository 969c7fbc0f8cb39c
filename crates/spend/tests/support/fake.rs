//! A memcached of bytes, in this process: honest until a test scripts its misbehaviour towards records in buckets.

mod conversation;
mod script;

pub use script::{Acted, Manner, Step, Verb, send};

use conversation::accept;
use postern_spend::memcached::Address;
use postern_token::{SpentKey, encode_base64url};
use script::{Elsewhere, Plan, Records, State};
use std::net::TcpListener as StdListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::net::TcpListener;

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
    pub fn sharing(&self, shares: fn(&str) -> bool) -> Self {
        Self::with(Some((shares, Arc::clone(&self.state.records))))
    }

    fn with(elsewhere: Option<Elsewhere>) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            records: Records::default(),
            away: Mutex::default(),
            fails: AtomicBool::new(false),
            elsewhere,
            plans: Mutex::default(),
            sentinels: Mutex::default(),
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

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> Address {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Misbehaves at the next command of this kind for a record in a bucket. The watch that planted a mark never meets it.
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

    /// Behaves as a router does, of which a server with these keys is down: misses are told, and nothing is stored.
    pub fn lose(&self, away: fn(&str) -> bool) {
        *self.state.away.lock().unwrap() = Some(away);
    }

    /// Behaves as a router does whose servers are all down.
    pub fn fail(&self, fails: bool) {
        self.state.fails.store(fails, SeqCst);
    }

    /// Loses the sentinels with these keys, and keeps the witnesses next to them.
    pub fn lose_sentinels(&self, lost: fn(&str) -> bool) {
        let sentinels = self.state.sentinels.lock().unwrap();
        let is_lost = |key: &str| sentinels.iter().any(|name| key.ends_with(name.as_str())) && lost(key);
        self.state.records.lock().unwrap().retain(|key, _| !is_lost(key));
    }

    /// Ends every [`Step::Wait`].
    pub fn go_on(&self) {
        self.state.go_on.add_permits(1 << 20);
    }

    /// Connections that were ever made.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    /// Returns whether there is a record of this token.
    pub fn holds(&self, token: &SpentKey) -> bool {
        let name = encode_base64url(&token.as_bytes()[..16]);
        let name = name.trim_end_matches('=');
        self.state.records.lock().unwrap().keys().any(|key| key.starts_with('|') && key.ends_with(name))
    }

    /// Changes records behind the store's back.
    pub fn alter(&self, alter: impl FnMut((&String, &mut Vec<u8>))) {
        self.state.records.lock().unwrap().iter_mut().for_each(alter);
    }

    /// Loses all records, as a restart does, and keeps the connections.
    pub fn empty(&self) {
        self.state.records.lock().unwrap().clear();
    }

    /// Nothing came that the store does not speak: a command that was cut or mixed with another would show here.
    pub fn assert_understood(&self) {
        assert!(!self.state.confused.load(SeqCst), "the fake was sent something that is no command");
    }
}
