//! More broken set-ups, whose remedy is outside of the configuration: a file, a server, a certificate.

use super::broken::{Start, start};
use crate::support::authorizer::Service;
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config, with_memcacheds};
use crate::support::disk::Disk;
use crate::support::doctor::{Findings, doctor};
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::tls::Authority;
use crate::support::{admin, edit};
use postern_testkit::memcached::Server;
use postern_testkit::ports;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// OpenSSL makes both kinds without a word, and some clients accept them, so a start is not refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_clients_refuse_is_named_by_doctor_and_by_the_start() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let good = [&authority.certificate, &authority.key].map(|file| std::fs::read(file).unwrap());
    let section = authority.section();
    for (kind, file) in [
        ("issuer", issuer_config(home.path(), &section)),
        ("gateway", gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", &section)),
    ] {
        for (is_authority, seen, remedy) in [
            (
                false,
                "names no host (subjectAltName)",
                "have one made with the host of the URL as subjectAltName",
            ),
            (true, "is an authority's own (CA:TRUE)", "sign another one by it"),
        ] {
            let names = if is_authority { vec!["localhost".to_owned()] } else { Vec::new() };
            let mut params = CertificateParams::new(names).unwrap();
            if is_authority {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            let key = KeyPair::generate().unwrap();
            let bad = [params.self_signed(&key).unwrap().pem(), key.serialize_pem()];
            let write = |[certificate, key]: [&[u8]; 2]| {
                std::fs::write(&authority.certificate, certificate).unwrap();
                std::fs::write(&authority.key, key).unwrap();
            };
            write([bad[0].as_bytes(), bad[1].as_bytes()]);
            Findings::of(&file).has("bad", "certificate", seen);
            Findings::of(&file).has("bad", "certificate", remedy);
            let warning = |log: &str| {
                let line = log.lines().find(|line| line.contains(seen))?;
                assert!(line.contains(" WARN ") && line.contains(remedy), "{line}");
                Some(())
            };
            let daemon = Daemon::start(kind, &file);
            daemon.process.wait_for("the warning", |_, log| warning(log));

            // The remedy, and the same fault by a renewal.
            write([&good[0], &good[1]]);
            daemon.reread("the certificate was read again");
            Findings::of(&file).lacks_of("bad", "certificate");
            write([bad[0].as_bytes(), bad[1].as_bytes()]);
            daemon.process.signal("HUP");
            daemon
                .process
                .wait_for("another warning", |_, log| (log.matches(seen).count() == 2).then_some(()));
            write([&good[0], &good[1]]);
            let log = daemon.kill().stderr;
            assert_eq!(log.matches(seen).count(), 2, "{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_state_that_is_a_file_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let own = issuer_config(home.path(), "");
    let keys = home.path().join("issuer");
    std::fs::write(&keys, "").unwrap();
    let sentence = format!("cannot use the data directory {}: ", keys.display());
    doctor(&own).assert_would_not_start(70, &[&sentence, "name one that this user may write to"]);
    start("issuer", &own, Start::Refused(70, &sentence)).await;
    std::fs::remove_file(&keys).unwrap();
    Findings::of(&own).has_nothing_bad();
    start("issuer", &own, Start::Ready).await;

    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let records = home.path().join("spent");
    std::fs::write(&records, "").unwrap();
    Findings::of(&file).has("bad", "disk", "(store.path) is not a directory");
    Findings::of(&file).has("bad", "disk", "move it away, or name another directory in store.path");
    start("gateway", &file, Start::Refused(70, &records.display().to_string())).await;
    std::fs::rename(&records, home.path().join("aside")).unwrap();
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_room_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let (small, larger) = (home.path().join("spent"), home.path().join("larger"));
    let Some(_disk) = Disk::mounted(&small) else { return }; // only root may mount
    Findings::of(&file).has("bad", "disk", "(store.path) has 1 MiB of free space");
    Findings::of(&file).has("bad", "disk", "or move the directory to a larger disk");
    edit(&file, &format!("path = {small:?}"), &format!("path = {larger:?}"));
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;
}

/// Nothing is ever written into it, so who opens it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_a_pipe_is_named() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let file = issuer_config(home.path(), &authority.section());
    let good = std::fs::read(&authority.certificate).unwrap();
    std::fs::remove_file(&authority.certificate).unwrap();
    assert!(Command::new("mkfifo").arg(&authority.certificate).status().unwrap().success());
    Findings::of(&file).has(
        "bad",
        "file",
        "the files that it names were not read in time: one may be a pipe",
    );
    std::fs::remove_file(&authority.certificate).unwrap();
    std::fs::write(&authority.certificate, good).unwrap();
    Findings::of(&file).has_nothing_bad();
    start("issuer", &file, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memcached_that_is_away_hangs_or_is_full_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let mut server = Memcached::absent();
    with_memcacheds(&file, &[server.address()]);
    let well = async || {
        Findings::of(&file).has_nothing_bad();
        start("gateway", &file, Start::Ready).await;
    };
    Findings::of(&file).has("bad", "store", "Check that the store's servers run");
    start("gateway", &file, Start::NotReady("store: ")).await;
    server.launch();
    well().await;

    server.freeze();
    Findings::of(&file).has("bad", "store", &server.address());
    start("gateway", &file, Start::NotReady("store: ")).await;
    server.thaw();
    well().await;

    let slow = Relay::to(&[server.port()]);
    slow.hold_replies(Duration::from_millis(30));
    let of = |address: &str, more: &str| format!("memcached.addresses = [\"{address}\"]\n{more}");
    let [usual, short, long] = [
        of(&server.address(), ""),
        of(&slow.address(), "memcached.timeout = \"20ms\"\n"),
        of(&slow.address(), "memcached.timeout = \"2s\"\n"),
    ];
    edit(&file, &usual, &short);
    Findings::of(&file).has("bad", "store", "and store.memcached.timeout is 20ms");
    Findings::of(&file).has("bad", "store", "or raise the timeout");
    start("gateway", &file, Start::NotReady("store: ")).await;
    edit(&file, &short, &long);
    well().await;
    edit(&file, &long, &usual);

    let full = Server::tcp(&["-M", "-m", "8"]);
    let (port, address) = (full.port(), full.address::<String>());
    edit(&file, &server.address(), &address);
    full.fill();
    Findings::of(&file).has("bad", "store", &format!("{address} is full: it has rejected "));
    Findings::of(&file).has("bad", "store", "-m");
    start("gateway", &file, Start::NotReady("store: ")).await;
    drop(full);
    let _larger = Server::tcp_on(port);
    well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_which_none_is_in_use_are_named() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let good = admin::page(issuer.address, "/.well-known/private-token-issuer-directory").await;
    let shifted = |seconds: i64| {
        let mut directory: Value = serde_json::from_str(&good).unwrap();
        for key in directory["token-keys"].as_array_mut().unwrap() {
            for time in ["not-before", "not-after"] {
                key[time] = (key[time].as_i64().unwrap() + seconds).into();
            }
        }
        directory.to_string()
    };
    let keys = home.path().join("directory.json");
    std::fs::write(&keys, shifted(86_400)).unwrap();
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let directory = format!("directory = \"{}/.well-known/private-token-issuer-directory\"", issuer.http());
    edit(&file, &directory, &format!("keys = {keys:?}"));
    Findings::of(&file).has("bad", "issuer", "and none is in use now");
    Findings::of(&file).has("bad", "issuer", "the issuer has to publish a newer key");
    start("gateway", &file, Start::NotReady("keys: ")).await;
    std::fs::write(&keys, &good).unwrap();
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;

    // An agent's issuer, whose last key ended long ago.
    let gateway = Daemon::ready("gateway", &file).await;
    let old = serve(shifted(-100 * 86_400));
    let agent = client_config(home.path(), &gateway.http(), &old, None);
    Findings::of(&agent).has("bad", "issuer", "lists no key whose tokens are good now");
    Findings::of(&agent).has("bad", "issuer", "its operator has to publish a newer key");
    start("client", &agent, Start::NotReady("agent: ")).await;
    edit(&agent, &old, &issuer.http());
    Findings::of(&agent).has_nothing_bad();
    start("client", &agent, Start::Ready).await;
}

/// Serves a directory at every path; returns the URL.
fn serve(directory: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 2048]);
            let length = directory.len();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/private-token-issuer-directory\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{directory}");
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_a_daemon_asks_and_that_are_away_are_named() {
    let home = TempDir::new().unwrap();
    let nowhere = ports::closed();
    // A name, and then an address where nothing listens.
    let gateway = gateway_config(home.path(), "http://issuer.invalid", "", "1s", "");
    Findings::of(&gateway).has("bad", "names", "issuer.invalid is not resolved");
    edit(&gateway, "http://issuer.invalid", &format!("http://{nowhere}"));
    Findings::of(&gateway).lacks_of("bad", "names");
    Findings::of(&gateway).has("bad", "issuer", "cannot be fetched");
    start("gateway", &gateway, Start::NotReady("keys: ")).await;
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    edit(&gateway, &format!("http://{nowhere}"), &issuer.http());
    Findings::of(&gateway).has_nothing_bad();
    start("gateway", &gateway, Start::Ready).await;

    let agent = client_config(home.path(), &format!("http://{nowhere}"), &issuer.http(), None);
    Findings::of(&agent).has("bad", "gateway", "cannot be reached");
    start("client", &agent, Start::NotReady("gateway: ")).await;
    let running = Daemon::ready("gateway", &gateway).await;
    edit(&agent, &format!("http://{nowhere}"), &running.http());
    Findings::of(&agent).has_nothing_bad();
    start("client", &agent, Start::Ready).await;

    let other = TempDir::new().unwrap();
    let section = format!("[authorizer]\nurl = \"http://{nowhere}/authorize\"\n");
    let file = issuer_config(other.path(), &section);
    Findings::of(&file).has("bad", "authorizer", &format!("nothing takes connections at {nowhere}"));
    start("issuer", &file, Start::Ready).await;
    let service = Service::start(|_| (200, "{\"allow\": false}".to_owned())).await;
    edit(&file, &nowhere.to_string(), &service.address.to_string());
    Findings::of(&file).has_nothing_bad();
    start("issuer", &file, Start::Ready).await;
}

/// As a process that is stopped by a debugger: it takes connections by its kernel alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_answer_is_named() {
    let home = TempDir::new().unwrap();
    // A port that no other test gets when this listener is gone.
    let hangs = TcpListener::bind(("127.0.0.1", ports::free())).unwrap();
    let at = hangs.local_addr().unwrap();
    let file = issuer_config(home.path(), "");
    edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"{at}\""));
    let said = format!("bad   process     http://{at} takes connections, and does not answer");
    let hanging = doctor(&file);
    assert!(
        hanging.stdout.contains(&said) && hanging.stdout.contains("restart it if it hangs"),
        "{hanging:?}"
    );
    start("issuer", &file, Start::Refused(70, &at.to_string())).await;
    drop(hangs);
    doctor(&file).assert_can_start();
    start("issuer", &file, Start::Ready).await;
}
