//! Strangers and attackers: they present fresh tokens, and present every token again, at random and at the worst moments. Agents
//! with wallets run next to them.

use super::agent::{Agent, Surroundings};
use super::chance::Chance;
use super::fault::Millis;
use super::gateway::Gateway;
use super::history::{Happening, STRANGERS, Verdict};
use super::plan::Plan;
use super::token::Token;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Maximum wait for the last presentations.
const LAST: Duration = Duration::from_secs(3);
/// Number of tokens that a sweep presents again.
const SWEEP: usize = 32;
/// Wait after a loss: the next mark may first wait for a server that is away, and is then planted without it.
const COMPLETED: Duration = Duration::from_secs(14);
/// Number of fresh tokens for each gateway at the end, and the interval between them.
const FRESH: usize = 6;
const BETWEEN: Duration = Duration::from_millis(500);

/// Maximum wait for the agents.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Agents {
    plan: Plan,
    chance: Chance,
    around: Surroundings,
    /// Presentations in flight, each in a task.
    presentations: JoinSet<()>,
}

impl Agents {
    pub(crate) fn new(plan: &Plan, around: Surroundings) -> Self {
        let chance = Chance::new(plan.seed, 3);
        Self { plan: plan.clone(), chance, around, presentations: JoinSet::new() }
    }

    /// Runs until the plan's end, with the final presentations.
    pub(crate) async fn run(mut self) {
        let began = Instant::now();
        let mut agents = self.start_agents(began);
        let mut moments = self.moments();
        loop {
            let pause = self.chance.millis(10, self.plan.pace);
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
        let _ = timeout(LAST, async { while self.presentations.join_next().await.is_some() {} }).await;
        let _ = timeout(PATIENCE, async { while agents.join_next().await.is_some() {} }).await;
    }

    /// Starts the agents. They end with the run's faults, when attackers begin to present everything again.
    fn start_agents(&self, began: Instant) -> JoinSet<()> {
        let until = began + Duration::from_millis(self.plan.length);
        let agent = |number: usize| {
            let chance = Chance::new(self.plan.seed, 100 + number as u64);
            Agent::new(number, &self.plan, &self.around, chance).live(until)
        };
        (1..=self.plan.agents).map(agent).collect()
    }

    /// Returns the moments of replays: around each fault's beginning and end, the last moment first.
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
        if self.around.tap.is_idle() || self.chance.below(100) < 45 {
            let gateway = self.chance.index(self.around.gateways.len());
            let Some(token) = self.mint(gateway) else { return };
            let times = self.chance.pick(&[1, 1, 1, 2, 3]);
            self.present(&token, Some(STRANGERS));
            (1..times).for_each(|_| self.present(&token, None));
        } else {
            let count = self.chance.pick(&[1, 1, 2, 4]);
            self.replay(count);
        }
    }

    /// Mints a fresh token for a gateway's challenge.
    fn mint(&mut self, gateway: usize) -> Option<Arc<Token>> {
        let offer = self.around.gateways[gateway].challenge(STRANGERS).ok()?;
        Some(self.around.issuer.sign(STRANGERS, offer, &mut self.chance))
    }

    /// Presents tokens again: mostly admitted ones, because those must never be admitted again.
    fn replay(&mut self, count: usize) {
        for _ in 0..count {
            let is_any = self.around.tap.count_admitted() == 0 || self.chance.one_in(4);
            let (tap, chance) = (&self.around.tap, &mut self.chance);
            if let Some(token) = if is_any { tap.any(chance) } else { tap.any_admitted(chance) } {
                self.present(&token, None);
            }
        }
    }

    /// Starts a presentation at a random gateway. Some callers leave early.
    fn present(&mut self, token: &Arc<Token>, holder: Option<usize>) {
        let gateway = Arc::clone(&self.around.gateways[self.chance.index(self.around.gateways.len())]);
        let patience = self.chance.one_in(12).then(|| self.chance.millis(0, 60));
        self.present_at(gateway, token, patience, holder);
    }

    fn present_at(
        &mut self,
        gateway: Arc<Gateway>,
        token: &Arc<Token>,
        patience: Option<Duration>,
        holder: Option<usize>,
    ) {
        let (token, tap) = (Arc::clone(token), Arc::clone(&self.around.tap));
        if holder.is_some() {
            tap.sent(&token);
        }
        self.presentations.spawn(async move {
            if let Verdict::Admitted = gateway.present(&token, patience, holder).await {
                tap.admitted(&token);
            }
        });
    }

    /// Presents admitted tokens at every gateway.
    async fn sweep(&mut self) {
        for _ in 0..SWEEP.min(self.around.tap.count_admitted()) {
            let Some(token) = self.around.tap.any_admitted(&mut self.chance) else { return };
            for gateway in self.around.gateways.clone() {
                self.present_at(gateway, &token, None, None);
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Presents fresh tokens at every gateway after all faults; they should be admitted.
    async fn settle(&mut self) {
        let loses = self.plan.faults.iter().any(|fault| fault.what.loses());
        sleep(if loses { COMPLETED } else { BETWEEN }).await;
        self.around.fabric.change(|network| network.note(Happening::Settled));
        for _ in 0..FRESH {
            for index in 0..self.around.gateways.len() {
                let Some(token) = self.mint(index) else { continue };
                let gateway = Arc::clone(&self.around.gateways[index]);
                self.present_at(gateway, &token, None, Some(STRANGERS));
            }
            sleep(BETWEEN).await;
        }
    }
}
