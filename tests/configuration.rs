//! SIGHUP makes a daemon read its configuration again: what changes at once does, what does not is named, and a file
//! that cannot be used changes nothing.

use crate::support::accounts::mint;
use crate::support::daemon::{Daemon, apply, client_config, declared, gateway_config, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::{Postern, command};
use crate::support::tls::Authority;
use crate::support::{admin, eventually, root};
use std::path::Path;
use tempfile::TempDir;

const KEYS: [&str; 2] = ["the-first-key-4e1f7a", "the-second-key-9c02d1"];

/// Adds a section that no daemon knows.
fn spoil(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, format!("{text}[nonsense]\nkey = 1\n")).unwrap();
}

async fn readyz(daemon: &Daemon) -> String {
    admin::get(daemon.admin, "/readyz").await.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_come_and_go_without_a_restart_and_their_accounts_keep_their_counts() {
    let home = TempDir::new().unwrap();
    let write = |more: &str| issuer_config(home.path(), more);
    let tier = |name: &str, quota: u32| format!("[[tiers]]\nname = \"{name}\"\nquota = \"{quota}/3650d\"\n");
    let of_tier =
        |tier: &str, key: &str| declared(tier, key, "").replace("quota = \"\"", &format!("tier = {tier:?}"));
    let config = write(&tier("first", 2));
    apply(&config, &of_tier("first", KEYS[0])).assert_stopped();
    let issuer = Daemon::ready("issuer", &config).await;
    mint(&issuer, KEYS[0]).assert_stopped();

    write(&(tier("first", 2) + &tier("second", 5)));
    let said = issuer.reread("is in force from now on");
    assert!(said.contains("tiers: added \"second\""), "{said}");
    apply(&config, &(of_tier("first", KEYS[0]) + &of_tier("second", KEYS[1]))).assert_stopped();
    mint(&issuer, KEYS[1]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_failed(70, &["quota"]);

    // A second reading of the same file, and then another quota: three of three are two that were used, and one more.
    issuer.reread("no setting has changed, and the files that it names are read again");
    write(&tier("first", 3));
    let said = issuer.reread("removed \"second\"");
    assert!(said.contains("changed \"first\" (quota)"), "{said}");
    mint(&issuer, KEYS[0]).assert_stopped();
    mint(&issuer, KEYS[0]).assert_failed(70, &["quota"]);
    mint(&issuer, KEYS[1]).assert_failed(70, &["403"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_file_is_refused_whole_and_seen_at_readyz_until_it_is_mended() {
    let home = TempDir::new().unwrap();
    let good = "[[tiers]]\nname = \"first\"\nquota = \"100/1d\"\n";
    let config = issuer_config(home.path(), good);
    apply(&config, &declared("one", KEYS[0], "100/1d")).assert_stopped();
    let issuer = Daemon::ready("issuer", &config).await;

    issuer_config(home.path(), &format!("{good}{good}[drain]\ndeadline = \"3s\"\n"));
    let said = issuer.reread("cannot be used, and what was read before stays in force");
    assert!(said.contains("[[tiers]] \"first\" is there twice"), "{said}");
    let ready = readyz(&issuer).await;
    assert!(ready.starts_with("ready\n"), "{ready}");
    assert!(
        ready.contains("degraded: configuration: the configuration file cannot be used since 2"),
        "{ready}"
    );
    mint(&issuer, KEYS[0]).assert_stopped();

    issuer_config(home.path(), &format!("{good}[drain]\ndeadline = \"3s\"\n"));
    let said = issuer.reread("is in force from now on");
    assert!(said.contains("drain.deadline = \"3s\" (was \"10s\")"), "{said}");
    assert_eq!(readyz(&issuer).await, "ready\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_and_agent_read_their_files_again_too() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway_file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &gateway_file).await;
    let agent_file = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let agent = Daemon::ready("client", &agent_file).await;
    for (daemon, file) in [(&gateway, &gateway_file), (&agent, &agent_file)] {
        daemon.reread("no setting has changed, and the files that it names are read again");
        spoil(file);
        let said = daemon.reread("cannot be used, and what was read before stays in force");
        assert!(said.contains("unknown key \"nonsense\""), "{said}");
        daemon.readyz(200, &["degraded: configuration: "]).await;
    }
}

/// The error of a start with this file; `doctor` must give the same, with the same exit code.
fn refused_alike(kind: &str, path: &Path, parts: &[&str]) {
    let mut start = command([kind.as_ref(), "--config".as_ref(), path.as_os_str()]);
    start.env("POSTERN_LISTEN_ADMIN", "127.0.0.1:0"); // a system of this machine may have the default
    let started = Postern::start(start).ended();
    let sentence = started.stderr.lines().rfind(|line| line.starts_with("postern: ")).unwrap_or_default();
    let sentence = sentence.strip_prefix("postern: ").unwrap_or_default();
    for part in parts {
        assert!(sentence.contains(part), "{part:?}: {started:#?}");
    }
    let checked = doctor(path);
    assert_eq!(checked.code, started.code, "{started:#?} {checked:#?}");
    let sentence = sentence.trim_end().replace('\n', "; ");
    assert!(checked.stdout.contains(&sentence), "{started:#?} {checked:#?}");
}

const CHALLENGE: &str = "[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n";
const DIRECTORY: &str = "[issuer]\ndirectory = \"http://127.0.0.1:9/\"\n";

#[test]
fn doctor_refuses_what_a_gateway_refuses_with_its_code_and_sentence() {
    let home = TempDir::new().unwrap();
    let others = home.path().join("others");
    std::fs::create_dir(&others).unwrap();
    let Authority { certificate, key, .. } = Authority::new(home.path());
    let other_key = Authority::new(&others).key;
    let tls = |certificate: &Path, key: &Path| {
        format!("{DIRECTORY}{CHALLENGE}[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n")
    };
    let memcached = |addresses: &str| {
        format!(
            "{DIRECTORY}{CHALLENGE}[store]\nkind = \"memcached\"\n[store.memcached]\naddresses = {addresses}\n"
        )
    };
    let path = home.path().join("file.toml");
    let missing = home.path().join("nowhere.pem");
    for (text, parts) in [
        (format!("[issuer]\n{CHALLENGE}"), &["exactly one of directory"][..]),
        (memcached("[]"), &["store.memcached.addresses", "needs at least one"]),
        (memcached("[\"127.0.0.1\"]"), &["store.memcached.addresses"]),
        (tls(&missing, &key), &["tls: cannot read", "nowhere.pem"]),
        (tls(&certificate, &other_key), &["tls: the certificate in", "cannot be used together"]),
        (tls(&certificate, &certificate), &["tls: there is no private key in"]),
        (format!("{DIRECTORY}{CHALLENGE}[limits]\nheader_size = \"1KiB\"\n"), &["limits.header_size"]),
        (format!("{DIRECTORY}{CHALLENGE}[tracing]\nendpoint = \"here\"\n"), &["tracing.endpoint"]),
    ] {
        std::fs::write(&path, text).unwrap();
        refused_alike("gateway", &path, parts);
    }
    std::fs::write(&path, tls(&certificate, &key)).unwrap();
    doctor(&path).assert_can_start();
}

#[test]
fn doctor_reads_the_files_of_issuer_and_agent_too() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("file.toml");
    let keys = format!("[keys]\ndirectory = {:?}\n", home.path().join("keys"));
    let with = |account: &str| format!("{keys}{account}");
    for (text, parts) in [
        (with("[listen]\naddress = \"0.0.0.0:0\"\n"), &["would give tokens to everyone"][..]),
        (with("[tls]\ncertificate = \"nowhere.pem\"\nkey = \"nowhere.pem\"\n"), &["nowhere.pem"]),
    ] {
        std::fs::write(&path, text).unwrap();
        refused_alike("issuer", &path, parts);
    }
    assert!(!home.path().join("keys").exists(), "nothing is made");

    let wallet = format!("[wallet]\npath = {:?}\n", home.path().join("wallet"));
    for (text, parts) in [
        (format!("[gateway]\nurl = \"here\"\n{wallet}"), &["must be http://host:port"][..]),
        (
            format!("[gateway]\nurl = \"http://127.0.0.1:9\"\n{wallet}[issuer]\napi_key = \"k\"\n"),
            &["issuer.url"],
        ),
        (
            format!("[gateway]\nurl = \"https://127.0.0.1:9\"\nca = \"nowhere.pem\"\n{wallet}"),
            &["nowhere.pem"],
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        refused_alike("client", &path, parts);
    }
}

#[test]
fn doctor_recognises_the_kind_of_a_file_by_its_content() {
    let home = TempDir::new().unwrap();
    let examples = root().join("deploy/examples");
    let own = Authority::new(home.path());
    let path = home.path().join("unnamed.toml");
    let mut seen = 0;
    let folders = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders.filter(|folder| folder.is_dir()) {
        for (name, said) in [("gateway", "a gateway"), ("issuer", "an issuer"), ("client", "an agent")] {
            let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
            // As in the README: with one's own certificates and accounts.
            let line = |line: &str| match line.split_once(" = ") {
                Some(("directory", _)) if name == "issuer" => {
                    format!("directory = {:?}", home.path().join("keys"))
                }
                Some(("certificate", _)) => format!("certificate = {:?}", own.certificate),
                Some(("key", _)) => format!("key = {:?}", own.key),
                Some(("ca", _)) => format!("ca = {:?}", own.ca),
                _ => line.to_owned(),
            };
            let text: Vec<String> = text.lines().map(line).collect();
            std::fs::write(&path, text.join("\n")).unwrap();
            if name == "issuer" {
                apply(&path, &declared("one", "own-key-5b0e", "1/1d")).assert_stopped();
            }
            let checked = doctor(&path);
            assert!(
                checked.stdout.contains(&format!("unnamed.toml: {said} can be started with it")),
                "{checked:#?}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 9);
    let empty = home.path().join("empty.toml");
    std::fs::write(&empty, "").unwrap();
    doctor(&empty)
        .assert_would_not_start(64, &["empty.toml: it does not show for which daemon it is", "[wallet]"]);
    std::fs::write(&empty, "[").unwrap();
    doctor(&empty).assert_would_not_start(64, &["this is not TOML"]);
}

#[test]
fn a_slip_in_the_name_of_a_variable_stops_the_start_and_those_of_others_do_not() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let with = |variables: &[(&str, &str)]| {
        let mut issuer = command(["issuer".as_ref(), "--config".as_ref(), config.as_os_str()]);
        issuer.envs(variables.iter().copied());
        Postern::start(issuer)
    };
    let slip = with(&[("POSTERN_LISTEN_ADRESS", "127.0.0.1:0")]).ended();
    slip.assert_failed(64, &["POSTERN_LISTEN_ADRESS", "did you mean POSTERN_LISTEN_ADDRESS?"]);

    let issuer = with(&[
        ("POSTERN_EGRES_PRIVATE", "true"),
        ("POSTERN_API_KEY", "of another command"),
        ("POSTERN_STORE_MEMCACHED_ADDRESSES", "[\"127.0.0.1:1\"]"),
        ("POSTERN_KEYS_SERVICE_HOST", "10.0.0.1"),
        ("POSTERN_LISTEN_PORT", "tcp://10.0.0.1:8081"),
        ("POSTERN_LISTEN_PORT_8081_TCP_ADDR", "10.0.0.1"),
        ("POSTERN_LISTEN_ADMIN", "localhost:0"),
    ]);
    issuer.wait_for_address("the issuer listens on ");
    let (_, said) = issuer.written();
    let warning =
        "POSTERN_EGRES_PRIVATE is ignored: no key has this name; did you mean POSTERN_EGRESS_PRIVATE?";
    assert!(said.contains(warning), "{said}");
    assert_eq!(said.matches("is ignored").count(), 1, "{said}");
    issuer.terminate().assert_stopped();
}

/// Limits are those of the connection's start; the egress policy applies at each request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_takes_up_limits_egress_and_access_log_and_refuses_a_file_that_is_bad() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    let echo = crate::support::target::echo().await.to_string();
    let tokens = crate::support::tokens::mint(&issuer.http(), &gateway.http(), 2);
    let mut open = crate::support::proxy::dial(gateway.address).await.unwrap();
    assert_eq!(crate::support::proxy::connect(&mut open, &echo, Some(&tokens[0])).await.unwrap().status, 200);

    let text = std::fs::read_to_string(&config).unwrap();
    let changed = text.replace("ports = \"any\"", "ports = [443]");
    let more =
        "[limits]\nidle_timeout = \"300ms\"\n[log]\naccess = \"anonymous\"\n[drain]\ndeadline = \"9s\"\n";
    std::fs::write(&config, changed + more).unwrap();
    let said = gateway.reread("is in force from now on");
    assert!(said.contains("egress.ports") && said.contains("limits.idle_timeout"), "{said}");
    assert!(said.contains("log.access"), "{said}");
    gateway.process.wait_for("what waits", |_, stderr| stderr.contains("drain.deadline").then_some(()));
    // The line is written a moment before.
    eventually("the port is closed", || async {
        let mut asking = crate::support::proxy::dial(gateway.address).await.unwrap();
        (crate::support::proxy::connect(&mut asking, &echo, None).await.unwrap().status == 403).then_some(())
    })
    .await;
    let mut refused = crate::support::proxy::dial(gateway.address).await.unwrap();
    assert_eq!(
        crate::support::proxy::connect(&mut refused, &echo, Some(&tokens[1])).await.unwrap().status,
        403
    );
    gateway.process.wait_for("an access line", |_, stderr| stderr.contains("postern::access").then_some(()));
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    crate::support::proxy::echoes(&mut open, b"an open tunnel keeps its idle timeout").await.unwrap();

    std::fs::write(&config, "[egress]\nports = 443\n").unwrap();
    gateway.reread("cannot be used, and what was read before stays in force");
    let mut refused = crate::support::proxy::dial(gateway.address).await.unwrap();
    assert_eq!(
        crate::support::proxy::connect(&mut refused, &echo, Some(&tokens[1])).await.unwrap().status,
        403
    );
    std::fs::write(&config, text).unwrap();
    gateway.reread("is in force from now on");
    eventually("the port is open", || async {
        let mut asking = crate::support::proxy::dial(gateway.address).await.unwrap();
        (crate::support::proxy::connect(&mut asking, &echo, None).await.unwrap().status == 407).then_some(())
    })
    .await;
    let mut stream = crate::support::proxy::dial(gateway.address).await.unwrap();
    assert_eq!(
        crate::support::proxy::connect(&mut stream, &echo, Some(&tokens[1])).await.unwrap().status,
        200
    );
}
