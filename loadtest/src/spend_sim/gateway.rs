//! A gateway: the store that ships, and the caller as gateway/src/request/spend.rs is one.

use super::deployment::{CLOCK_TOLERANCE, GatewayPlan};
use super::history::{Happening, Verdict};
use super::token::{Token, mark_id};
use super::world::{Fabric, Machine};
use parking_lot::Mutex;
use postern_spend::memcached::{Client, Memcached, OnLoss, Options, World};
use postern_spend::{Binding, Epoch, Hint, Marks, Spend, SpendStore, Unknown};
use postern_token::TokenKeyId;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) struct Gateway {
    number: usize,
    plan: GatewayPlan,
    /// The keys that tokens are requested of, where marks bind them.
    bound: Vec<Epoch>,
    machine: Arc<Machine>,
    process: Mutex<Option<Process>>,
    /// The process ends, and what waits in it.
    ends: Notify,
    attempts: Arc<AtomicUsize>,
}

/// What ends with the process.
struct Process {
    store: Memcached,
    client: Client,
}

impl Gateway {
    /// Starts it. `attempts` numbers the presentations of all gateways.
    pub(crate) fn start(
        number: usize,
        plan: &GatewayPlan,
        bound: Vec<Epoch>,
        fabric: Fabric,
        attempts: Arc<AtomicUsize>,
    ) -> Self {
        let machine = Arc::new(Machine { fabric, gateway: number, offset: AtomicI64::new(0) });
        let (ends, process) = (Notify::new(), Mutex::new(None));
        let gateway = Self { number, plan: plan.clone(), bound, machine, process, ends, attempts };
        gateway.start_process();
        gateway
    }

    pub(crate) fn start_process(&self) {
        let world: Arc<dyn World> = Arc::clone(&self.machine) as Arc<dyn World>;
        let marks = (!self.bound.is_empty()).then(|| Marks { id: Arc::new(mark_id), plants: true });
        let options = Options { marks, on_loss: self.on_loss(), ..self.plan.options() };
        let Ok(store) = Memcached::simulate(options, world) else { return };
        store.offer(&self.bound);
        let client = store.client();
        *self.process.lock() = Some(Process { store, client });
    }

    /// Where marks bind tokens, a loss brings the next one.
    fn on_loss(&self) -> OnLoss {
        if self.bound.is_empty() { OnLoss::Refuse } else { OnLoss::Warn }
    }

    /// What binds tokens of a key.
    pub(crate) fn binding(&self, key: TokenKeyId) -> Binding {
        self.process.lock().as_ref().map_or(Binding::Unknown, |process| process.store.binding(key))
    }

    pub(crate) fn stop_process(&self) {
        let process = self.process.lock().take();
        drop(process);
        self.ends.notify_waiters();
    }

    pub(crate) fn set_clock(&self, offset: i64) {
        self.machine.offset.store(offset, Ordering::Relaxed);
    }

    /// Presents a token. The presentation is given up after `patience`.
    pub(crate) async fn present(&self, token: &Token, patience: Option<Duration>) -> Verdict {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (token_number, gateway) = (token.number, self.number);
        self.note(Happening::Presented { attempt, token: token_number, gateway });
        let ends = self.ends.notified();
        let given_up = async {
            match patience {
                Some(patience) => tokio::time::sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        let verdict = tokio::select! {
            biased;
            () = ends => Verdict::Dropped,
            verdict = self.answer(token) => verdict,
            () = given_up => Verdict::Dropped,
        };
        self.note(Happening::Ended { attempt, token: token_number, gateway, verdict });
        verdict
    }

    async fn answer(&self, token: &Token) -> Verdict {
        let client = self.process.lock().as_ref().map(|process| process.client.clone());
        let Some(client) = client else { return Verdict::Refused("stopped") };
        if let Err(reason) = client.serving() {
            return Verdict::Refused(reason.reason());
        }
        let now = self.machine.now();
        if now >= token.not_after {
            return Verdict::Refused("key_retired");
        }
        match (token.epoch.mark, self.binding(token.epoch.key)) {
            (Some(_), _) | (None, Binding::Unmarked) => {}
            (None, Binding::Offered(_)) => return Verdict::Refused("wrong_challenge"),
            (None, Binding::Unknown) => return Verdict::Refused(Unknown::Unmarked.reason()),
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
                let though_lost = self.refuses(token.epoch.key) == Some(Unknown::RecordsLost.reason());
                Verdict::Admitted { though_lost }
            }
            Ok(Spend::AlreadySpent) => Verdict::Spent,
            Ok(Spend::Void) => Verdict::Refused("void"),
            Err(unknown) => Verdict::Refused(unknown.reason()),
        }
    }

    /// Why every token of a key is refused now.
    pub(crate) fn refuses(&self, key: TokenKeyId) -> Option<&'static str> {
        let now = self.machine.now();
        let process = self.process.lock();
        process.as_ref().and_then(|process| process.store.refuses(key, now)).map(|reason| reason.reason())
    }

    /// Why it is not ready.
    pub(crate) fn is_ready(&self) -> Option<&'static str> {
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
