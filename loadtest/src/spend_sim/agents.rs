//! Agents and attackers: they present fresh tokens, and every token again, at random and when it hurts most.

use super::chance::Chance;
use super::fault::Millis;
use super::gateway::Gateway;
use super::history::{Happening, Verdict};
use super::plan::Plan;
use super::token::Token;
use super::world::Fabric;
use parking_lot::Mutex;
use postern_spend::Binding;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// The longest that the last presentations are waited for.
const LAST: Duration = Duration::from_secs(3);
/// Tokens that are presented again in a sweep.
const SWEEP: usize = 32;
/// Fresh tokens for each gateway at the end, and the time between them.
const FRESH: usize = 6;
const BETWEEN: Duration = Duration::from_millis(500);

pub(crate) struct Agents {
    plan: Plan,
    chance: Chance,
    fabric: Fabric,
    gateways: Vec<Arc<Gateway>>,
    /// Every token that was presented.
    tokens: Vec<Arc<Token>>,
    /// Those that were admitted.
    admitted: Arc<Mutex<Vec<usize>>>,
    /// Presentations under way. They go on by themselves.
    presentations: JoinSet<()>,
}

impl Agents {
    pub(crate) fn new(plan: &Plan, fabric: Fabric, gateways: Vec<Arc<Gateway>>) -> Self {
        Self {
            plan: plan.clone(),
            chance: Chance::new(plan.seed, 3),
            fabric,
            gateways,
            tokens: Vec::new(),
            admitted: Arc::default(),
            presentations: JoinSet::new(),
        }
    }

    /// Lives through the run.
    pub(crate) async fn run(mut self) {
        let began = tokio::time::Instant::now();
        let mut moments = self.moments();
        loop {
            let pause = self.chance.millis(10, 130);
            let now = began.elapsed().as_millis() as Millis;
            if now >= self.plan.length {
                break;
            }
            match moments.last().copied() {
                Some(moment) if moment <= now + pause.as_millis() as Millis => {
                    moments.pop();
                    sleep_until(began + Duration::from_millis(moment)).await;
                    self.replay(SWEEP / 4);
                }
                _ => {
                    sleep(pause).await;
                    self.act();
                }
            }
            while self.presentations.try_join_next().is_some() {}
        }
        self.sweep().await;
        self.settle().await;
        let _ = tokio::time::timeout(LAST, async { while self.presentations.join_next().await.is_some() {} })
            .await;
    }

    /// When tokens are presented again by all means: around each fault's beginning and end, the last moment first.
    fn moments(&mut self) -> Vec<Millis> {
        let ends = self.plan.faults.iter().flat_map(|fault| [fault.at, fault.at + fault.lasts]);
        let after = [1, 40, 300, 1_000, 2_500, 6_000];
        let mut moments: Vec<_> = ends.flat_map(|end| after.map(|after| end + after)).collect();
        moments.retain(|moment| *moment < self.plan.length);
        moments.sort_unstable_by_key(|moment| std::cmp::Reverse(*moment));
        moments.dedup();
        moments
    }

    fn act(&mut self) {
        if self.tokens.is_empty() || self.chance.percent(45) {
            let Some(token) = self.mint() else { return };
            let times = self.chance.pick(&[1, 1, 1, 2, 3]);
            (0..times).for_each(|_| self.present(&token));
        } else {
            let count = self.chance.pick(&[1, 1, 2, 4]);
            self.replay(count);
        }
    }

    /// A fresh token, for the challenge of any gateway.
    fn mint(&mut self) -> Option<Arc<Token>> {
        let now = self.fabric.now() / 1_000;
        let mut keys = self.plan.keys.iter().enumerate().filter(|(_, key)| key.from <= now);
        let (number, key) = keys.next_back().unwrap_or((0, &self.plan.keys[0]));
        let binding = if self.plan.is_bound {
            self.gateways[self.chance.index(self.gateways.len())].binding(key.epoch(number).key)
        } else {
            Binding::Unmarked
        };
        let token = Arc::new(key.mint(number, self.tokens.len(), binding, &mut self.chance)?);
        self.tokens.push(Arc::clone(&token));
        Some(token)
    }

    /// Presents tokens again: mostly those that were admitted, for those must never be admitted any more.
    fn replay(&mut self, count: usize) {
        for _ in 0..count {
            let admitted = self.admitted.lock().clone();
            let number = if admitted.is_empty() || self.chance.one_in(4) {
                self.chance.index(self.tokens.len().max(1))
            } else {
                admitted[self.chance.index(admitted.len())]
            };
            if let Some(token) = self.tokens.get(number).cloned() {
                self.present(&token);
            }
        }
    }

    /// Starts a presentation at any gateway. Some callers go away half-way.
    fn present(&mut self, token: &Arc<Token>) {
        let gateway = Arc::clone(&self.gateways[self.chance.index(self.gateways.len())]);
        let patience = self.chance.one_in(12).then(|| self.chance.millis(0, 60));
        self.present_at(gateway, token, patience);
    }

    fn present_at(&mut self, gateway: Arc<Gateway>, token: &Arc<Token>, patience: Option<Duration>) {
        let (token, admitted) = (Arc::clone(token), Arc::clone(&self.admitted));
        self.presentations.spawn(async move {
            if let Verdict::Admitted { .. } = gateway.present(&token, patience).await {
                admitted.lock().push(token.number);
            }
        });
    }

    /// Presents admitted tokens at every gateway.
    async fn sweep(&mut self) {
        let admitted = self.admitted.lock().clone();
        for _ in 0..SWEEP.min(admitted.len()) {
            let token = Arc::clone(&self.tokens[admitted[self.chance.index(admitted.len())]]);
            for gateway in self.gateways.clone() {
                self.present_at(gateway, &token, None);
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Every fault is over: fresh tokens should be admitted at every gateway.
    async fn settle(&mut self) {
        sleep(BETWEEN).await;
        self.fabric.change(|network| network.note(Happening::Settled));
        for _ in 0..FRESH {
            for gateway in self.gateways.clone() {
                let Some(token) = self.mint() else { continue };
                self.present_at(gateway, &token, None);
            }
            sleep(BETWEEN).await;
        }
    }
}
