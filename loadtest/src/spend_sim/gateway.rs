//! A gateway: the store that ships, and a caller that follows gateway/src/request/spend.rs.

use super::defect::{Defect, is_put_back};
use super::deployment::{CLOCK_TOLERANCE, GatewayPlan};
use super::history::{Happening, Verdict};
use super::plan::Plan;
use super::token::{KeyPlan, Offer, Token};
use super::world::{Fabric, Machine};
use parking_lot::Mutex;
use postern_spend::memcached::{Client, Memcached, World};
use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::{Mark, TokenKeyId};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) struct Gateway {
    number: usize,
    plan: GatewayPlan,
    keys: Vec<KeyPlan>,
    machine: Arc<Machine>,
    process: Mutex<Option<Process>>,
    /// Notified at the end of the process, which also ends everything that waits in it.
    ends: Notify,
    attempts: Arc<AtomicUsize>,
}

/// State that ends with the process.
struct Process {
    store: Memcached,
    /// One for each worker. Callers come to them in turn.
    clients: Vec<Client>,
    next: AtomicUsize,
}

impl Gateway {
    /// Starts a gateway. `attempts` numbers the presentations of all gateways.
    pub(crate) fn start(number: usize, plan: &Plan, fabric: Fabric, attempts: Arc<AtomicUsize>) -> Self {
        let machine = Arc::new(Machine { fabric, gateway: number, offset: AtomicI64::new(0) });
        let (ends, process) = (Notify::new(), Mutex::new(None));
        let keys = plan.keys.clone();
        let plan = plan.deployment.gateways[number].clone();
        let gateway = Self { number, plan, keys, machine, process, ends, attempts };
        gateway.start_process();
        gateway
    }

    pub(crate) fn start_process(&self) {
        let world: Arc<dyn World> = Arc::clone(&self.machine) as Arc<dyn World>;
        let store = Memcached::simulate(self.plan.options(), world).expect("the plan's options are valid");
        let keys = self.keys.iter().enumerate();
        store.offer(&keys.map(|(number, key)| key.epoch(number)).collect::<Vec<_>>());
        let clients = (0..self.plan.workers).map(|_| store.client()).collect();
        *self.process.lock() = Some(Process { store, clients, next: AtomicUsize::new(0) });
    }

    /// `true` if the process runs, so that a connection can be made.
    pub(crate) fn is_running(&self) -> bool {
        self.process.lock().is_some()
    }

    /// Answers a request without a token: returns the offer to which tokens are to be bound, or the reason for the lack of one.
    pub(crate) fn challenge(&self, holder: usize) -> Result<Offer, &'static str> {
        let client = self.client().ok_or("stopped")?;
        self.serving(&client)?;
        self.ask(holder, Some(&client)).ok_or(Unknown::Unmarked.reason())
    }

    /// Returns the challenge that accompanies a 407.
    pub(crate) fn challenge_again(&self, holder: usize) -> Option<Offer> {
        self.ask(holder, None)
    }

    /// Returns the offer to which tokens are to be bound. `first` is the worker's client that answers a request without a token.
    fn ask(&self, holder: usize, first: Option<&Client>) -> Option<Offer> {
        let offer = self.requested()?;
        let epoch = self.keys[offer.key].epoch(offer.key);
        // The store's own state, independent of the gateway's decision.
        let unknown = self.binding(epoch.key).is_none().then_some(Unknown::Unmarked.reason());
        let down = || first?.serving().err().map(|reason| reason.reason());
        let cannot = self.refuses(epoch.key).or(unknown).or_else(down);
        self.note(Happening::Asked { holder, gateway: self.number, key: offer.key, cannot });
        Some(offer)
    }

    /// Returns `Ok` if a spend could get a verdict now, as `SpendStore::serving` does.
    fn serving(&self, client: &Client) -> Result<(), &'static str> {
        if is_put_back(Defect::AsksInVain) {
            return Ok(());
        }
        client.serving().map_err(Unknown::reason)
    }

    /// Returns the newest key in use whose tokens the store can spend, and the binding of these tokens.
    fn requested(&self) -> Option<Offer> {
        let may_ask = |epoch: &Epoch| self.refuses(epoch.key).is_none() || is_put_back(Defect::AsksInVain);
        let mut in_use = self.in_use().rev().filter(|(_, epoch)| may_ask(epoch));
        in_use.find_map(|(key, epoch)| Some(Offer { key, mark: self.binding(epoch.key)? }))
    }

    /// Returns the keys that sign or have signed and have not ended, oldest first.
    fn in_use(&self) -> impl DoubleEndedIterator<Item = (usize, Epoch)> {
        let now = self.machine.now();
        let keys = self.keys.iter().enumerate();
        let in_use = keys.filter(move |(_, key)| key.begins() <= now && now < key.ends());
        in_use.map(|(number, key)| (number, key.epoch(number)))
    }

    /// Returns the client of the worker whose turn it is.
    fn client(&self) -> Option<Client> {
        let process = self.process.lock();
        let Process { clients, next, .. } = process.as_ref()?;
        Some(clients[next.fetch_add(1, Ordering::Relaxed) % clients.len()].clone())
    }

    /// Returns the binding of a key's tokens.
    fn binding(&self, key: TokenKeyId) -> Option<Mark> {
        self.process.lock().as_ref()?.store.binding(key)
    }

    pub(crate) fn stop_process(&self) {
        let process = self.process.lock().take();
        drop(process);
        self.ends.notify_waiters();
    }

    pub(crate) fn set_clock(&self, offset: i64) {
        self.machine.offset.store(offset, Ordering::Relaxed);
    }

    /// Presents a token, on behalf of its holder or of another caller. The caller leaves after `patience`.
    pub(crate) async fn present(
        &self,
        token: &Token,
        patience: Option<Duration>,
        holder: Option<usize>,
    ) -> Verdict {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (token_number, gateway) = (token.number, self.number);
        self.note(Happening::Presented { attempt, token: token_number, gateway, holder });
        let ends = self.ends.notified();
        let verdict = tokio::select! {
            biased;
            () = ends => Verdict::Dropped,
            verdict = self.answer(token) => verdict,
            () = tokio::time::sleep(patience.unwrap_or(Duration::MAX)) => Verdict::Dropped,
        };
        self.note(Happening::Ended { attempt, token: token_number, gateway, verdict });
        verdict
    }

    async fn answer(&self, token: &Token) -> Verdict {
        let Some(client) = self.client() else { return Verdict::Refused("stopped") };
        if let Err(reason) = self.serving(&client) {
            return Verdict::Refused(reason);
        }
        if self.requested().is_none() {
            return Verdict::Refused(Unknown::Unmarked.reason());
        }
        let now = self.machine.now();
        if now >= token.not_after {
            return Verdict::Refused("key_retired");
        }
        if self.plan.hint && matches!(client.check(&token.key, &token.epoch).await, Ok(Hint::Spent)) {
            return Verdict::Spent;
        }
        match client.spend(&token.key, &token.epoch, now).await {
            Ok(Spend::Admitted) => {
                let tolerance = Duration::from_secs(CLOCK_TOLERANCE);
                if self.machine.now().saturating_add(tolerance) >= token.epoch.expires {
                    return Verdict::Refused(Unknown::EpochRetired.reason());
                }
                Verdict::Admitted
            }
            Ok(Spend::AlreadySpent) => Verdict::Spent,
            Ok(Spend::Void) => Verdict::Refused("void"),
            Err(unknown) => Verdict::Refused(unknown.reason()),
        }
    }

    /// Returns the reason for which every token of a key is refused now.
    pub(crate) fn refuses(&self, key: TokenKeyId) -> Option<&'static str> {
        let now = self.machine.now();
        let process = self.process.lock();
        let has_retired = process.as_ref().is_some_and(|process| process.store.has_retired(key, now));
        has_retired.then_some(Unknown::EpochRetired.reason())
    }

    /// Returns the reason for which the gateway is not ready.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        match &*self.process.lock() {
            Some(process) => process.store.health().ready.err().map(|reason| reason.reason()),
            None => Some("stopped"),
        }
    }

    fn note(&self, happening: Happening) {
        let fabric = &self.machine.fabric;
        fabric.network.lock().history.add(fabric.now(), happening);
    }
}
