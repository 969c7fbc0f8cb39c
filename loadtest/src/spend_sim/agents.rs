//! Strangers and attackers: they present fresh tokens, and every token again, at random and when it hurts most. Agents with
//! wallets live beside them.

use super::agent::{Agent, Habits, Surroundings};
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

/// The longest that the last presentations are waited for.
const LAST: Duration = Duration::from_secs(3);
/// Tokens that are presented again in a sweep.
const SWEEP: usize = 32;
/// After a loss the next mark may have to wait for a server that is away, and is planted without it then.
const COMPLETED: Duration = Duration::from_secs(14);
/// Fresh tokens for each gateway at the end, and the time between them.
const FRESH: usize = 6;
const BETWEEN: Duration = Duration::from_millis(500);

/// The longest that agents are waited for.
const AGENTS: Duration = Duration::from_secs(60);
/// From how many tokens on an agent mints, and up to how many.
const WATERS: (usize, usize) = (2, 5);

pub(crate) struct Agents {
    plan: Plan,
    chance: Chance,
    around: Surroundings,
    /// Presentations under way. They go on by themselves.
    presentations: JoinSet<()>,
}

impl Agents {
    pub(crate) fn new(plan: &Plan, around: Surroundings) -> Self {
        let chance = Chance::new(plan.seed, 3);
        Self { plan: plan.clone(), chance, around, presentations: JoinSet::new() }
    }

    /// Lives through the run.
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
        let _ = timeout(AGENTS, async { while agents.join_next().await.is_some() {} }).await;
    }

    /// They end with the run's faults, when attackers begin to present everything again.
    fn start_agents(&self, began: Instant) -> JoinSet<()> {
        let until = began + Duration::from_millis(self.plan.length);
        let pause = Duration::from_millis(self.plan.pause);
        let habits = Habits { low: WATERS.0, high: WATERS.1, first: WATERS.1, pause, leaves: 12 };
        let mut agents = JoinSet::new();
        for number in 1..=self.plan.agents {
            let chance = Chance::new(self.plan.seed, 100 + number as u64);
            let agent = Agent::new(number, habits, &self.around, chance);
            agents.spawn(async move { drop(agent.live(until, |_| ()).await) });
        }
        agents
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
        if self.around.tap.is_idle() || self.chance.percent(45) {
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

    /// A fresh token, for the challenge of a gateway.
    fn mint(&mut self, gateway: usize) -> Option<Arc<Token>> {
        let offer = self.around.gateways[gateway].challenge(STRANGERS).ok()?;
        Some(self.around.issuer.sign(STRANGERS, offer, &mut self.chance))
    }

    /// Presents tokens again: mostly those that were admitted, for those must never be admitted any more.
    fn replay(&mut self, count: usize) {
        for _ in 0..count {
            let is_any = self.around.tap.count_admitted() == 0 || self.chance.one_in(4);
            let chance = &mut self.chance;
            let tap = &self.around.tap;
            let index = |length| chance.index(length);
            let token = if is_any { tap.any(index) } else { tap.any_admitted(index) };
            if let Some(token) = token {
                self.present(&token, None);
            }
        }
    }

    /// Starts a presentation at any gateway. Some callers go away half-way.
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
            let chance = &mut self.chance;
            let Some(token) = self.around.tap.any_admitted(|length| chance.index(length)) else { return };
            for gateway in self.around.gateways.clone() {
                self.present_at(gateway, &token, None, None);
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Every fault is over: fresh tokens should be admitted at every gateway.
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
