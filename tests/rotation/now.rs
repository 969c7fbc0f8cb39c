//! "Rotate now", step by step as the document has it, while agents with full, low and empty wallets are used.

use super::keys::listed;
use super::procedure::{Step, steps};
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::proxy::{Head, connect, dial};
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::unit::Unit;
use crate::support::users::{Program, Users};
use crate::support::windows::Windows;
use crate::support::{TICK, target, tokens};
use postern_token::TokenType;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const FULL: AgentPlan = AgentPlan { name: "full", gateways: &[0, 1], low: 32, high: 64 };
const LOW: AgentPlan = AgentPlan { name: "low", gateways: &[1, 0], low: 2, high: 4 };
const EMPTY: AgentPlan = AgentPlan { name: "empty", gateways: &[1], low: 0, high: 1 };
/// Time from the end of a restart until an agent serves again: its own pause after a failure is over.
const GRACE: Duration = Duration::from_secs(2);
/// Time that agents are used when everything is done.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// The gateways' interval of fetching the directory, if nothing makes them fetch it earlier.
const POLL: &str = "15s";
/// Until then a gateway has dropped the key, at the latest.
const SOON: Duration = Duration::from_secs(15 + 3);
/// Most delay of an old token's refusal over what is promised: times are whole seconds, and the machine is busy.
const LATE: Duration = Duration::from_secs(3);

/// One command, whatever the grace is: nothing of a gateway is edited, and none gets a signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rotation_now_ends_old_tokens_within_seconds() {
    let mut rotation = Rotation::begun("1h").await;
    for step in steps("### Now") {
        rotation.perform(&step).await;
    }
    let refused = rotation.old_tokens_until_refused().await.saturating_sub(rotation.commanded);
    println!("old tokens counted for {refused:.1?}");
    assert!(refused <= SOON, "admitted for too long: {refused:?}");
    rotation.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_retired_and_not_revoked_keeps_its_tokens_for_the_grace() {
    let grace = Duration::from_secs(10);
    let mut rotation = Rotation::begun("10s").await;
    rotation.retire("postern issuer key retire ID --yes --config issuer.toml").await;
    for gateway in &rotation.site.gateways {
        gateway.signal("HUP");
    }
    let (began, fetching) = (rotation.retired, rotation.users.now());
    let refused = rotation.old_tokens_until_refused().await;
    println!("with a grace of {grace:?}, old tokens counted for {:.1?}", refused - began);
    assert!(
        refused + Duration::from_secs(1) >= began + grace,
        "refused too soon: after {:?}",
        refused - began
    );
    assert!(refused <= fetching + grace + LATE, "admitted for too long: {:?}", refused - fetching);
    rotation.finish().await;
}

/// An installation in which the procedure is carried out.
struct Rotation {
    site: Site,
    users: Users,
    windows: Windows,
    programs: Vec<Program>,
    target: SocketAddr,
    /// Values of Proxy-Authorization of the old key: not spent yet, and spent.
    old: Vec<String>,
    spent: Vec<String>,
    old_keys: Vec<String>,
    /// The time at which the commands that retire the keys began, that second as a Unix time, and the time at which they ended.
    retired: Duration,
    retired_second: u64,
    commanded: Duration,
    _store: Memcached,
}

impl Rotation {
    async fn begun(removed_grace: &'static str) -> Self {
        let store = Memcached::start();
        let site = Site::started(Plan {
            removed_grace,
            poll: POLL,
            store: vec![store.address()],
            gateways: 2,
            agents: vec![FULL, LOW, EMPTY],
            ..Plan::default()
        })
        .await;
        let target = target::echo().await;
        let url = |unit: &Unit| format!("http://{}", unit.address);
        let mut old = tokens::mint(&url(&site.issuer), &url(&site.gateways[0]), 400);
        let spent = old.split_off(390);
        let old_keys = key_ids(&site).await;
        let users = Users::of(target);
        let pauses = [(FULL, 60), (LOW, 120), (EMPTY, 180)];
        let programs = pauses
            .map(|(agent, pause)| users.program(site.agent(agent.name), Duration::from_millis(pause)))
            .into();
        let windows = Windows::default();
        let retired = users.now();
        let rotation = Self {
            site,
            users,
            windows,
            programs,
            target,
            old,
            spent,
            old_keys,
            retired,
            retired_second: 0,
            commanded: retired,
            _store: store,
        };
        for token in &rotation.spent {
            assert_eq!(rotation.present(0, token).await.status, 200);
        }
        rotation.assert_spent_stays_spent().await;
        rotation
    }

    async fn perform(&mut self, step: &Step) {
        if step.begins("End every key") {
            // No token can be requested until the new key has its first mark.
            let all = [FULL, LOW, EMPTY].map(|agent| agent.unit());
            let opened = self.windows.open("no key in use has a mark yet", all, self.users.now(), GRACE);
            self.retire(step.command("postern issuer key retire --now")).await;
            for gateway in &self.site.gateways {
                let is_fetched = |second| second >= self.retired_second;
                gauge(gateway, "postern_keys_fetched_timestamp_seconds", is_fetched).await;
                gateway.ready().await;
            }
            self.windows.close(opened, self.users.now());
        } else if step.begins("Check:") {
            let fetched = step.command("postern_keys_fetched_timestamp_seconds");
            for gateway in &self.site.gateways {
                gauge(gateway, fetched, |second| second >= self.retired_second).await;
                gauge(gateway, step.command("postern_keys{phase=\"newest\"}"), |keys| keys == 1).await;
                gauge(gateway, step.command("postern_keys{phase=\"older\"}"), |keys| keys == 0).await;
            }
        } else {
            panic!("this test does not know the step {step:?}: it follows the document to the letter");
        }
    }

    async fn retire(&mut self, command: &str) {
        // The check counts in whole seconds: what gateways fetched when they started was before this one.
        tokio::time::sleep(Duration::from_secs(1)).await;
        (self.retired, self.retired_second) = (self.users.now(), unix_seconds());
        for key in &self.old_keys {
            postern(&command.replace("ID", &key[..8]), &self.site);
        }
        self.commanded = self.users.now();
        let keys = key_ids(&self.site).await;
        assert_eq!(keys.len(), 1, "the directory lists the new key alone: {keys:?}");
        assert_ne!(keys, self.old_keys);
    }

    /// Presents old tokens, one after another, until a gateway refuses one; when that was.
    async fn old_tokens_until_refused(&mut self) -> Duration {
        let began = Instant::now();
        while let Some(token) = self.old.pop() {
            let at = self.users.now();
            let gateway = self.old.len() % 2;
            let head = self.present(gateway, &token).await;
            match head.status {
                200 => self.spent.push(token),
                407 => return at,
                // Without a grace no other key is in use while the new one is given its first mark.
                503 if head.fields.contains("offers no mark yet") => return at,
                _ => panic!("an old token got {head:?}"),
            }
            assert!(began.elapsed() < Duration::from_secs(30), "old tokens count for ever");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("there were too few old tokens");
    }

    /// All that must hold afterwards.
    async fn finish(mut self) {
        tokio::time::sleep(AFTERWARDS).await;
        for program in std::mem::take(&mut self.programs) {
            program.stop().await;
        }
        let Self { site, users, windows, target, .. } = &self;
        let attempts = users.attempts();
        let excused = windows.assert_only_unavoidable(&attempts, "the documented procedure \"now\"");
        println!("{} requests of users, {excused} refused while that could not be avoided", attempts.len());

        self.assert_spent_stays_spent().await;
        for token in &self.old {
            assert_eq!(self.present(1, token).await.status, 407, "an old token counts again");
        }
        let url = |unit: &Unit| format!("http://{}", unit.address);
        for token in tokens::mint(&url(&site.issuer), &url(&site.gateways[0]), 4) {
            assert_eq!(self.present(1, &token).await.status, 200);
            assert!(self.present(0, &token).await.says_spent(), "admitted twice, to {target}");
        }
        for gateway in &site.gateways {
            gauge(gateway, "postern_keys{phase=\"older\"}", |keys| keys == 0).await;
        }
        for agent in &site.agents {
            agent.plainly_ready().await;
        }
        site.terminate();
    }

    async fn assert_spent_stays_spent(&self) {
        for (index, token) in self.spent.iter().enumerate() {
            let head = self.present(index % 2, token).await;
            assert_eq!(head.status, 407, "a token was admitted twice: {head:?}");
        }
    }

    async fn present(&self, gateway: usize, token: &str) -> Head {
        let mut stream = dial(self.site.gateways[gateway].address).await.unwrap();
        connect(&mut stream, &self.target.to_string(), Some(token)).await.unwrap()
    }
}

async fn key_ids(site: &Site) -> Vec<String> {
    listed(&site.issuer, TokenType::BlindRsa2048).await.unwrap().iter().map(|(id, ..)| id.to_hex()).collect()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Waits until the gauge has a value that is wanted.
async fn gauge(unit: &Unit, series: &str, is_wanted: impl Fn(u64) -> bool) {
    let (family, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
    let deadline = Instant::now() + crate::support::PATIENCE;
    loop {
        let value = unit.metrics().await.map(|metrics| metrics.sum(family, &[labels]));
        if value.is_some_and(&is_wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "{}: {series} remains {value:?}", unit.name);
        tokio::time::sleep(TICK).await;
    }
}

/// Runs a command of the page on the site's issuer; what it prints.
fn postern(command: &str, site: &Site) -> String {
    let arguments = command.split_whitespace().skip(1);
    let config = site.issuer.config.to_str().unwrap();
    let ended = run(arguments.map(|word| if word == "issuer.toml" { config } else { word }));
    ended.assert_stopped();
    ended.stdout
}
