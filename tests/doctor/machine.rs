//! `postern doctor`: this machine, and what its configurations need.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config, with_memcacheds};
use crate::support::doctor::{Findings, name_server};
use crate::support::memcached::{Memcached, listening, spawn};
use crate::support::postgres::{Postgres, issuer_in};
use crate::support::process::{Ended, Postern, command, run};
use crate::support::tls::Authority;
use crate::support::{edit, root};
use postern_testkit::ports;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that an examination takes: its parts run side by side, and end after five seconds each.
const LONGEST: Duration = Duration::from_secs(20);

/// Bare `doctor` in `folder`.
fn bare(folder: &Path) -> Ended {
    let mut command = command(["doctor"]);
    command.current_dir(folder);
    Postern::start(command).ended()
}

#[test]
fn without_a_path_it_examines_this_machine_and_the_files_of_the_folder() {
    let home = TempDir::new().unwrap();
    let text = "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n";
    std::fs::write(home.path().join("gateway.toml"), text).unwrap();
    std::fs::write(home.path().join("postern-old.toml"), format!("{text}[nonsense]\n")).unwrap();
    std::fs::write(home.path().join("other.toml"), "[").unwrap();
    std::fs::create_dir(home.path().join("postern-data")).unwrap();
    let ended = bare(home.path());
    assert_eq!(ended.code, Some(64), "{ended:#?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let begins = |line: &&str| ["well  ", "look  ", "bad   ", "      "].contains(&&line[..6]);
    assert!(lines.iter().all(begins), "{ended:#?}");
    let has =
        |start: &str, part: &str| lines.iter().any(|line| line.starts_with(start) && line.contains(part));
    assert!(has("well  file        gateway.toml: a gateway can be started with it", ""), "{ended:#?}");
    assert!(has("bad   file        postern-old.toml: a gateway would not start", "nonsense"), "{ended:#?}");
    assert!(has("bad   issuer      gateway.toml: ", "http://127.0.0.1:1/ cannot be fetched"), "{ended:#?}");
    assert!(has("                  cost: a gateway that has no saved keys answers every request 503", ""));
    assert!(has("", " machine ") && has("", " kernel "), "{ended:#?}");
    assert!(!ended.stdout.contains("other.toml"), "{ended:#?}");
    assert!(ended.stderr.contains(" bad: each has its remedy above"), "{ended:#?}");
    let nothing = run(["doctor".as_ref(), home.path().join("postern-data").as_os_str()]);
    assert!(nothing.stdout.contains("postern-data has no configuration"), "{nothing:#?}");
}

/// Users who install the package for the agent or for `postern up` do not edit the examples.
#[test]
fn the_examples_of_the_package_are_no_fault_until_they_are_edited() {
    let home = TempDir::new().unwrap();
    let examples = root().join("deploy/examples/one-server");
    for name in ["gateway.toml", "issuer.toml"] {
        let file = home.path().join(name);
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        std::fs::write(&file, &text).unwrap();
        let installed = Findings::of(&file);
        installed.has("look", "file", "it is the example of the package");
        installed.has_nothing_bad();
        std::fs::write(&file, text + "# edited\n").unwrap();
        Findings::of(&file).has("bad", "file", "would not start");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_daemons_need_is_found_where_it_runs() {
    let home = TempDir::new().unwrap();
    // No other test gets the ports of these servers when they are down.
    let held = |file: &Path| {
        edit(file, "address = \"127.0.0.1:0\"", &format!("address = \"127.0.0.1:{}\"", ports::free()));
    };
    let issuer = issuer_config(home.path(), "");
    held(&issuer);
    let issuer = Daemon::ready("issuer", &issuer).await;
    let memcached = Memcached::start();
    let gateway = gateway_config(
        home.path(),
        &issuer.http(),
        "",
        "1s",
        "[limits]\nconnections = 100\nshared_secret = \"0123456789abcdef-secret\"\n",
    );
    held(&gateway);
    with_memcacheds(&gateway, &[memcached.address()]);
    let found = Findings::of(&gateway);
    found.has_nothing_bad();
    found.has("well", "file", "a gateway can be started with it");
    found.has("well", "descriptors", "limits.connections = 100 needs ");
    found.has("well", "issuer", "with 1 token key");
    found.has("well", "store", "memcached 1.");
    found.has("well", "store", "it evicts nothing");

    let gateway = Daemon::ready("gateway", &gateway).await;
    let agent = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let text = std::fs::read_to_string(&agent)
        .unwrap()
        .replace("[issuer]\n", "[issuer]\napi_key = \"the-agents-key\"\n");
    std::fs::write(&agent, text).unwrap();
    std::fs::set_permissions(&agent, PermissionsExt::from_mode(0o600)).unwrap();
    let found = Findings::of(&agent);
    found.has_nothing_bad();
    found.has("well", "gateway", "answers with a challenge in ");
    found.has("well", "issuer", "token keys: 1");
    found.has("well", "disk", "of free space");
    let all = run(["doctor".as_ref(), home.path().as_os_str()]);
    for secret in ["0123456789abcdef-secret", "the-agents-key"] {
        assert!(!(all.stdout.clone() + &all.stderr).contains(secret), "{all:#?}");
    }

    // The agent's servers are down.
    let served = gateway.http();
    gateway.process.terminate().assert_stopped();
    issuer.process.terminate().assert_stopped();
    let found = Findings::of(&agent);
    found.has("bad", "gateway", &format!("the gateway {served} cannot be reached"));
    found.has("bad", "gateway", "no tunnel opens");
    found.has("bad", "issuer", "no tokens are minted");
}

/// The second hop's operator must not learn who asks.
#[test]
fn a_gateway_behind_a_first_hop_is_not_contacted() {
    let (home, second) = (TempDir::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    second.set_nonblocking(true).unwrap();
    let path = home.path().join("client.toml");
    let url = format!("https://{}", second.local_addr().unwrap());
    let text = format!(
        "[gateway]\nurl = \"{url}\"\n[issuer]\nurl = \"http://127.0.0.1:9\"\n[wallet]\npath = {:?}\n\
         [first_hop]\ngateway.url = \"http://127.0.0.1:9\"\nissuer.url = \"http://127.0.0.1:9\"\nwallet.path = {:?}\n",
        home.path().join("wallet"),
        home.path().join("first-wallet")
    );
    std::fs::write(&path, text).unwrap();
    let found = Findings::of(&path);
    found.has("well", "gateway", &format!("{url} is reached through the first hop only, and was not tried"));
    found.has("bad", "gateway", "http://127.0.0.1:9 cannot be reached");
    assert_eq!(second.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn each_fault_of_a_memcached_has_its_cost_and_remedy() {
    let home = TempDir::new().unwrap();
    let gateway = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", "");
    let (absent, ahead, frozen, port) =
        (Memcached::absent(), Memcached::with_clock("+150m"), Memcached::start(), ports::free());
    let mut command = Command::new("memcached");
    command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-u", "root"]);
    let mut evicting = listening(spawn(command, "memcached"), port, "memcached");
    let (passwords, locked_port) = (home.path().join("passwords"), ports::free());
    std::fs::write(&passwords, "user:password\n").unwrap();
    let mut command = Command::new("memcached");
    command
        .args(["-l", "127.0.0.1", "-p", &locked_port.to_string(), "-M", "-u", "root", "-Y"])
        .arg(passwords);
    let mut locked = listening(spawn(command, "memcached"), locked_port, "memcached");
    frozen.freeze();
    let at = |port| format!("127.0.0.1:{port}");
    let addresses = [absent.address(), ahead.address(), frozen.address(), at(port), at(locked_port)];
    with_memcacheds(&gateway, &addresses);
    let began = Instant::now();
    let found = Findings::of(&gateway);
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    frozen.thaw();
    for server in [&mut evicting, &mut locked] {
        server.kill().unwrap();
        server.wait().unwrap();
    }
    let [absent, ahead, frozen, evicting, locked] = addresses;
    found.has("bad", "store", &format!("{locked}: the double-spend store gave an answer that is not understood: it has to be memcached without a password (-Y)"));
    found.has("bad", "store", &format!("{absent}: "));
    found.has("bad", "store", "Check that the store's servers run");
    found.has("bad", "clock", &format!("the clock of {ahead} is 2 h ahead of this machine's"));
    found.has("bad", "store", &frozen);
    found.has("bad", "store", &format!("{evicting} drops records when it is full | no mark is planted there: of three replicas it has no vote, and alone no token can be admitted | start memcached with -M"));
}

/// A name server that takes questions and answers none, and one that answers.
#[test]
fn each_name_server_is_asked_and_one_that_hangs_is_named() {
    let home = TempDir::new().unwrap();
    let hangs = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (hanging, answering) = (hangs.local_addr().unwrap(), name_server());
    let resolver = format!("[egress.resolver]\nkind = \"udp\"\nservers = [\"{hanging}\", \"{answering}\"]\n");
    let gateway = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", &resolver);
    let began = Instant::now();
    let found = Findings::of(&gateway);
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    found.has("bad", "names", &format!("the name server {hanging} "));
    found.has("bad", "names", "remove this one");
    found.has("well", "names", &format!("the name server {answering} answers in "));
    drop(hangs);
}

#[test]
fn a_name_that_is_not_resolved_and_a_next_hop_that_is_away_are_named() {
    let home = TempDir::new().unwrap();
    let hop = "[[egress.next_hops]]\nname = \"exit\"\nurls = [\"http://127.0.0.1:9\"]\n";
    let found = Findings::of(&gateway_config(home.path(), "http://issuer.invalid", "", "1s", hop));
    found.has("bad", "names", "issuer.invalid is not resolved: ");
    found.has("bad", "next hop", "the next hop \"exit\" cannot be used at http://127.0.0.1:9: not reached");
    found.has("bad", "issuer", "cannot be fetched");
}

/// An issuer's certificate that ends soon is seen by who depends on it, as one that has ended is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_this_side_and_of_the_other_are_judged_alike() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    authority.renew(200);
    let issuer_file = issuer_config(home.path(), &authority.section());
    let issuer = Daemon::ready("issuer", &issuer_file).await;
    let ca = format!("ca = {:?}", authority.ca);
    let gateway = gateway_config(home.path(), &issuer.https(), &ca, "1s", "");
    let found = Findings::of(&gateway);
    found.has_nothing_bad();
    found.has(
        "well",
        "certificate",
        &format!("the certificate of the server at {} ends at ", issuer.address),
    );
    Findings::of(&issuer_file).has("well", "certificate", "server.pem ends at ");
    issuer.process.terminate().assert_stopped();

    authority.renew(3);
    let issuer = Daemon::ready("issuer", &issuer_file).await;
    let gateway = gateway_config(home.path(), &issuer.https(), &ca, "1s", "");
    let found = Findings::of(&gateway);
    found.has_nothing_bad();
    found.has("look", "certificate", "and clients will refuse it then");
    found.has("look", "certificate", "Its operator has to renew it");
    Findings::of(&issuer_file).has("look", "certificate", "server.pem ends at ");
}

#[test]
fn a_database_that_is_away_is_named_and_one_that_is_there_too() {
    let (mut server, home) = (Postgres::start(&[]), TempDir::new().unwrap());
    let config = issuer_in(&server, home.path(), "issuer", "");
    let found = Findings::of(&config);
    found.has_nothing_bad();
    found.has("well", "database", "(accounts.database) answers");
    server.kill();
    Findings::of(&config).has(
        "bad",
        "database",
        "cannot be used: error connecting to server: Connection refused",
    );
}

#[test]
fn too_few_open_files_and_a_port_that_is_taken_are_named() {
    let (home, taken) = (TempDir::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let gateway = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", "");
    let text = std::fs::read_to_string(&gateway).unwrap();
    let address = format!("address = \"{}\"", taken.local_addr().unwrap());
    std::fs::write(&gateway, text.replacen("address = \"127.0.0.1:0\"", &address, 1)).unwrap();
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 256 && exec \"$0\" doctor --json \"$1\"", env!("CARGO_BIN_EXE_postern")])
        .arg(&gateway);
    limited.stdout(Stdio::piped()).stderr(Stdio::piped());
    let found = Findings::read(&Postern::start(limited).ended(), &gateway);
    found.has("look", "descriptors", "open files, and a process may have 256 here | started here, it takes ");
    found.has("look", "process", "(listen.address) cannot be listened at: ");
    found.has("look", "process", "stop what listens there (ss -ltnp)");
}

/// Of another version, which no program here is.
#[test]
fn a_process_of_another_version_is_named() {
    let (home, admin) = (TempDir::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let gateway = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", "");
    let text = std::fs::read_to_string(&gateway).unwrap();
    let at = admin.local_addr().unwrap();
    std::fs::write(&gateway, text.replace("admin = \"127.0.0.1:0\"", &format!("admin = \"{at}\""))).unwrap();
    std::thread::spawn(move || {
        for mut stream in admin.incoming().flatten() {
            let mut asked = [0; 1024];
            let length = stream.read(&mut asked).unwrap_or(0);
            let body = match String::from_utf8_lossy(&asked[..length]).split(' ').nth(1) {
                Some("/metrics") => "postern_build_info{version=\"0.0.1\"} 1\n",
                Some("/live.json") => "{\"sections\": []}",
                _ => "ready\n",
            };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let ended = run(["doctor".as_ref(), gateway.as_os_str()]);
    let seen = format!("http://{at} runs version 0.0.1, and this program is version ");
    assert!(ended.stdout.contains(&seen) && ended.stdout.contains("do:   restart it"), "{ended:#?}");
}
