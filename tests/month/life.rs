//! An installation that lives through a month, its users, and the verdict on both.

use super::schedule::{EACH, Event, Schedule};
use super::tokens::Books;
use super::watch::Seen;
use crate::support::disk::Disk;
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::router::Router;
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::unit::Unit;
use crate::support::users::{Program, Users};
use crate::support::windows::Windows;
use crate::support::{association, target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub const GATEWAYS: usize = 2;
/// One has enough tokens for any outage of the issuer here; two have almost none in reserve, one of them idle most of
/// the time and with a single gateway.
pub const AGENTS: [AgentPlan; 3] = [
    AgentPlan { name: "steady", gateways: &[0, 1], low: 160, high: 256 },
    AgentPlan { name: "thrifty", gateways: &[1, 0], low: 2, high: 6 },
    AgentPlan { name: "seldom", gateways: &[0], low: 4, high: 8 },
];
/// Agents whose users may be refused during an outage of the issuer.
pub const POOR: [&str; 2] = ["agent thrifty", "agent seldom"];
const PAUSES: [&[u64]; 3] = [&[60, 60], &[150], &[1_500]];
/// Most time until everything recovers: longer where a daemon does not use a disk that was full.
const RECOVERY: Duration = Duration::from_secs(10);
const RECOVERY_OF_A_DISK: Duration = Duration::from_secs(25);
/// A gateway reports lost records until their key retires.
const RECOVERY_OF_A_LOSS: Duration = Duration::from_secs(45);
const TICK: Duration = Duration::from_millis(50);

/// An installation over a month.
pub struct Month {
    pub site: Arc<Site>,
    pub users: Users,
    pub windows: Windows,
    pub books: Books,
    pub store: Memcached,
    pub relay: Relay,
    /// Of the issuer's keys, then of each wallet; none where mounting is not allowed.
    pub disks: Vec<Option<Disk>>,
    /// Faults that were seen.
    pub complaints: Vec<String>,
    pub rotations_now: usize,
    seed: String,
    programs: Vec<Program>,
    seen: Arc<Seen>,
    looking: JoinHandle<()>,
    _router: (Router, TempDir),
    /// The fewest that each agent sees: the first, that of a scheduled rotation, and one for each event that brings one.
    marks: usize,
}

impl Month {
    pub async fn begun(schedule: &Schedule) -> Self {
        let (store, home) = (Memcached::start(), TempDir::new().unwrap());
        let stores = [store];
        let router = Router::twemproxy(home.path(), &stores);
        let relay = Relay::to(&[router.port()]);
        let [store] = stores;
        let site = Site::new(Plan {
            rotate_every: 20,
            publish_ahead: 6,
            redeem_for: 10,
            removed_grace: "10s",
            quota: Some("1000000/3650d"),
            store: vec![relay.address()],
            gateways: GATEWAYS,
            agents: AGENTS.to_vec(),
            ..Plan::default()
        });
        let folders = std::iter::once(site.keys()).chain(AGENTS.map(|agent| site.wallet_folder(agent.name)));
        let disks: Vec<_> = folders.map(|folder| Disk::mounted(&folder)).collect();
        if disks.iter().any(Option::is_none) {
            println!("Full disks are left out: mounting a small file system needs root.");
        }
        site.declare(&AGENTS);
        for unit in site.units() {
            unit.start_ready().await;
        }
        let (site, users) =
            (Arc::new(site), Users::of(target::echo().await).with_udp(association::echo().await));
        let seen = Arc::new(Seen::default());
        let looking = tokio::spawn(seen.clone().keep_looking(site.clone(), users.clone()));
        let mut month = Self {
            users,
            windows: Windows::default(),
            books: Books::default(),
            store,
            relay,
            disks,
            complaints: Vec::new(),
            rotations_now: 0,
            seed: schedule.to_string(),
            marks: 2 + schedule.events.iter().filter(|event| event.brings_a_mark()).count(),
            programs: Vec::new(),
            seen,
            looking,
            _router: (router, home),
            site,
        };
        month.recovered("the start", RECOVERY).await;
        for (agent, pauses) in month.site.agents.iter().zip(PAUSES) {
            let begin = |pause: &u64| month.users.program(agent, Duration::from_millis(*pause));
            month.programs.extend(pauses.iter().map(begin).collect::<Vec<_>>());
        }
        month
    }

    pub async fn live_through(&mut self, event: &Event) {
        let began = Instant::now();
        println!("{:7.2} s  {event:?}", self.users.now().as_secs_f64());
        self.happen(*event).await;
        let limit = match event {
            Event::WalletDiskFull(..) | Event::IssuerDiskFull(_) => RECOVERY_OF_A_DISK,
            Event::StoreEmptied => RECOVERY_OF_A_LOSS,
            _ => RECOVERY,
        };
        self.recovered(&format!("{event:?}"), limit).await;
        // The rest of the event's time is quiet: keys still rotate, and nothing excuses a refusal.
        tokio::time::sleep(EACH.saturating_sub(began.elapsed())).await;
    }

    /// Waits until every daemon reports "ready" and every wallet is above its low water.
    async fn recovered(&mut self, after: &str, limit: Duration) {
        let began = Instant::now();
        loop {
            let ailing = self.ailing().await;
            if ailing.is_empty() {
                return;
            }
            if began.elapsed() > limit {
                self.complaints.push(format!("{limit:?} after {after}: {}", ailing.join("; ")));
                return;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    async fn ailing(&self) -> Vec<String> {
        let mut ailing = Vec::new();
        for unit in self.site.units() {
            let readiness = unit.readiness().await;
            if !readiness.is_plain() {
                ailing.push(format!(
                    "{} reports {:?} {:?}",
                    unit.name,
                    readiness.status,
                    readiness.body.trim()
                ));
            }
        }
        for (plan, agent) in AGENTS.iter().zip(&self.site.agents) {
            let held = level(agent).await.unwrap_or(0);
            if held + 1 < plan.low as u64 {
                ailing.push(format!("{} holds {held} tokens, and its low water is {}", agent.name, plan.low));
            }
        }
        ailing
    }

    /// Stops everything and judges.
    pub async fn end(mut self) {
        for program in std::mem::take(&mut self.programs) {
            program.stop().await;
        }
        self.recovered("the end", RECOVERY).await;
        self.settled().await;
        self.looking.abort();
        for agent in &self.site.agents {
            self.books.agent_says(agent).await;
        }
        for gateway in &self.site.gateways {
            self.books.gateway_says(gateway, 0).await;
        }
        self.site.terminate();
        self.books.issuer_stopped(&self.site);

        for agent in AGENTS {
            let marks = self.site.wallet(agent.name).with_file_name("wallet.marks");
            let known =
                std::fs::read_to_string(&marks).map_or(0, |text| text.matches("\"challenge\"").count());
            println!("agent {} has minted for {known} marks", agent.name);
            if known < self.marks {
                self.complaints.push(format!("agent {} has minted for {known} marks only", agent.name));
            }
        }
        let attempts = self.users.attempts();
        for (plan, agent) in AGENTS.iter().zip(&self.site.agents) {
            let gateways = plan.gateways.iter().map(|index| self.site.gateways[*index].name.as_str());
            let gateways: Vec<&str> = gateways.collect();
            self.complaints.extend(self.seen.silent_refusals(&attempts, &agent.name, &gateways));
        }
        let (wrong, table) = self.books.judged(&self.site, &self.users);
        println!("{table}");
        self.complaints.extend(wrong);
        let verdict = self.windows.judged(&attempts);
        match &verdict {
            Ok(excused) => println!("{} requests, {excused} refused unavoidably", attempts.len()),
            Err(avoidable) => self.complaints.insert(0, avoidable.clone()),
        }
        let Self { complaints, seed, windows, .. } = &self;
        assert!(
            complaints.is_empty(),
            "{seed}\n{} complaints:\n- {}\n\n{}{table}",
            complaints.len(),
            complaints.join("\n- "),
            windows.listed()
        );
    }

    /// Waits until nothing is minted any more: two looks a second apart find the same wallets.
    async fn settled(&self) {
        let mut before = Vec::new();
        loop {
            let mut levels = Vec::new();
            for agent in &self.site.agents {
                levels.push(level(agent).await);
            }
            if levels == before {
                return;
            }
            before = levels;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Returns the number of tokens that an agent holds, by its metric.
async fn level(agent: &Unit) -> Option<u64> {
    Some(agent.metrics().await?.sum("postern_wallet_tokens", &[]))
}
