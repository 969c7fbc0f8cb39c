//! The events of a month in a running installation. Each states whose users may be refused, from when to when, and for
//! how long after its end.

use super::life::{AGENTS, Month, POOR};
use super::schedule::{End, Event, Who};
use super::tokens::in_flight;
use crate::support::site::{AgentPlan, write};
use crate::support::unit::{Readiness, Unit};
use crate::support::windows::Opened;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Time until users are served again when the cause is gone: the longest pause of an agent after so short an outage.
const GATEWAY_BACK: Duration = Duration::from_secs(2);
const STORE_BACK: Duration = Duration::from_secs(2);
/// A gateway reads connection, witnesses and other gateways' offers before it plants the next mark, and the agent has to
/// learn of it and to have a token signed.
const NEXT_MARK: Duration = Duration::from_secs(5);
const ISSUER_BACK: Duration = Duration::from_secs(5);
const AGENT_BACK: Duration = Duration::from_secs(1);
/// An issuer that could not write a key tries again after 10 s.
const KEYS_BACK: Duration = Duration::from_secs(12);
/// Requests that a gateway may answer between its last word and its end: those of all users in half a second.
const UNSEEN: i64 = 25;
/// Most time until a gateway is ready, also without the issuer.
const ALONE: Duration = Duration::from_secs(5);
/// Most time until a reload is logged.
const SAID: Duration = Duration::from_secs(5);

impl Month {
    pub async fn happen(&mut self, event: Event) {
        match event {
            Event::Restart(Who::Issuer, end) => self.issuer_away(Duration::ZERO, end).await,
            Event::Restart(Who::Gateway(index), end) => self.restart_gateway(index, end).await,
            Event::Restart(Who::Agent(index), end) => self.restart_agent(index, end).await,
            Event::RotateNow => self.rotate_now().await,
            Event::StoreFrozen(span) => self.store_frozen(span).await,
            Event::StoreUnreachable(span) => self.store_unreachable(span).await,
            Event::StoreEmptied => self.store_emptied().await,
            Event::IssuerAway(span) => self.issuer_away(span, End::Asked).await,
            Event::RestartWithoutIssuer(index) => self.restart_without_issuer(index).await,
            Event::WalletDiskFull(index, span) => self.wallet_disk_full(index, span).await,
            Event::IssuerDiskFull(span) => self.issuer_disk_full(span).await,
            Event::Reload(who) => self.reload(who).await,
            Event::BadReload(who) => self.bad_reload(who).await,
        }
    }

    async fn issuer_away(&mut self, span: Duration, end: End) {
        let opened = self.windows.open("the issuer is away", POOR, self.users.now(), ISSUER_BACK);
        self.stop_issuer(end).await;
        sleep(span).await;
        self.site.issuer.start_ready().await;
        self.windows.close(opened, self.users.now());
    }

    async fn stop_issuer(&mut self, end: End) {
        let issuer = &self.site.issuer;
        match end {
            End::Asked => {
                issuer.terminate();
                self.books.issuer_stopped(&self.site);
            }
            End::Killed => {
                let metrics = issuer.metrics().await.expect("the issuer has metrics");
                let signed = metrics.sum("postern_tokens_issued_total", &[]);
                issuer.kill();
                self.books.issuer_killed(&self.site, i64::try_from(signed).unwrap());
            }
        }
    }

    async fn restart_gateway(&mut self, index: usize, end: End) {
        let gateway = &self.site.gateways[index];
        self.books.gateway_says(gateway, UNSEEN).await;
        let what = format!("{} is restarted ({end:?})", gateway.name);
        let opened = self.windows.open(what, dependents(index), self.users.now(), GATEWAY_BACK);
        if end == End::Killed {
            self.windows.severs(opened, all_users());
        }
        stop(gateway, end);
        gateway.start();
        self.back(index, opened).await;
    }

    async fn restart_agent(&mut self, index: usize, end: End) {
        let agent = &self.site.agents[index];
        let what = format!("{} is restarted ({end:?})", agent.name);
        let opened = self.windows.open(what, [agent.name.clone()], self.users.now(), AGENT_BACK);
        self.books.agent_says(agent).await;
        self.books.may_miss(&agent.name, in_flight(&AGENTS[index]));
        stop(agent, end);
        agent.start();
        agent.listening().await;
        self.windows.close(opened, self.users.now());
    }

    /// By files alone: an issuer that finds no key makes one. `tests/rotation.rs` has the procedure of `docs/operate/change.md`.
    async fn rotate_now(&mut self) {
        let opened =
            self.windows.open("the issuer is stopped to rotate now", POOR, self.users.now(), ISSUER_BACK);
        self.stop_issuer(End::Asked).await;
        self.rotations_now += 1;
        let away = self.site.home().join(format!("retired-keys-{}", self.rotations_now));
        std::fs::create_dir(&away).unwrap();
        for entry in std::fs::read_dir(self.site.keys()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "p8") {
                // Another file system: a rename would not do.
                std::fs::copy(&path, away.join(path.file_name().unwrap())).unwrap();
                std::fs::remove_file(&path).unwrap();
            }
        }
        self.site.issuer.start_ready().await;
        for gateway in &self.site.gateways {
            gateway.signal("HUP");
        }
        self.windows.close(opened, self.users.now());
    }

    async fn store_frozen(&mut self, span: Duration) {
        let opened = self.windows.open("the store is frozen", all_users(), self.users.now(), STORE_BACK);
        self.store.freeze();
        sleep(span).await;
        self.store.thaw();
        self.windows.close(opened, self.users.now());
    }

    async fn store_unreachable(&mut self, span: Duration) {
        let what = "the store cannot be reached";
        let opened = self.windows.open(what, all_users(), self.users.now(), STORE_BACK);
        self.relay.close();
        sleep(span).await;
        self.relay.open();
        self.windows.close(opened, self.users.now());
    }

    /// All tokens in wallets are void, spent or not. Users wait for tokens of the next mark, and agents have a stock again
    /// with the next token key.
    async fn store_emptied(&mut self) {
        let what = "the store has lost all records";
        let opened = self.windows.open(what, all_users(), self.users.now(), NEXT_MARK);
        self.store.kill();
        self.store.launch();
        self.windows.close(opened, self.users.now());
        // An agent learns of it with its next request, and reports itself ready until then.
        let began = Instant::now();
        for agent in &self.site.agents {
            let left = NEXT_MARK.saturating_sub(began.elapsed());
            agent.readiness_within(left, |says| !says.is_plain()).await;
        }
    }

    async fn restart_without_issuer(&mut self, index: usize) {
        let away = self.windows.open("the issuer is away", POOR, self.users.now(), ISSUER_BACK);
        self.stop_issuer(End::Asked).await;
        let gateway = &self.site.gateways[index];
        let what = format!("{} is restarted while the issuer is away", gateway.name);
        let opened = self.windows.open(what, dependents(index), self.users.now(), GATEWAY_BACK);
        self.books.gateway_says(gateway, UNSEEN).await;
        gateway.terminate();
        gateway.start();
        self.back(index, opened).await;
        self.site.issuer.start_ready().await;
        self.windows.close(away, self.users.now());
    }

    /// Waits until a gateway that was started is ready: from then on its users are served.
    async fn back(&mut self, index: usize, opened: Opened) {
        let gateway = &self.site.gateways[index];
        let readiness = gateway.readiness_within(ALONE, Readiness::is_ready).await;
        self.windows.close(opened, self.users.now());
        if !readiness.is_ready() {
            let said = readiness.body.trim();
            self.complaints.push(format!("{} is not ready {ALONE:?} after its start: {said}", gateway.name));
        }
    }

    async fn wallet_disk_full(&mut self, index: usize, span: Duration) {
        let Some(disk) = &self.disks[1 + index] else { return };
        let name = self.site.agents[index].name.clone();
        let what = format!("the disk of {name}'s wallet is full");
        // An agent that could not write leaves its issuer alone for 20 s: a full disk does not mend itself.
        let opened = self.windows.open(what, [name], self.users.now(), Duration::from_secs(20));
        disk.fill();
        sleep(span).await;
        disk.clear();
        self.windows.close(opened, self.users.now());
    }

    async fn issuer_disk_full(&mut self, span: Duration) {
        let Some(disk) = &self.disks[0] else { return };
        let opened = self.windows.open("the issuer's disk is full", POOR, self.users.now(), KEYS_BACK);
        disk.fill();
        sleep(span).await;
        disk.clear();
        self.windows.close(opened, self.users.now());
    }

    /// Nothing that users could notice.
    async fn reload(&mut self, who: Who) {
        let site = &self.site;
        let unit = self.unit(who);
        let from = unit.log().len();
        let text = match who {
            Who::Issuer => {
                let more = AgentPlan { name: "newcomer", gateways: &[0], low: 0, high: 1 };
                let agents: Vec<_> = AGENTS.into_iter().chain([more]).collect();
                site.declare(&agents);
                site.issuer_config() + "[limits]\nconnections = 5000\n"
            }
            Who::Gateway(_) => {
                let before = site.gateway_config(unit, site.plan.removed_grace);
                before + "[limits]\nconnections = 5000\n"
            }
            Who::Agent(_) => return,
        };
        write(unit, &text);
        unit.signal("HUP");
        let line = unit.logged(from, &["was read again"], SAID).await;
        self.said(line, format!("{who:?} did not log that it read its file again"));
    }

    /// The old configuration stays in force, and the log reports it.
    async fn bad_reload(&mut self, who: Who) {
        let unit = self.unit(who);
        let (good, from) = (std::fs::read_to_string(&unit.config).unwrap(), unit.log().len());
        write(unit, &format!("{good}\n[nonsense]\n"));
        unit.signal("HUP");
        let line = unit.logged(from, &["nonsense"], SAID).await;
        write(unit, &good);
        unit.signal("HUP");
        self.said(line, format!("{who:?} did not log that its new file cannot be used"));
    }

    fn said(&mut self, line: Option<String>, complaint: String) {
        if line.is_none() {
            self.complaints.push(complaint);
        }
    }

    fn unit(&self, who: Who) -> &Unit {
        match who {
            Who::Issuer => &self.site.issuer,
            Who::Gateway(index) => &self.site.gateways[index],
            Who::Agent(index) => &self.site.agents[index],
        }
    }
}

fn stop(unit: &Unit, end: End) {
    match end {
        End::Asked => unit.terminate(),
        End::Killed => unit.kill(),
    };
}

fn all_users() -> impl Iterator<Item = String> {
    AGENTS.into_iter().map(|agent| agent.unit())
}

/// Agents without another gateway.
fn dependents(gateway: usize) -> impl Iterator<Item = String> {
    AGENTS.into_iter().filter(move |agent| agent.depends_on(gateway)).map(|agent| agent.unit())
}
