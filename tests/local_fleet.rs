//! `deploy/local/fleet`: one command, and a whole fleet answers on loopback; one signal, and nothing of it is left.

mod dashboards;

use crate::support::process::Postern;
use crate::support::{admin, proxy, root, target, tokens};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Variables of the caller's machine that the script may know.
const PASSED_ON: [&str; 3] = ["POSTERN_MCROUTER", "POSTERN_JAEGER", "POSTERN_PROMETHEUS"];
/// A store that is slow, for the machine is busy, is not what these tests are about.
const PATIENT: [&str; 1] = ["POSTERN_STORE_MEMCACHED_TIMEOUT"];

fn script(data: &Path, binary: Option<&str>) -> Command {
    let path = root().join("deploy/local/fleet");
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name == "RUST_LOG" || name.starts_with("POSTERN_") && !PASSED_ON.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.envs(PATIENT.map(|name| (name, "20s")));
    command.args(["--open-egress", "--patience", "60", "--data"]).arg(data);
    if let Some(binary) = binary {
        command.args(["--binary", binary]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The content of `fleet.env`, which is written when everything is ready.
struct Facts(BTreeMap<String, String>);

impl Facts {
    fn read(data: &Path) -> Self {
        let text = std::fs::read_to_string(data.join("fleet.env")).unwrap();
        let facts = text.lines().map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.trim_matches('\'').to_owned())
        });
        Self(facts.collect())
    }

    fn all(&self, name: &str) -> Vec<&str> {
        let value = self.0.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.0));
        value.split(' ').collect()
    }

    fn one(&self, name: &str) -> &str {
        let [value] = self.all(name)[..] else { panic!("{name} is {:?}", self.0[name]) };
        value
    }

    /// Every process of the fleet, the script aside: variable and process.
    fn processes(&self) -> Vec<(String, Process)> {
        let names = self.0.keys().filter(|name| name.ends_with("_PID") || name.ends_with("_PIDS"));
        let pids = names
            .filter(|name| *name != "FLEET_PID")
            .flat_map(|name| self.all(name).into_iter().map(move |pid| (name.clone(), Process::of(pid))));
        pids.collect()
    }
}

/// A process by its id and the time of its start, for ids come round again.
struct Process {
    stat: PathBuf,
    born: String,
}

impl Process {
    fn of(pid: &str) -> Self {
        let stat = PathBuf::from(format!("/proc/{pid}/stat"));
        let born = Self::born(&stat).unwrap_or_else(|| panic!("process {pid} does not run"));
        Self { stat, born }
    }

    fn runs(&self) -> bool {
        Self::born(&self.stat).is_some_and(|born| born == self.born)
    }

    /// The 22nd field; the second may have blanks in it, and ends with the last bracket.
    fn born(stat: &Path) -> Option<String> {
        let text = std::fs::read_to_string(stat).ok()?;
        let (_, fields) = text.rsplit_once(") ")?;
        fields.split(' ').nth(19).map(str::to_owned)
    }
}

fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_one_machine_spends_each_token_once_and_leaves_nothing_behind() {
    let home = TempDir::new().unwrap();
    let built = home.path().join("built");
    std::fs::create_dir_all(built.join("release")).unwrap();
    symlink(env!("CARGO_BIN_EXE_postern"), built.join("release/postern")).unwrap();
    let mut command = script(home.path(), None);
    command.env("CARGO_TARGET_DIR", &built);
    let fleet = Postern::start(command);
    fleet.wait_for("that it is ready", |stdout, _| stdout.contains("\nReady.").then_some(()));
    let facts = Facts::read(home.path());
    let (gateways, admins) = (facts.all("GATEWAYS"), facts.all("ADMINS"));
    assert_eq!((gateways.len(), admins.len()), (2, 2));
    assert_eq!((facts.all("MEMCACHED").len(), facts.all("ROUTERS").len()), (3, 3));
    for url in admins.iter().copied().chain([facts.one("ISSUER_ADMIN"), facts.one("AGENT_ADMIN")]) {
        let said = admin::page(address(url), "/readyz").await;
        assert!(said.starts_with("ready\n"), "{url}: {said}");
    }

    spends_once(&facts).await;
    let web = target::web(Ipv4Addr::LOCALHOST).await;
    let loads = async || {
        let mut stream = proxy::dial(address(facts.one("AGENT"))).await.unwrap();
        let page = proxy::get(&mut stream, &web.to_string(), None).await.unwrap();
        assert_eq!((page.status, page.body.as_str()), (200, target::PAGE), "{page:?}");
    };
    loads().await;

    // The script names a killed program, and the others continue: two replicas decide.
    let processes = facts.processes();
    assert!(processes.len() >= 10, "{:?}", facts.0);
    let victim = facts.all("MEMCACHED_PIDS")[0];
    assert!(Command::new("kill").args(["-s", "KILL", victim]).status().unwrap().success());
    fleet.wait_for("which one ended", |_, stderr| {
        stderr.contains("memcached-1 was ended by signal 9").then_some(())
    });
    let running = processes.iter().filter(|(_, process)| process.runs()).count();
    assert_eq!(running, processes.len() - 1);
    spends_once(&facts).await;
    loads().await;

    fleet.terminate().assert_stopped();
    let left: Vec<_> = processes.iter().filter(|(_, process)| process.runs()).map(|(name, _)| name).collect();
    assert!(left.is_empty(), "still run: {left:?}");
    assert!(!home.path().join("fleet.env").exists(), "fleet.env names processes that ended");
}

/// Two memcacheds are no three replicas: they share one pool, which both transports reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_two_memcacheds_has_one_pool() {
    let home = TempDir::new().unwrap();
    let mut command = script(home.path(), Some(env!("CARGO_BIN_EXE_postern")));
    command.args(["--memcached", "2", "--without", "agent,jaeger,prometheus,grafana"]);
    let fleet = Postern::start(command);
    fleet.wait_for("that it is ready", |stdout, _| stdout.contains("\nReady.").then_some(()));
    let facts = Facts::read(home.path());
    assert_eq!((facts.all("MEMCACHED").len(), facts.all("ROUTERS").len()), (2, 2));
    spends_once(&facts).await;
    fleet.terminate().assert_stopped();
}

/// One token, good at one gateway, is spent at the other.
async fn spends_once(facts: &Facts) {
    let gateways = facts.all("GATEWAYS");
    let token = tokens::mint(facts.one("ISSUER"), gateways[0], 1).remove(0);
    let echo = target::echo().await.to_string();
    let mut stream = proxy::dial(address(gateways[0])).await.unwrap();
    let head = proxy::connect(&mut stream, &echo, Some(&token)).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    proxy::echoes(&mut stream, b"through gateway A").await.unwrap();
    let mut other = proxy::dial(address(gateways[1])).await.unwrap();
    let replay = proxy::connect(&mut other, &echo, Some(&token)).await.unwrap();
    assert!(replay.says_spent(), "{replay:?}"); // and the drain waits for open tunnels, which end here
}

#[test]
fn a_fleet_that_cannot_start_reports_why_and_leaves_nothing_behind() {
    let home = TempDir::new().unwrap();
    let ended = Postern::start(script(home.path(), Some("/bin/false"))).ended();
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.stderr.contains("issuer ended with exit code 1"), "{ended:#?}");
    assert!(!home.path().join("fleet.env").exists());
    let listened: Vec<SocketAddr> = ended
        .stdout
        .split_whitespace()
        .filter_map(|word| word.trim_start_matches("http://").parse().ok())
        .collect();
    assert!(listened.len() >= 6, "{ended:#?}");
    for address in listened {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} still listens: {ended:#?}");
    }
}

/// Without --binary the script runs cargo's build, whatever CARGO_TARGET_DIR is.
#[test]
fn the_binary_is_looked_for_where_cargo_builds() {
    let home = TempDir::new().unwrap();
    let built = home.path().join("built");
    let mut command = script(home.path(), None);
    command.env("CARGO_TARGET_DIR", &built);
    let ended = Postern::start(command).ended();
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    let binary = built.join("release/postern");
    assert!(ended.stderr.contains(&format!("{} is no program", binary.display())), "{ended:#?}");
}

#[test]
fn one_data_folder_has_one_fleet() {
    let home = TempDir::new().unwrap();
    let lock = std::fs::File::create(home.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let ended = Postern::start(script(home.path(), Some(env!("CARGO_BIN_EXE_postern")))).ended();
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.stderr.contains("another fleet runs in"), "{ended:#?}");
}
