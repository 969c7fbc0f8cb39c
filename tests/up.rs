//! `postern up` and the command line, as a person meets them.

use crate::support::admin::{self, Metrics, metrics_when};
use crate::support::process::{Postern, command, run};
use crate::support::tokens::present;
use crate::support::up::{Ports, Up, up};
use crate::support::{eventually, in_time, proxy, target, tokens};
use postern_token::{Directory, TokenKeyId, TokenType};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A disk that is full, or a reader of the log that went away: clients are answered all the same, also those whose
/// refusal would have been a line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_stops_no_request() {
    let home = TempDir::new().unwrap();
    let plain = up(&home.path().join("data"), Ports::any());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"]).arg(plain.get_program()).args(plain.get_args());
    command.env("RUST_LOG", "trace").stdout(Stdio::piped()).stderr(Stdio::piped());
    let system = Up::of(command);
    for _ in 0..10 {
        let mut stream = proxy::dial(system.ports.gateway).await.unwrap();
        let head = proxy::connect(&mut stream, "target.example:443", None).await.unwrap();
        assert_eq!(head.status, 407, "{head:?}");
    }
    system.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_keys_wallet_and_spent_records() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    let echo = target::echo().await.to_string();

    let ports = Ports::held();
    let first = Up::start_on(&data, ports);
    println!("first start: ready after {:?}", first.ready_after);
    let key = key_id(ports.issuer).await;
    let [spent] =
        &tokens::mint(&format!("http://{}", ports.issuer), &format!("http://{}", ports.gateway), 1)[..]
    else {
        panic!("one token was requested")
    };
    assert_eq!(present(ports.gateway, &echo, spent).await.status, 200);
    assert!(present(ports.gateway, &echo, spent).await.says_spent());
    metrics_when(ports.admin, "the wallet is full", |metrics| metrics.wallet() == 128).await;
    opens_and_ends_a_tunnel(ports, &echo).await;
    let ended = first.terminate();
    ended.assert_stopped();
    assert!(ended.stdout.starts_with("Postern is ready."), "{ended:#?}");
    assert!(
        ended.stdout.contains(&format!("curl -x http://{} https://example.com/", ports.client)),
        "{ended:#?}"
    );
    assert_eq!(ended.stderr, "", "`up` is quiet");
    assert_private(&data);

    let again = Up::start_on(&data, ports);
    println!("second start: ready after {:?}", again.ready_after);
    assert_eq!(key_id(ports.issuer).await, key);
    let head = present(ports.gateway, &echo, spent).await;
    assert!(head.says_spent(), "{head:?}");
    let metrics = Metrics::of(ports.admin).await;
    assert_eq!(
        (metrics.wallet(), metrics.issued()),
        (127, 0),
        "the wallet is the old one, nothing was minted"
    );
    opens_and_ends_a_tunnel(ports, &echo).await;
    let ended = again.terminate();
    ended.assert_stopped();
    assert_eq!(ended.stderr, "", "`up` is quiet");
}

/// Opens a tunnel through the agent, and returns when agent and gateway have ended it: a drain reports a tunnel that it finds.
async fn opens_and_ends_a_tunnel(ports: Ports, target: &str) {
    let mut stream = proxy::dial(ports.client).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, target, None).await.unwrap().status, 200);
    in_time(stream.shutdown()).await.unwrap();
    assert_eq!(in_time(stream.read_to_end(&mut Vec::new())).await.unwrap(), 0);
    metrics_when(ports.admin, "no tunnel is open", |metrics| metrics.value("postern_tunnels_open") == 0)
        .await;
}

async fn key_id(issuer: SocketAddr) -> TokenKeyId {
    let directory = admin::page(issuer, "/.well-known/private-token-issuer-directory").await;
    let directory = Directory::parse(directory.as_bytes()).unwrap();
    let [key] = &directory.keys_for(TokenType::BlindRsa2048).collect::<Vec<_>>()[..] else {
        panic!("one key is expected: {directory:?}")
    };
    TokenKeyId::of(&key.key_bytes().unwrap())
}

/// Only the owner may read the data.
fn assert_private(path: &Path) {
    let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            assert_private(&entry.unwrap().path());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_one_data_directory_are_refused_in_a_sentence() {
    let home = TempDir::new().unwrap();
    let first = Up::start(home.path());
    let second = Postern::start(up(home.path(), Ports::any())).ended();
    second.assert_failed(70, &[&home.path().display().to_string(), "another"]);
    assert_eq!(second.stderr.lines().count(), 1, "{second:#?}");
    first.terminate().assert_stopped();
}

/// All of them at once, each with its option; and what a failed start has made is gone.
#[test]
fn ports_in_use_are_named_with_their_options() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    let held = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [client, gateway, issuer, admin] = held.each_ref().map(|taken| taken.local_addr().unwrap());
    let ended = Postern::start(up(&data, Ports { client, gateway, issuer, admin })).ended();
    let taken = format!(
        "--client {client}, --gateway {gateway}, --issuer {issuer}, --admin {admin}: another program"
    );
    ended.assert_failed(70, &[&taken, "choose another port", "leave the option out"]);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    let one = Postern::start(up(&data, Ports { issuer, ..Ports::any() })).ended();
    one.assert_failed(70, &[&format!("--issuer {issuer}: another program")]);
    assert!(!data.exists(), "a start that failed leaves a folder");
}

/// 8080 and 9090 have something else on many machines.
#[test]
fn without_options_free_ports_are_used() {
    let home = TempDir::new().unwrap();
    // The doctor of other tests looks at 9091 and 9092, too: there it would find this program before it is ready.
    let _taken = [8118, 8080, 8081, 9090, 9091, 9092].map(|port| TcpListener::bind(("127.0.0.1", port)));
    let mut command = command(["up", "--data"]);
    command.arg(home.path());
    let system = Up::of(command);
    let Ports { client, gateway, issuer, admin } = system.ports;
    for (usual, used) in [(8118, client), (8080, gateway), (8081, issuer), (9090, admin)] {
        assert_ne!(used.port(), usual);
        let said = format!(
            "127.0.0.1:{usual} is taken here, or a port that must follow it, so {used} is used in its place."
        );
        assert!(system.process.written().0.contains(&said), "{:?}", system.process.written());
    }
    system.terminate().assert_stopped();
}

/// A daemon that a newcomer mistakes for the gateway names itself, and no token is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_no_gateway_says_what_it_is() {
    let home = TempDir::new().unwrap();
    let mut command = up(home.path(), Ports::any());
    command.args(["--open-egress", "--two-hops", "--first-hop", "127.0.0.1:0"]);
    let system = Up::of(command);
    let first_hop = system.process.wait_for_address("    first    ");
    let Ports { client, gateway, issuer, admin } = system.ports;
    metrics_when(admin, "the wallet is full", |metrics| metrics.wallet() == 128).await;
    let tls = "This port speaks TLS: use https://";
    for (scheme, address, said) in [
        ("http", client, "this is an agent, which pays with tokens of its own: give the gateway's address"),
        ("http", issuer, "this is an issuer of tokens, and no proxy"),
        ("http", admin, "This is an admin listener of Postern, no proxy"),
        ("http", gateway, tls),
        ("https", first_hop, "the server does not speak TLS; write http://"),
        ("https", client, "the server does not speak TLS; write http://"),
    ] {
        let url = format!("{scheme}://{address}");
        let ended = run(["token", "mint", "--issuer", &format!("http://{issuer}"), "--gateway", &url]);
        ended.assert_failed(70, &[&url, said]);
    }
    run(["token", "mint", "--issuer", &format!("http://{gateway}")]).assert_failed(70, &["use https://"]);

    // A client that presents a token to the agent means a gateway as well.
    let [token] = &tokens::mint(&format!("http://{issuer}"), &format!("http://{first_hop}"), 1)[..] else {
        panic!("one token was requested")
    };
    let echo = target::echo().await.to_string();
    let head = present(client, &echo, token).await;
    assert_eq!(head.status, 400, "{head:?}");
    assert!(head.value("proxy-status").unwrap().contains("this is an agent"), "{head:?}");
    assert_eq!(Metrics::of(admin).await.wallet(), 128);
    system.terminate().assert_stopped();
}

/// A system, and a tunnel through its agent that has carried bytes.
async fn with_a_tunnel(home: &TempDir) -> (Up, tokio::io::BufReader<tokio::net::TcpStream>) {
    let system = Up::start(home.path());
    let echo = target::echo().await.to_string();
    let mut stream = proxy::dial(system.ports.client).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, &echo, None).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"before").await.unwrap();
    (system, stream)
}

async fn draining(system: &Up) {
    eventually("the drain has begun", || async {
        let (status, body) = admin::get(system.ports.admin, "/readyz").await?;
        (status == 503 && body.starts_with("draining")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_an_open_tunnel_finish() {
    let home = TempDir::new().unwrap();
    let (system, mut stream) = with_a_tunnel(&home).await;
    system.process.signal("TERM");
    draining(&system).await;
    for _ in 0..10 {
        proxy::echoes(&mut stream, b"while it drains").await.unwrap();
    }
    eventually("new connections are refused", || async {
        proxy::dial(system.ports.client).await.err().map(drop)
    })
    .await;
    drop(stream);
    let asked = Instant::now();
    system.process.ended().assert_stopped();
    println!("ended {:?} after its last tunnel", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_at_once() {
    for signals in [["TERM", "TERM"], ["INT", "INT"], ["INT", "TERM"]] {
        let home = TempDir::new().unwrap();
        let (system, mut stream) = with_a_tunnel(&home).await;
        system.process.signal(signals[0]);
        draining(&system).await;
        proxy::echoes(&mut stream, b"still open").await.unwrap();
        let asked = Instant::now();
        system.process.signal(signals[1]);
        let ended = system.process.ended();
        println!("{signals:?}: ended after {:?}", asked.elapsed());
        ended.assert_stopped();
        // The drain's deadline is 10 s: a process that waited for it was not stopped at once.
        assert!(asked.elapsed().as_secs() < 8);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await; // reset or closed, but over
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_written_when_they_are_requested() {
    let home = TempDir::new().unwrap();
    let mut command = up(home.path(), Ports::any());
    command.env("RUST_LOG", "postern=info");
    let ended = Up::of(command).terminate();
    ended.assert_stopped();
    assert!(ended.stderr.contains(" INFO postern"), "{ended:#?}");

    let mut command = up(home.path(), Ports::any());
    command.env("RUST_LOG", "postern=loud");
    Postern::start(command).ended().assert_failed(64, &["RUST_LOG = \"postern=loud\" is not a log filter"]);
}

/// The drain reports its wait immediately, with the deadline; without a tunnel it reports nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_with_an_open_tunnel_reports_what_it_waits_for_and_what_was_cut() {
    let home = TempDir::new().unwrap();
    let (system, mut stream) = with_a_tunnel(&home).await;
    system.process.signal("INT");
    let first = "stopping: waiting for 1 open tunnel to end, for 10 s at most; a second Ctrl-C or SIGTERM stops \
        at once";
    system.process.wait_for(first, |_, stderr| stderr.starts_with(first).then_some(()));
    system.process.wait_for("that it still waits", |_, stderr| {
        stderr.contains("\nstill waiting for 1 open tunnel, for ").then_some(())
    });
    proxy::echoes(&mut stream, b"still open").await.unwrap();
    let ended = system.process.ended();
    ended.assert_stopped();
    assert!(ended.stderr.ends_with("\nstopped: 1 open tunnel was cut off after 10 s\n"), "{ended:#?}");

    let (system, mut stream) = with_a_tunnel(&home).await;
    system.process.signal("TERM");
    draining(&system).await;
    proxy::echoes(&mut stream, b"still open").await.unwrap();
    drop(stream);
    let ended = system.process.ended();
    ended.assert_stopped();
    let said = ended.stderr.is_empty()
        || ended.stderr.ends_with("\nstopped: everything that was open has ended by itself\n");
    assert!(said, "{ended:#?}");
}

/// The advice is a switch of `up`: there is no configuration, and no other operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_target_leads_to_open_egress() {
    let home = TempDir::new().unwrap();
    let system = Up::of(up(home.path(), Ports::any()));
    for target in ["127.0.0.1:443", "target.example:22"] {
        let mut stream = proxy::dial(system.ports.client).await.unwrap();
        let response = proxy::get(&mut stream, target, None).await.unwrap();
        assert_eq!(response.status, 403, "{response:?}");
        assert!(response.body.contains("postern up --open-egress"), "{response:?}");
        assert!(!response.body.contains("perator"), "{response:?}");
    }
    system.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_this_machine_is_an_address() {
    let home = TempDir::new().unwrap();
    let mut command = command(["up", "--data"]);
    command.arg(home.path());
    for name in ["--client", "--gateway", "--issuer", "--admin"] {
        command.args([name, "localhost:0"]);
    }
    let system = Up::of(command);
    assert!(system.ports.client.ip().is_loopback() && system.ports.client.port() > 0, "{:?}", system.ports);
    system.terminate().assert_stopped();
    run(["up", "--client", "8119"]).assert_failed(2, &["it has no port", "localhost:8080"]);
    run(["up", "--admin", "nowhere.invalid:1"]).assert_failed(2, &["\"nowhere.invalid\" cannot be resolved"]);
}

#[test]
fn an_address_that_others_reach_needs_a_switch() {
    let home = TempDir::new().unwrap();
    let others = ([0, 0, 0, 0], 0).into();
    let open = Postern::start(up(home.path(), Ports { client: others, ..Ports::any() })).ended();
    open.assert_failed(2, &["--client 0.0.0.0:0: ", "spend your tokens", "--allow-remote"]);
    assert!(!open.stderr.contains("listen."), "no key of a configuration: {open:#?}");
    let issuer = Postern::start(up(home.path(), Ports { issuer: others, ..Ports::any() })).ended();
    issuer.assert_failed(2, &["--issuer 0.0.0.0:0: ", "no accounts", "postern issuer --config"]);

    let mut allowed = up(home.path(), Ports { client: others, ..Ports::any() });
    allowed.arg("--allow-remote");
    Up::of(allowed).terminate().assert_stopped();
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["up", "--colour"],
        &["up", "--client", "somewhere"],
        &["gateway"],
        &["token", "mint"],
        &["token", "mint", "--issuer", "http://127.0.0.1:1", "--count", "0"],
    ] {
        let ended = run(args);
        ended.assert_failed(2, &["--help"]);
    }
}

#[test]
fn a_wrong_configuration_exits_with_64_and_names_the_place() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("daemon.toml");
    let refused = |kind: &str, text: &str, sentence: &[&str]| {
        std::fs::write(&path, text).unwrap();
        run([kind.as_ref(), "--config".as_ref(), path.as_os_str()]).assert_failed(64, sentence);
    };
    let file = path.display().to_string();
    for kind in ["gateway", "issuer", "client"] {
        let nearest = "unknown key \"listen.adress\"; did you mean \"listen.address\"?";
        refused(kind, "[listen]\nadress = \"127.0.0.1:0\"\n", &[&format!("{file}, line 2: {nearest}")]);
        refused(kind, "[listen\n", &[&format!("{file}, line 1")]);
        let missing = home.path().join("nowhere.toml");
        let ended = run([kind.as_ref(), "--config".as_ref(), missing.as_os_str()]);
        ended.assert_failed(64, &[&format!("{}: cannot read the configuration", missing.display())]);
    }
    let open =
        "[listen]\naddress = \"0.0.0.0:0\"\nadmin = \"127.0.0.1:0\"\n[keys]\ndirectory = \"/nonexistent\"\n";
    refused("issuer", open, &["loopback", "0.0.0.0:0"]);
}

#[test]
fn every_command_explains_itself() {
    let commands: [&[&str]; 7] =
        [&[], &["up"], &["gateway"], &["issuer"], &["client"], &["token", "mint"], &["token", "inspect"]];
    for command in commands {
        let ended = run(command.iter().chain(&["--help"]));
        ended.assert_stopped();
        let (first, rest) = ended.stdout.split_once('\n').unwrap();
        assert!(first.len() > 20 && !first.starts_with("Usage"), "no description: {ended:#?}");
        assert!(rest.contains("Usage: postern"), "{ended:#?}");
        assert!(ended.stdout.lines().all(|line| line.chars().count() <= 110), "{ended:#?}");
        // Every option is explained on its line or below it.
        let lines: Vec<&str> = rest.lines().collect();
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("--"))
        {
            let on_line = line.trim_start().split("  ").skip(1).any(|text| !text.trim().is_empty());
            let below = lines.get(index + 1).is_some_and(|next| next.starts_with("          "));
            assert!(on_line || below, "{line:?} of {command:?} is not explained");
        }
    }
    assert!(run(["--version"]).stdout.starts_with("postern "));
}
