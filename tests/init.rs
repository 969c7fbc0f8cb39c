//! `postern init`: its files work with the commands that it prints, and `postern status` confirms it.

use crate::support::daemon::Daemon;
use crate::support::doctor::doctor;
use crate::support::memcached::Memcached;
use crate::support::process::{Ended, Postern, command, run};
use crate::support::{admin, eventually, root, target};
use postern_testkit::ports;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub fn init(directory: &Path, more: &[&str]) -> Ended {
    run([&["init".as_ref(), directory.as_os_str()][..], &more.iter().map(OsStr::new).collect::<Vec<_>>()]
        .concat())
}

/// Addresses for all listeners, since other tests run at the same time.
pub fn addresses(is_fleet: bool) -> Vec<String> {
    let mut options = vec!["--client", "--gateway", "--issuer"];
    options.extend(is_fleet.then_some("--second-gateway"));
    let free =
        options.into_iter().flat_map(|option| [option.to_owned(), format!("127.0.0.1:{}", ports::free())]);
    free.chain(["--admin".to_owned(), format!("127.0.0.1:{}", four_free())]).collect()
}

/// The first of four ports in a row, which no other test gets: see `ports::free`.
fn four_free() -> u16 {
    loop {
        let first = ports::free();
        let Some(rest) = (1..4)
            .map(|offset| UdpSocket::bind((Ipv4Addr::LOCALHOST, first + offset)).ok())
            .collect::<Option<Vec<_>>>()
        else {
            continue;
        };
        if (first..first + 4).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()) {
            std::mem::forget(rest);
            return first;
        }
    }
}

/// Every file below a folder by its path.
pub fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

fn assert_private(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        if path.is_dir() {
            assert_private(&path);
        }
    }
}

/// Starts the commands of the output, each when the one before is ready, and lets gateways reach this machine.
pub async fn start(said: &Ended) -> Vec<Daemon> {
    let mut daemons = Vec::new();
    let lines = said.stdout.lines().filter_map(|line| line.strip_prefix("    postern "));
    for line in lines.filter(|line| line.contains(" --config ") && !line.contains("account")) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut typed = command(&words);
        typed.envs([("POSTERN_EGRESS_PRIVATE", "true"), ("POSTERN_EGRESS_PORTS", "any")]);
        let daemon = Daemon::of(words[0], typed);
        eventually("it is ready", || async {
            admin::get(daemon.admin, "/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
        daemons.push(daemon);
    }
    daemons
}

fn status(home: &Path, more: &[&str]) -> Ended {
    let mut status = command(["status".as_ref(), home.as_os_str()]);
    status.args(more);
    Postern::start(status).ended()
}

async fn walk(is_fleet: bool) {
    let scratch = TempDir::new().unwrap();
    let home = scratch.path().join("new/folder");
    let count = if is_fleet { 3 } else { 1 };
    let memcacheds: Vec<Memcached> = (0..count).map(|_| Memcached::start()).collect();
    let mut options = addresses(is_fleet);
    options.extend(is_fleet.then(|| "--fleet".to_owned()));
    options.extend(memcacheds.iter().flat_map(|memcached| ["--memcached".to_owned(), memcached.address()]));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let said = init(&home, &options);
    said.assert_stopped();
    assert_eq!(said.stderr, "");
    assert!(said.stdout.contains("which runs and does not evict"), "{}", said.stdout);
    assert!(
        said.stdout.contains("development authority") && said.stdout.contains("[tls.acme]"),
        "{}",
        said.stdout
    );
    assert_private(&scratch.path().join("new"));

    let stopped = status(&home, &[]);
    assert_eq!(stopped.code, Some(3), "{stopped:?}");
    assert!(stopped.stdout.contains("start it: postern issuer --config "), "{stopped:?}");

    for path in contents(&home).keys().filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        doctor(path).assert_can_start();
    }

    let mut daemons = start(&said).await;
    assert_eq!(daemons.len(), if is_fleet { 4 } else { 3 });
    let ready = status(&home, &[]);
    ready.assert_stopped();
    assert_eq!(
        ready.stdout.matches(concat!(env!("CARGO_PKG_VERSION"), "      ready")).count(),
        daemons.len(),
        "{ready:?}"
    );
    let json = status(&home, &["--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    for daemon in json["daemons"].as_array().unwrap() {
        assert_eq!(
            (&daemon["state"], &daemon["reasons"]),
            (&"ready".into(), &Value::Array(Vec::new())),
            "{json}"
        );
    }

    let examined = doctor(&home);
    examined.assert_stopped();
    assert!(examined.stdout.lines().all(|line| !line.starts_with("bad")), "{examined:#?}");
    assert_eq!(examined.stdout.matches("fit to remember spent tokens").count(), if is_fleet { 6 } else { 0 });

    // As printed, but for the page.
    let curl = said.stdout.lines().find_map(|line| line.strip_prefix("    curl -x ")).unwrap();
    let agent = curl.strip_suffix(" https://example.com/").unwrap();
    let page = target::web(Ipv4Addr::LOCALHOST).await;
    let curl = Command::new("curl").args(["-sS", "-x", agent, &format!("http://{page}/")]).output().unwrap();
    assert!(curl.status.success(), "{curl:?}");
    assert_eq!(String::from_utf8_lossy(&curl.stdout), target::PAGE);
    // Two of three decide, and the third may be late.
    for memcached in &memcacheds[..memcacheds.len().min(2)] {
        assert!(records(memcached) >= 1, "a token was spent, and {} has no record", memcached.address());
    }

    // The issuer's own join strings lead to the same place.
    let config = home.join("issuer.toml");
    let add = ["issuer", "account", "add", "bob", "--quota", "9/1d", "--join", "--config"].map(OsStr::new);
    run([&add[..], &[config.as_os_str()]].concat()).assert_stopped();

    let gateway = daemons.remove(1);
    gateway.process.terminate().assert_stopped();
    let one_less = status(&home, &[]);
    assert_eq!(one_less.code, Some(1), "{one_less:?}");
    assert!(one_less.stdout.contains("not running"), "{one_less:?}");
    for daemon in daemons {
        daemon.process.terminate().assert_stopped();
    }
}

/// The written files bind tokens to the memory that records them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_deleted_admit_no_spent_token() {
    let home = TempDir::new().unwrap();
    let options = addresses(false);
    let said = init(home.path(), &options.iter().map(String::as_str).collect::<Vec<_>>());
    said.assert_stopped();
    if !said.stdout.contains("files of the gateway's own") {
        // Not with the memcached that runs here.
        let config = home.path().join("gateway.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("kind = \"memcached\"", "kind = \"embedded\"")).unwrap();
    }
    let mut daemons = start(&said).await;
    let url = |daemon: &Daemon| format!("https://{}", daemon.address);
    let (issuer, gateway) = (url(&daemons[0]), url(&daemons[1]));
    let (ca, key) = (home.path().join("tls/ca.pem"), home.path().join("state/agent/api-key"));
    let key = std::fs::read_to_string(key).unwrap();
    let minted =
        run(["token", "mint", "--issuer", &issuer, "--gateway", &gateway, "--api-key", key.trim(), "--ca"]
            .map(OsStr::new)
            .into_iter()
            .chain([ca.as_os_str()]));
    minted.assert_stopped();
    let page = target::web(Ipv4Addr::LOCALHOST).await;
    let present = || {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_connect}", "--proxytunnel", "-x", &gateway]);
        curl.arg("--proxy-cacert").arg(&ca);
        curl.args(["--proxy-header", &format!("Proxy-Authorization: {}", minted.stdout.trim())]);
        let curl = curl.arg(format!("http://{page}/")).output().unwrap();
        String::from_utf8(curl.stdout).unwrap()
    };
    assert_eq!([present(), present()], ["200", "407"]);

    daemons.remove(1).process.terminate().assert_stopped();
    std::fs::remove_dir_all(home.path().join("state/gateway/spent")).unwrap();
    let mut again =
        command(["gateway".as_ref(), "--config".as_ref(), home.path().join("gateway.toml").as_os_str()]);
    again.envs([("POSTERN_EGRESS_PRIVATE", "true"), ("POSTERN_EGRESS_PORTS", "any")]);
    let again = Daemon::of("gateway", again);
    again.until_ready("gateway").await;
    assert_eq!(present(), "407");
    again.process.terminate().assert_stopped();
}

/// The files of servers on separate machines: none of the examples' names is left, and each file starts its server.
#[test]
fn a_fleet_by_its_names_needs_no_edit() {
    let home = TempDir::new().unwrap();
    let names = ["--origin", "proxy.test", "--issuer-url", "https://issuer.test"];
    let memcacheds =
        ["--memcached", "m1.test:11211", "--memcached", "m2.test:11211", "--memcached", "m3.test:11211"];
    let options = |more: &[&'static str]| [&["--fleet"][..], &names, &memcacheds, more].concat();
    let (one, each) = (home.path().join("one"), home.path().join("each"));
    let said = init(&one, &options(&["--gateway-url", "https://proxy.test:8080"]));
    said.assert_stopped();
    assert!(said.stdout.contains("-m 64 holds 699000 records, those of 18800 tunnels a day"), "{said:?}");
    let gateways = ["--gateway-url", "https://g1.test", "--gateway-url", "https://g2.test", "--acme"];
    init(&each, &options(&gateways)).assert_stopped();
    assert_eq!(contents(&each).len(), 3);
    for (path, text) in contents(&one).into_iter().chain(contents(&each)) {
        let text = String::from_utf8(text).unwrap();
        let in_force = text.lines().filter(|line| !line.starts_with('#'));
        let left: Vec<&str> =
            in_force.filter(|line| line.contains(".example") || line.contains("10.0.0")).collect();
        assert!(left.is_empty(), "{}: {left:?}", path.display());
    }
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let config = |path: &Path| -> postern_gateway::Config {
        postern_config::parse("gateway.toml", &read(path), []).unwrap()
    };
    let (shared, second) = (config(&one.join("gateway.toml")), config(&each.join("gateway-2.toml")));
    assert_eq!(shared.listen.address.port(), 8080);
    assert_eq!(
        (shared.challenge.origin.as_str(), shared.challenge.issuer_name.as_str()),
        ("proxy.test", "issuer.test")
    );
    assert_eq!(second.listen.address.port(), 443);
    assert!(read(&each.join("gateway-2.toml")).contains("[tls.acme]\nnames = [\"g2.test\"]"));
    let exempt = |config: &postern_gateway::Config| {
        serde_json::to_value(&config.limits.source).unwrap()["exempt"].to_string()
    };
    assert!(!exempt(&shared).contains("10."), "clients may be in it: {}", exempt(&shared));

    init(&home.path().join("no"), &options(&["--gateway-url", "https://proxy.test", "--acme"]))
        .assert_failed(2, &["--acme: the authority looks for each name at one server"]);
    init(&home.path().join("no"), &options(&["--gateway-url", "proxy.test"]))
        .assert_failed(2, &["gateways cannot be used"]);
    assert!(!home.path().join("no").exists());
}

/// Returns the number of records a memcached was ever given.
fn records(memcached: &Memcached) -> u64 {
    let mut stream = TcpStream::connect(memcached.address()).unwrap();
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("STAT total_items ")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_works_by_the_printed_commands() {
    walk(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_works_by_the_printed_commands() {
    walk(true).await;
}

/// An operator keeps the written files as the reference that the examples are.
#[test]
fn what_is_written_is_the_example_with_other_values() {
    let home = TempDir::new().unwrap();
    let (one, fleet) = (home.path().join("one"), home.path().join("fleet"));
    init(&one, &["--memcached", "127.0.0.1:9"]).assert_stopped();
    init(&fleet, &["--fleet"]).assert_stopped();
    let deploy = root().join("deploy");
    for (written, example) in [
        (one.join("gateway.toml"), "examples/one-server/gateway.toml"),
        (one.join("issuer.toml"), "examples/one-server/issuer.toml"),
        (fleet.join("gateway-1.toml"), "examples/fleet/gateway.toml"),
        (fleet.join("gateway-2.toml"), "examples/fleet/gateway.toml"),
        (fleet.join("issuer.toml"), "examples/fleet/issuer.toml"),
        (fleet.join("prometheus.yml"), "examples/fleet/prometheus.yml"),
        (fleet.join("mcrouter-3.json"), "examples/fleet/mcrouter-3.json"),
        (fleet.join("rules/alerts.yml"), "prometheus/rules/alerts.yml"),
        (
            fleet.join("grafana/provisioning/dashboards/postern.yaml"),
            "grafana/provisioning/dashboards/postern.yaml",
        ),
        (
            fleet.join("grafana/provisioning/datasources/prometheus.yaml"),
            "grafana/provisioning/datasources/prometheus.yaml",
        ),
        (fleet.join("grafana/dashboards/issuer.json"), "grafana/dashboards/issuer.json"),
    ] {
        let example = std::fs::read_to_string(deploy.join(example)).unwrap();
        let text = std::fs::read_to_string(&written).unwrap();
        let own = text.find(example.lines().next().unwrap()).expect("the example's first line");
        assert_eq!(shape(&text[own..]), shape(&example), "{}", written.display());
    }
}

/// The lines without the values, and whether they are switched off.
fn shape(text: &str) -> Vec<String> {
    let shape = |line: &str| {
        if line.starts_with("# ") {
            return line.to_owned();
        }
        let line = line.trim_start_matches('#');
        let end = [" = ", "targets: ", "\"servers\": ", "  - /", "url: ", "path: "]
            .iter()
            .find_map(|mark| line.find(mark));
        end.map_or(line, |end| &line[..end]).to_owned()
    };
    text.lines().map(shape).collect()
}

#[test]
fn nothing_is_overwritten_and_a_failure_leaves_nothing() {
    let home = TempDir::new().unwrap();
    std::fs::write(home.path().join("issuer.toml"), "mine").unwrap();
    let refused = init(home.path(), &[]);
    refused
        .assert_failed(2, &["issuer.toml in ", "there already, and nothing was written", "postern init DIR"]);
    assert!(!refused.stderr.contains("gateway.toml"), "only what is there is named: {}", refused.stderr);
    assert_eq!(contents(home.path()).len(), 1);

    let whole = home.path().join("whole");
    init(&whole, &[]).assert_stopped();
    let before = contents(&whole);
    init(&whole, &[]).assert_failed(2, &["gateway.toml, issuer.toml, client.toml, tls, state in "]);
    init(&whole, &["--fleet"]).assert_failed(2, &["issuer.toml, client.toml, tls, state in "]);
    assert_eq!(contents(&whole), before);

    // It is found when the files are written, for the gateway is what refuses it.
    let failed = home.path().join("failed/deep");
    let ended = init(&failed, &["--memcached", "no address"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""), "{ended:?}");
    assert!(!home.path().join("failed").exists());
    init(&failed, &["--gateway", "192.0.2.1:8080"]).assert_failed(2, &["not a loopback address"]);
    init(&failed, &["--gateway", "127.0.0.1:8081", "--issuer", "127.0.0.1:8081"])
        .assert_failed(2, &["127.0.0.1:8081: each listener needs"]);
}

#[test]
fn a_folder_without_configurations_and_an_address_of_something_else() {
    let home = TempDir::new().unwrap();
    init(home.path(), &["--admin", &format!("127.0.0.1:{}", four_free())]).assert_stopped();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in other.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        }
    });
    let config = home.path().join("gateway.toml");
    let mut asked = command(["status".as_ref(), "--config".as_ref(), config.as_os_str()]);
    asked.env("POSTERN_LISTEN_ADMIN", address.to_string());
    let ended = Postern::start(asked).ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("no admin listener of Postern is there"), "{ended:?}");
}
