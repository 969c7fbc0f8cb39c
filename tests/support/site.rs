//! An installation as an operator has it: an issuer with its accounts, gateways over one store, agents, each from a
//! configuration file and on an address that stays the same over restarts.

use super::daemon::{apply, declared};
use super::unit::Unit;
use postern_token::{TokenType, key_file};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The plan of an installation. Key times are whole seconds, as they are on the wire.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rotate_every: u64,
    pub publish_ahead: u64,
    pub redeem_for: u64,
    /// The token types that are issued and accepted, the preferred one first.
    pub types: &'static [u16],
    /// The gateways' interval of fetching the issuer's keys.
    pub poll: &'static str,
    pub removed_grace: &'static str,
    /// An account for each agent, with this quota. `None`: the issuer is open.
    pub quota: Option<&'static str>,
    /// Addresses of the gateways' store.
    pub store: Vec<String>,
    pub gateways: usize,
    pub agents: Vec<AgentPlan>,
}

/// An agent, and how it keeps its wallet.
#[derive(Clone, Copy, Debug)]
pub struct AgentPlan {
    pub name: &'static str,
    /// The gateways it uses, counted from 0, in order of preference.
    pub gateways: &'static [usize],
    pub low: usize,
    pub high: usize,
}

impl Default for Plan {
    /// One gateway without a store address, keys of a day.
    fn default() -> Self {
        Self {
            rotate_every: 86_400,
            publish_ahead: 3_600,
            redeem_for: 3_600,
            types: &[2],
            poll: "1s",
            removed_grace: "1h",
            quota: None,
            store: Vec::new(),
            gateways: 1,
            agents: Vec::new(),
        }
    }
}

impl AgentPlan {
    /// As its unit is called.
    pub fn unit(&self) -> String {
        format!("agent {}", self.name)
    }

    /// Returns whether it has no gateway but this one.
    pub fn depends_on(&self, gateway: usize) -> bool {
        self.gateways == [gateway]
    }
}

/// A running installation.
pub struct Site {
    pub issuer: Unit,
    pub gateways: Vec<Unit>,
    pub agents: Vec<Unit>,
    pub plan: Plan,
    /// Keeps the loopback address ours.
    _address: TcpListener,
    home: TempDir,
}

/// Ports on the installation's own loopback address: nothing else binds there, so a restarted daemon finds its port
/// free.
const CLAIM: u16 = 7_000;
const ISSUER: u16 = 8_081;
const GATEWAY: u16 = 8_100;
const AGENT: u16 = 8_200;
const ADMIN: u16 = 1_000;

impl Site {
    /// Writes the configurations. Nothing runs yet.
    pub fn new(plan: Plan) -> Self {
        let home = TempDir::new().unwrap();
        let claim = own_address();
        let at = |port| SocketAddr::from((claim.local_addr().unwrap().ip(), port));
        let unit = |kind, name: String, folder: &Path, port: u16| {
            std::fs::create_dir(folder).unwrap();
            Unit::new(kind, name, folder.join("config.toml"), at(port), at(port + ADMIN))
        };
        let issuer = unit("issuer", "issuer".into(), &home.path().join("issuer"), ISSUER);
        let gateways = (0..plan.gateways).map(|index| {
            let name = format!("gateway {}", index + 1);
            unit("gateway", name, &home.path().join(format!("gateway-{}", index + 1)), GATEWAY + index as u16)
        });
        let gateways = gateways.collect();
        let agents = plan.agents.iter().enumerate().map(|(index, agent)| {
            let folder = home.path().join(format!("agent-{}", agent.name));
            unit("client", agent.unit(), &folder, AGENT + index as u16)
        });
        let agents = agents.collect();
        let site = Self { issuer, gateways, agents, plan, _address: claim, home };
        for agent in &site.plan.agents {
            std::fs::create_dir(site.wallet_folder(agent.name)).unwrap();
        }
        site.configure();
        site
    }

    /// Starts everything, in the order in which each can be ready.
    pub async fn started(plan: Plan) -> Self {
        let site = Self::new(plan);
        site.declare(&site.plan.agents);
        for unit in site.units() {
            unit.start();
            unit.listening().await;
            // An agent that keeps no token ready may not call itself ready before it is used.
            if !site.plan.agents.iter().any(|agent| agent.low == 0 && unit.name == agent.unit()) {
                unit.ready().await;
            }
            site.secrets().copy();
        }
        site
    }

    /// The key files that gateways need of the issuer.
    pub fn secrets(&self) -> Secrets {
        let copies = self.gateways.iter().map(secrets_of).collect();
        Secrets { keys: self.keys(), copies }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// All daemons: the issuer, then gateways, then agents.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        std::iter::once(&self.issuer).chain(&self.gateways).chain(&self.agents)
    }

    pub fn agent(&self, name: &str) -> &Unit {
        let index = self.plan.agents.iter().position(|agent| agent.name == name);
        &self.agents[index.unwrap_or_else(|| panic!("there is no agent {name:?}"))]
    }

    /// The folder of an agent's wallet, apart from its configuration.
    pub fn wallet_folder(&self, name: &str) -> PathBuf {
        self.home().join(format!("agent-{name}")).join("state")
    }

    pub fn wallet(&self, name: &str) -> PathBuf {
        self.wallet_folder(name).join("wallet")
    }

    /// The issuer's keys and counts.
    pub fn keys(&self) -> PathBuf {
        self.home().join("issuer").join("keys")
    }

    /// SIGTERM for all, agents first.
    pub fn terminate(&self) {
        let running: Vec<_> = self.units().filter(|unit| unit.is_running()).collect();
        for unit in running.into_iter().rev() {
            let ended = unit.terminate();
            assert_eq!(ended.code, Some(0), "{}: {ended:#?}", unit.name);
        }
    }

    fn configure(&self) {
        write(&self.issuer, &self.issuer_config());
        for gateway in &self.gateways {
            std::fs::create_dir(secrets_of(gateway)).unwrap();
            write(gateway, &self.gateway_config(gateway, self.plan.removed_grace));
        }
        for (agent, unit) in self.plan.agents.iter().zip(&self.agents) {
            write(unit, &self.agent_config(agent, unit));
        }
    }

    /// Makes the issuer's accounts those of `agents`, when the plan has accounts, whether it runs or not.
    pub fn declare(&self, agents: &[AgentPlan]) {
        let Some(quota) = self.plan.quota else { return };
        let accounts: String =
            agents.iter().map(|agent| declared(agent.name, &api_key(agent.name), quota)).collect();
        apply(&self.issuer.config, &accounts).assert_stopped();
    }

    /// The issuer's configuration.
    pub fn issuer_config(&self) -> String {
        let Plan { rotate_every, publish_ahead, redeem_for, types, .. } = &self.plan;
        let mut text = listen(&self.issuer);
        write!(
            text,
            "[keys]\ndirectory = {:?}\ntypes = {types:?}\nrotate_every = \"{rotate_every}s\"\n\
             publish_ahead = \"{publish_ahead}s\"\nredeem_for = \"{redeem_for}s\"\n",
            self.keys()
        )
        .unwrap();
        text
    }

    /// A gateway's configuration with this `removed_grace`. Two workers; deadlines that a busy machine keeps.
    pub fn gateway_config(&self, gateway: &Unit, removed_grace: &str) -> String {
        let Plan { poll, store, types, .. } = &self.plan;
        let kind = if store.is_empty() { "embedded" } else { "memcached" };
        let spent = gateway.config.with_file_name("spent");
        let saved = gateway.config.with_file_name("issuer-keys.json");
        let secrets = secrets_of(gateway);
        format!(
            "{}workers = 2
[issuer]
directory = \"http://{}/.well-known/private-token-issuer-directory\"
poll = \"{poll}\"
saved = {saved:?}
removed_grace = \"{removed_grace}\"
types = {types:?}
secrets = {secrets:?}
[challenge]
issuer_name = \"issuer.example\"
origin = \"proxy.example\"
[store]
kind = \"{kind}\"
path = {spent:?}
[store.memcached]
addresses = {store:?}
timeout = \"1s\"
[egress]
private = true
ports = \"any\"
udp = \"any\"
[drain]
deadline = \"5s\"
",
            listen(gateway),
            self.issuer.address
        )
    }

    fn agent_config(&self, agent: &AgentPlan, unit: &Unit) -> String {
        let AgentPlan { name, gateways, low, high } = agent;
        let key = match self.plan.quota {
            Some(_) => format!("api_key = \"{}\"\n", api_key(name)),
            None => String::new(),
        };
        let urls = gateways.iter().map(|index| format!("http://{}", self.gateways[*index].address));
        let urls: Vec<String> = urls.collect();
        let url = if let [one] = &urls[..] { format!("{one:?}") } else { format!("{urls:?}") };
        format!(
            "{}[gateway]\nurl = {url}\n[issuer]\nurl = \"http://{}\"\n{key}[wallet]\npath = {:?}\nmost_per_minute = 0\nlow = {low}\n\
             high = {high}\ndelay = \"500ms\"\n[drain]\ndeadline = \"5s\"\n",
            listen(unit),
            self.issuer.address,
            self.wallet(name)
        )
    }
}

/// The issuer's key files of the private types, and the folders of the gateways that verify with copies of them.
pub struct Secrets {
    keys: PathBuf,
    copies: Vec<PathBuf>,
}

impl Secrets {
    /// Copies what is new, as an operator does: whole files under their names.
    pub fn copy(&self) {
        for entry in std::fs::read_dir(&self.keys).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            if !key_file::token_type(&path).is_some_and(TokenType::is_private) {
                continue;
            }
            for copy in self.copies.iter().map(|folder| folder.join(name)).filter(|copy| !copy.exists()) {
                let begun = copy.with_extension("begun");
                std::fs::copy(&path, &begun).unwrap();
                std::fs::rename(begun, copy).unwrap();
            }
        }
    }
}

fn secrets_of(gateway: &Unit) -> PathBuf {
    gateway.config.with_file_name("secrets")
}

/// Writes a daemon's configuration; a running one reads it on SIGHUP.
pub fn write(unit: &Unit, text: &str) {
    std::fs::write(&unit.config, text).unwrap();
}

fn listen(unit: &Unit) -> String {
    format!("[listen]\naddress = \"{}\"\nadmin = \"{}\"\n", unit.address, unit.admin)
}

/// An API key that cannot be guessed from the account's name, and is the same in every run.
pub fn api_key(account: &str) -> String {
    sha256(&format!("an API key of the cross-process tests for {account}"))
}

/// The recipe of `docs/reference/configuration.md`: `printf %s "$KEY" | sha256sum`.
pub fn sha256(text: &str) -> String {
    let output =
        Command::new("sh").args(["-c", "printf %s \"$1\" | sha256sum", "sh", text]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

/// A loopback address of this installation alone, claimed by a listener on it.
fn own_address() -> TcpListener {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let mixed = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let [_, second, third, fourth] = mixed.to_be_bytes();
        // 127.0.0.0/16 is where everyone else is.
        let address = Ipv4Addr::new(127, second | 64, third, fourth.clamp(1, 254));
        if let Ok(claim) = TcpListener::bind((address, CLAIM)) {
            return claim;
        }
    }
}
