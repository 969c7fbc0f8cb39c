//! `docs/operate/change.md`, "Bind tokens in a fleet that runs": gateways of different settings side by side over one store,
//! with an agent at each and one at all of them, over scheduled rotations and a forced one.

use crate::support::memcached::Memcached;
use crate::support::proxy::{Head, connect, dial};
use crate::support::router::Router;
use crate::support::site::{AgentPlan, Plan, Site, write};
use crate::support::unit::Unit;
use crate::support::users::{Program, Users};
use crate::support::windows::Windows;
use crate::support::{target, tokens};
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;

/// A key is published for longer than gateways wait for the mark of one that a gateway without marks has begun.
const ROTATE_EVERY: u64 = 20;
const PUBLISH_AHEAD: u64 = 18;
const REDEEM_FOR: u64 = 6;
const AGENTS: [AgentPlan; 4] = [
    AgentPlan { name: "first", gateways: &[0], low: 4, high: 8 },
    AgentPlan { name: "second", gateways: &[1], low: 4, high: 8 },
    AgentPlan { name: "third", gateways: &[2], low: 4, high: 8 },
    AgentPlan { name: "all", gateways: &[2, 0, 1], low: 8, high: 16 },
];
/// How soon after a gateway's reload its users are served.
const RELOADED: Duration = Duration::from_secs(2);
/// How soon they are after a forced rotation, which leaves no token.
const ROTATED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_bound_gateway_by_gateway() {
    let mut fleet = Fleet::begun().await;
    fleet.set(0, "accept").await; // in force once the mark of a young key was waited for
    fleet.rotates().await;
    fleet.set(1, "accept").await;
    fleet.set(2, "accept").await;
    assert_eq!(fleet.planted().await, 0);
    fleet.set(0, "offer").await;
    fleet.rotates().await;
    fleet.rotate_now().await;
    fleet.set(1, "offer").await;
    fleet.set(2, "offer").await;
    let before = fleet.planted().await;
    fleet.rotates().await;
    assert!(fleet.planted().await > before, "the next key begins with a mark");
    fleet.end().await;
}

struct Fleet {
    site: Site,
    users: Users,
    windows: Windows,
    programs: Vec<Program>,
    target: SocketAddr,
    /// Values of Proxy-Authorization that were admitted.
    spent: Vec<String>,
    _store: (Router, Vec<Memcached>, TempDir),
}

impl Fleet {
    async fn begun() -> Self {
        let home = TempDir::new().unwrap();
        let servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
        let router = Router::twemproxy(home.path(), &servers);
        let site = Site::new(Plan {
            rotate_every: ROTATE_EVERY,
            publish_ahead: PUBLISH_AHEAD,
            redeem_for: REDEEM_FOR,
            removed_grace: "1s",
            store: vec![format!("127.0.0.1:{}", router.port())],
            gateways: 3,
            agents: AGENTS.to_vec(),
            ..Plan::default()
        });
        // To this agent they are one fleet, whose tokens are good at each of them.
        let all = site.agent("all");
        let text = std::fs::read_to_string(&all.config).unwrap();
        write(all, &text.replace("[gateway]\n", "[gateway]\norigin = \"proxy.example\"\n"));
        for unit in site.units() {
            unit.start_ready().await;
        }
        let target = target::echo().await;
        let users = Users::of(target);
        let program = |agent: &AgentPlan| users.program(site.agent(agent.name), Duration::from_millis(150));
        let programs = AGENTS.iter().map(program).collect();
        let (windows, spent, _store) = (Windows::default(), Vec::new(), (router, servers, home));
        Self { site, users, windows, programs, target, spent, _store }
    }

    /// Reloads a gateway with `bind`, and shows that all gateways go on spending together.
    async fn set(&mut self, index: usize, bind: &str) {
        let Self { site, users, windows, .. } = &*self;
        let gateway = &site.gateways[index];
        let text = site.gateway_config(gateway, site.plan.removed_grace);
        write(gateway, &text.replace("bind = \"off\"", &format!("bind = \"{bind}\"")));
        let theirs = AGENTS.iter().filter(|agent| agent.depends_on(index)).map(AgentPlan::unit);
        let opened = windows.open(format!("{} gets {bind:?}", gateway.name), theirs, users.now(), RELOADED);
        let from = gateway.log().len();
        gateway.signal("HUP");
        gateway.logs(from, &["is in force from now on", "challenge.bind"]).await;
        gateway.ready().await;
        windows.close(opened, users.now());
        self.spend_everywhere().await;
    }

    /// Tokens requested at each gateway are good at the next one, once.
    async fn spend_everywhere(&mut self) {
        let url = |unit: &Unit| format!("http://{}", unit.address);
        for index in 0..3 {
            let fresh = tokens::mint(&url(&self.site.issuer), &url(&self.site.gateways[index]), 4);
            for token in fresh {
                let head = self.present((index + 1) % 3, &token).await;
                assert_eq!(head.status, 200, "a token of gateway {}: {head:?}", index + 1);
                self.spent.push(token);
            }
        }
        for token in self.spent.iter().rev().take(24) {
            for gateway in 0..3 {
                let head = self.present(gateway, token).await;
                assert_eq!(head.status, 407, "admitted twice, the second time by gateway {}", gateway + 1);
            }
        }
    }

    async fn present(&self, gateway: usize, token: &str) -> Head {
        let mut stream = dial(self.site.gateways[gateway].address).await.unwrap();
        connect(&mut stream, &self.target.to_string(), Some(token)).await.unwrap()
    }

    /// A key that is published under the present settings takes over.
    async fn rotates(&mut self) {
        tokio::time::sleep(Duration::from_secs(ROTATE_EVERY + 2)).await;
        self.spend_everywhere().await;
    }

    /// The key files are gone, and the issuer makes a key. Whichever gateway is the first to see the new key decides whether it has a mark.
    async fn rotate_now(&mut self) {
        let Self { site, users, windows, .. } = &*self;
        let all = AGENTS.iter().map(AgentPlan::unit);
        let opened = windows.open("the issuer rotates now", all, users.now(), ROTATED);
        site.issuer.terminate();
        for entry in std::fs::read_dir(site.keys()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "p8") {
                std::fs::remove_file(path).unwrap();
            }
        }
        site.issuer.start_ready().await;
        site.gateways.iter().for_each(|gateway| gateway.signal("HUP"));
        windows.close(opened, users.now());
        tokio::time::sleep(ROTATED).await;
        self.spend_everywhere().await;
    }

    /// Marks that gateways planted, by the processes that run now.
    async fn planted(&self) -> u64 {
        let mut planted = 0;
        for gateway in &self.site.gateways {
            let metrics = gateway.metrics().await.unwrap();
            planted += metrics.sum("postern_store_marks_planted_total", &[]);
        }
        planted
    }

    async fn end(mut self) {
        for program in std::mem::take(&mut self.programs) {
            program.stop().await;
        }
        let attempts = self.users.attempts();
        let excused = self.windows.assert_only_unavoidable(&attempts, "the documented rollout");
        println!("{} requests of users, {excused} refused while that could not be avoided", attempts.len());
        for agent in &self.site.agents {
            agent.plainly_ready().await;
        }
        self.site.terminate();
    }
}
