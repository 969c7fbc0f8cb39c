//! From an issuer's account to a tunnel by one join string, and the error for each fault of a copy.

use crate::accounts::issuer;
use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::{Ended, Postern, command, run};
use crate::support::tls::Authority;
use crate::support::{proxy, target};
use postern_testkit::ports;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;

/// `postern client join - --config … --data …` with `text` on its standard input.
fn join(home: &Path, text: &str, more: &[&str]) -> Ended {
    let (config, data) = (home.join("client.toml"), home.join("agent"));
    let mut join = command(["client", "join", "-"]);
    join.arg("--config").arg(config).arg("--data").arg(data).args(more).stdin(Stdio::piped());
    let mut running = Postern::start(join);
    running.stdin().write_all(text.as_bytes()).unwrap();
    running.ended()
}

/// The join string in what `account add` has printed.
fn string_in(printed: &str) -> &str {
    printed.lines().find(|line| line.starts_with("postern-join-1.")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_string_is_all_that_an_agent_needs() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let own = issuer_config(home.path(), "");
    let issuer_runs = Daemon::ready("issuer", &own).await;
    let config = gateway_config(home.path(), &issuer_runs.http(), "", "1s", &authority.section());
    let gateway = Daemon::ready("gateway", &config).await;
    let of_file = format!(
        "[join]\nissuers = [{:?}]\ngateways = [{:?}]\norigin = \"proxy.example\"\ngateway_ca = {:?}\n",
        issuer_runs.http(),
        format!("https://localhost:{}", gateway.address.port()),
        authority.ca
    );
    let file = std::fs::read_to_string(&own).unwrap();
    std::fs::write(&own, file + &of_file).unwrap();

    let added = issuer(&own, &["account", "add", "alice", "--quota", "1000/1d", "--join"]);
    added.assert_stopped();
    let key = added.stdout.lines().find_map(|line| line.strip_prefix("API key: ")).unwrap().to_owned();
    assert!(added.stdout.contains("it is a secret, too"), "{}", added.stdout);

    // All that was printed may be piped on.
    let _taken = TcpListener::bind("127.0.0.1:8118");
    let joined = join(home.path(), &added.stdout, &["--check"]);
    joined.assert_stopped();
    assert!(joined.stdout.contains("\n127.0.0.1:8118 is taken here"), "{joined:?}");
    assert!(
        joined.stdout.contains("It works") && joined.stdout.contains("postern client --config"),
        "{joined:?}"
    );
    let written = home.path().join("client.toml");
    assert!(!std::fs::read_to_string(&written).unwrap().contains(&key), "the API key has its own file");
    for path in [&written, &home.path().join("agent/api-key")] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    doctor(&written).assert_can_start();
    let text = std::fs::read_to_string(&written).unwrap();
    assert!(!text.contains("127.0.0.1:8118"), "{text}");
    let [address, admin] = ["address = ", "admin = "]
        .map(|key| text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key}")));
    let free = text.replace(address, "address = \"127.0.0.1:0\"").replace(admin, "admin = \"127.0.0.1:0\"");
    std::fs::write(&written, free).unwrap();
    let agent = Daemon::ready("client", &written).await;
    let echo = target::echo().await;
    let mut stream = proxy::dial(agent.address).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"joined").await.unwrap();

    // The string is a secret, and so is what is written.
    let elsewhere = home.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o777)).unwrap();
    let string = string_in(&added.stdout);
    let on_command_line = |folder: &Path| {
        let mut join = command(["client", "join", string]);
        join.arg("--config").arg(folder.join("a.toml")).arg("--data").arg(folder.join("a"));
        Postern::start(join).ended()
    };
    on_command_line(&elsewhere).assert_failed(2, &["every user of this machine may write", "chmod 700"]);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o700)).unwrap();
    let joined_so = on_command_line(&elsewhere);
    joined_so.assert_stopped();
    assert!(joined_so.stderr.contains("other users of this machine can read it"), "{joined_so:?}");

    // Existing files stay, unless --force is given.
    join(home.path(), &added.stdout, &[]).assert_failed(2, &["client.toml is there already", "--force"]);
    join(home.path(), &added.stdout, &["--force"]).assert_stopped();
    let replaced = std::fs::read_to_string(&written).unwrap();
    assert!(replaced.contains("\naddress = \"127.0.0.1:0\"\n"), "its listeners stay: {replaced}");
    drop(stream);
    agent.process.terminate().assert_stopped();

    // Its key is not good any more.
    let added = issuer(&own, &["account", "add", "bob", "--quota", "9/1d", "--join"]);
    issuer(&own, &["account", "remove", "bob"]).assert_stopped();
    let later = home.path().join("later");
    std::fs::create_dir(&later).unwrap();
    let refused = join(&later, &added.stdout, &["--check"]);
    refused.assert_failed(70, &["401", "check the account's key"]);
}

#[test]
fn a_faulty_copy_is_refused_without_its_secret() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let add = |name: &str, more: &[&str]| {
        issuer(&config, &[&["account", "add", name, "--quota", "9/1d", "--join"], more].concat())
    };
    add("bob", &[])
        .assert_failed(2, &["a join string needs gateways", "--gateway URL", "No account was made"]);
    let gateway = ["--gateway", "https://proxy.example"];
    add("bob", &gateway).assert_failed(2, &["needs issuers", "--issuer URL"]);
    let wrong = ["--gateway", "proxy.example", "--issuer", "https://issuer.example"];
    add("bob", &wrong).assert_failed(2, &["gateways cannot be used", "No account was made"]);
    let both = [&gateway[..], &["--issuer", "https://issuer.example", "--json"]].concat();
    let added = add("bob", &both);
    added.assert_stopped();
    let line = added.stdout.lines().find(|line| line.contains("\"join\"")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = line["join"].as_str().unwrap();

    join(home.path(), &text[..text.len() - 3], &[]).assert_failed(2, &["its end is missing"]);
    // One character of it, which a replacement of a certain letter might not find.
    let (start, typed) = text.split_at(text.find('.').unwrap() + 1);
    let mistyped = format!("{start}{}{}", if typed.starts_with('a') { 'b' } else { 'a' }, &typed[1..]);
    join(home.path(), &mistyped, &[]).assert_failed(2, &["checksum does not match"]);
    join(home.path(), &text.replace("join-1", "join-9"), &[])
        .assert_failed(2, &["is of format 9", "update postern"]);
    join(home.path(), "nothing", &[]).assert_failed(2, &["there is no join string"]);
    assert!(!home.path().join("client.toml").exists(), "nothing is written for a faulty one");
    // An address, not a name: without a network the resolver may take its time.
    let nowhere = format!("http://{}", ports::closed());
    let added = add("carol", &["--gateway", &nowhere, "--issuer", &nowhere]);
    join(home.path(), &added.stdout, &["--check"]).assert_failed(70, &[&nowhere]);
    // As an argument it works as well.
    let (config, data) = (home.path().join("other.toml"), home.path().join("other"));
    let arguments =
        ["client", "join", text, "--config", config.to_str().unwrap(), "--data", data.to_str().unwrap()];
    run(arguments).assert_stopped();
    assert_eq!(string_in(text), text);
}
