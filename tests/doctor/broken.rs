//! Broken set-ups, a row each: the findings of `postern doctor`, the outcome of a start, and that the remedy works:
//! afterwards doctor finds nothing bad, and the daemon is ready.

use crate::accounts::add;
use crate::support::daemon::{
    Daemon, client_config, declared, gateway_config, issuer_config, issuer_config_with, with_memcacheds,
};
use crate::support::doctor::{Findings, doctor, name_server};
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::tls::Authority;
use crate::support::{admin, edit, eventually};
use postern_testkit::memcached::Server;
use postern_testkit::ports;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The outcome of a start.
pub(super) enum Start<'a> {
    /// It takes it without a word.
    Ready,
    /// It serves nobody, and `/readyz` has the reason.
    NotReady(&'a str),
    /// It ends with this code and sentence.
    Refused(i32, &'a str),
}

pub(super) async fn start(kind: &str, file: &Path, does: Start<'_>) {
    match does {
        Start::Ready => Daemon::ready(kind, file).await.process.terminate().assert_stopped(),
        Start::NotReady(why) => {
            let daemon = Daemon::start(kind, file);
            eventually(&format!("readiness says {why:?}"), || async {
                let (status, body) = admin::get(daemon.admin, "/readyz").await?;
                (status == 503 && body.contains(why)).then_some(())
            })
            .await;
        }
        Start::Refused(code, sentence) => {
            let started = run([kind.as_ref(), "--config".as_ref(), file.as_os_str()]);
            started.assert_failed(code, &[sentence]);
        }
    }
}

/// Returns the findings about each file of a folder.
pub(super) fn of_folder(folder: &Path, file: &Path) -> Findings {
    Findings::read(&run(["doctor".as_ref(), "--json".as_ref(), folder.as_os_str()]), file)
}

pub(super) fn gateway(home: &Path, name: &str, issuer: &Daemon) -> PathBuf {
    let made = gateway_config(home, &issuer.http(), "", "1s", "");
    let file = home.join(name);
    std::fs::rename(made, &file).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_a_folder_that_differ_are_named() {
    let (home, issuers, stores) =
        (TempDir::new().unwrap(), TempDir::new().unwrap(), [(); 2].map(|()| Memcached::start()));
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let [first, second] =
        ["gateway-1.toml", "gateway-2.toml"].map(|name| gateway(home.path(), name, &issuer));
    let [one, other] = [&stores[0], &stores[1]].map(Memcached::address);
    for file in [&first, &second] {
        with_memcacheds(file, std::slice::from_ref(&one));
    }
    let text = std::fs::read_to_string(&second).unwrap();
    let line = |key: &str| text.lines().find(|line| line.trim_start().starts_with(key)).unwrap().to_owned();
    let (origin, issuer_name) = (line("origin"), line("issuer_name"));
    for (before, after, said) in [
        (&*origin, "origin = \"other.example\"", "challenge.origin is "),
        (&*issuer_name, "issuer_name = \"other.example\"", "challenge.issuer_name is "),
        (&*one, &*other, "has the same challenge and another store"),
    ] {
        edit(&second, before, after);
        of_folder(home.path(), &first).has("bad", "fleet", said);
        of_folder(home.path(), &second).has("bad", "fleet", "gateway-1.toml");
        start("gateway", &second, Start::Ready).await;
        edit(&second, after, before); // the remedy: one for all
        of_folder(home.path(), &second).lacks("fleet");
        of_folder(home.path(), &second).has_nothing_bad();
        start("gateway", &second, Start::Ready).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_clients_refuse_and_keys_that_others_read_are_named() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = issuer_config(home.path(), &authority.section());
    Findings::of(&issuer).has("well", "certificate", "server.pem ends at ");

    let mode = |mode| std::fs::set_permissions(&authority.key, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    let folder = |mode| std::fs::set_permissions(home.path(), PermissionsExt::from_mode(mode)).unwrap();
    folder(0o700);
    Findings::of(&issuer).has("well", "certificate", "server.pem ends at "); // nobody else enters the folder
    folder(0o755);
    Findings::of(&issuer).has("bad", "certificate", "every user of this machine can read the private key");
    Findings::of(&issuer).has("bad", "certificate", "chmod o-rwx ");
    start("issuer", &issuer, Start::Ready).await;
    mode(0o640);
    Findings::of(&issuer).has_nothing_bad();
    start("issuer", &issuer, Start::Ready).await;

    // A port that is in the URLs of others.
    edit(&issuer, "address = \"127.0.0.1:0\"", &format!("address = \"127.0.0.1:{}\"", ports::free()));
    let port = std::fs::read_to_string(&issuer).unwrap();
    let port = port.split("address = \"127.0.0.1:").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let other = format!("https://issuer.other:{port}");
    let agent = client_config(home.path(), "http://127.0.0.1:9", &other, None);
    of_folder(home.path(), &issuer).has(
        "bad",
        "certificate",
        &format!("{other} leads here, and the certificate"),
    );
    start("issuer", &issuer, Start::Ready).await;
    edit(&agent, &other, &format!("https://localhost:{port}"));
    of_folder(home.path(), &issuer).has_nothing_bad();
    start("issuer", &issuer, Start::Ready).await;

    let signed = [&authority.certificate, &authority.key].map(|file| std::fs::read(file).unwrap());
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(&authority.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&authority.key, key.serialize_pem()).unwrap();
    Findings::of(&issuer).has("bad", "certificate", "is an authority's own (CA:TRUE)");
    Findings::of(&issuer).has("bad", "certificate", "sign another one by it");
    start("issuer", &issuer, Start::Ready).await;
    std::fs::write(&authority.certificate, &signed[0]).unwrap();
    std::fs::write(&authority.key, &signed[1]).unwrap();
    Findings::of(&issuer).has_nothing_bad();
    start("issuer", &issuer, Start::Ready).await;
}

/// Gateways of two machines, in one folder, on one port: each certificate is for its own name.
#[test]
fn of_two_gateways_on_one_port_each_has_the_urls_of_its_certificate() {
    let home = TempDir::new().unwrap();
    let port = ports::free();
    let files = ["g1.test", "g2.test"].map(|name| {
        let own = home.path().join(name);
        std::fs::create_dir(&own).unwrap();
        let section = Authority::for_server(&own, name).section();
        let file = home.path().join(format!("gateway-{name}.toml"));
        std::fs::rename(gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", &section), &file)
            .unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("127.0.0.1:0", &format!("127.0.0.1:{port}"), 1)).unwrap();
        file
    });
    let url = |name: &str| format!("https://{name}:{port}");
    let agent = client_config(home.path(), &url("g1.test"), "http://127.0.0.1:9", None);
    edit(
        &agent,
        &format!("url = {:?}", url("g1.test")),
        &format!("url = [{:?}, {:?}]", url("g1.test"), url("g2.test")),
    );
    files.iter().for_each(|file| of_folder(home.path(), file).lacks_of("bad", "certificate"));
    edit(&agent, "g2.test", "g3.test");
    for file in &files {
        of_folder(home.path(), file).has("bad", "certificate", &format!("{} leads here", url("g3.test")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_others_may_read_are_named() {
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let home = TempDir::new().unwrap();
    let issuer_file = issuer_config(home.path(), "");
    let issuer = Daemon::ready("issuer", &issuer_file).await;
    let keys = home.path().join("issuer");
    mode(&keys, 0o755);
    Findings::of(&issuer_file).has("look", "disk", "(keys.directory) is open to other users (mode 0755)");
    Findings::of(&issuer_file).has("look", "disk", &format!("chmod 700 {}", keys.display()));
    mode(&keys, 0o700);
    Findings::of(&issuer_file).lacks_of("look", "disk");

    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let agent = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let (key, text) = (home.path().join("api.key"), std::fs::read_to_string(&agent).unwrap());
    std::fs::write(&key, "0123456789abcdef").unwrap();
    mode(home.path(), 0o755);
    for (setting, file) in
        [(format!("api_key_file = {key:?}"), &key), ("api_key = \"0123456789abcdef\"".to_owned(), &agent)]
    {
        std::fs::write(&agent, text.replace("[issuer]\n", &format!("[issuer]\n{setting}\n"))).unwrap();
        mode(file, 0o644);
        let found = Findings::of(&agent);
        found.has(
            "bad",
            "API key",
            &format!("every user of this machine can read the API key in {}", file.display()),
        );
        found.has("bad", "API key", &format!("chmod o-rwx {}", file.display()));
        start("client", &agent, Start::Ready).await;
        mode(file, 0o640);
        Findings::of(&agent).has_nothing_bad();
        start("client", &agent, Start::Ready).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_that_strangers_reach_are_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let authority = Authority::new(home.path());
    let account = declared("a", "9c0e5b7d", "1/1d");
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let files = [
        ("issuer", issuer_config_with(home.path(), &account)),
        ("gateway", gateway_config(home.path(), &issuer.http(), "", "1s", "")),
    ];
    for ((kind, file), carried) in files.iter().zip(["API keys", "tokens and the names of targets"]) {
        Findings::of(file).lacks("listener");
        edit(file, "address = \"127.0.0.1:0\"", "address = \"0.0.0.0:0\"");
        edit(file, "admin = \"127.0.0.1:0\"", "admin = \"0.0.0.0:0\"");
        let found = Findings::of(file);
        found.has("look", "listener", &format!("without TLS | who is on the way reads {carried}"));
        found.has("look", "listener", "0.0.0.0:0 (listen.admin) is reached from other machines");
        start(kind, file, Start::Ready).await;
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, text + &authority.section()).unwrap();
        edit(file, "admin = \"0.0.0.0:0\"", "admin = \"127.0.0.1:0\"");
        Findings::of(file).lacks("listener");
        Findings::of(file).has_nothing_bad();
        start(kind, file, Start::Ready).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_two_memcacheds_and_one_in_two_replicas_are_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let servers: Vec<Memcached> = (0..3).map(|_| Memcached::start()).collect();
    let [a, b, c] = [0, 1, 2].map(|index: usize| servers[index].address());
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let before = std::fs::read_to_string(&file).unwrap();
    with_memcacheds(&file, &[a.clone(), b.clone()]);
    Findings::of(&file).has(
        "bad",
        "store",
        "are two memcacheds, and store.memcached.addresses is of one store",
    );
    start("gateway", &file, Start::NotReady("store: ")).await;
    std::fs::write(&file, &before).unwrap();
    with_memcacheds(&file, std::slice::from_ref(&a));
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;

    let other_name = a.replace("127.0.0.1", "localhost");
    edit(
        &file,
        &format!("addresses = [\"{a}\"]"),
        &format!("replicas = [[\"{a}\"], [\"{b}\"], [\"{other_name}\"]]"),
    );
    let twice = format!("{a} and {other_name} are one server, in two lists of store.memcached.replicas");
    Findings::of(&file).has("bad", "store", &twice);
    start("gateway", &file, Start::NotReady("lead to the same servers")).await;
    edit(&file, &other_name, &c);
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memcached_that_evicts_or_has_another_time_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let evicting = Server::evicting(&[]);
    let (port, address) = (evicting.port(), evicting.address::<String>());
    with_memcacheds(&file, std::slice::from_ref(&address));
    Findings::of(&file).has("bad", "store", &format!("{address} drops records when it is full"));
    Findings::of(&file).has("bad", "store", "start memcached with -M");
    start("gateway", &file, Start::NotReady("is a memcached that drops records")).await;
    drop(evicting);
    let _server = Server::tcp_on(port); // with -M
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;

    let ahead = Memcached::with_clock("+150m");
    edit(&file, &address, &ahead.address());
    Findings::of(&file).has("bad", "clock", &format!("the clock of {} is 2 h ahead of", ahead.address()));
    Findings::of(&file).has("bad", "clock", "set both clocks by NTP");
    start("gateway", &file, Start::Ready).await;
    let right = Memcached::start();
    edit(&file, &ahead.address(), &right.address());
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_server_and_a_next_hop_that_are_away_are_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let resolver = format!("[egress.resolver]\nkind = \"udp\"\nservers = [\"{silent}\"]\n");
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", &resolver);
    Findings::of(&file).has("bad", "names", &format!("the name server {silent} "));
    Findings::of(&file).has("bad", "names", "correct egress.resolver.servers");
    start("gateway", &file, Start::Ready).await;
    edit(&file, &silent, &name_server().to_string());
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;

    let text = std::fs::read_to_string(&file).unwrap();
    let nowhere = format!("http://{}", ports::closed());
    let hop = format!("[[egress.next_hops]]\nname = \"exit\"\nurls = [\"{nowhere}\"]\n");
    std::fs::write(&file, text + &hop).unwrap();
    let said = format!("the next hop \"exit\" cannot be used at {nowhere}");
    Findings::of(&file).has("bad", "next hop", &said);
    Findings::of(&file).has("bad", "next hop", "check that the proxy runs, and its URL");
    start("gateway", &file, Start::Ready).await;
    edit(&file, &nowhere, &issuer.http()); // it speaks HTTP, which is all that a check needs
    Findings::of(&file).has_nothing_bad();
    start("gateway", &file, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_has_ended_is_named() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = issuer_config(home.path(), &authority.section());
    let good = [&authority.certificate, &authority.key].map(|file| std::fs::read(file).unwrap());
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2020, 2, 29);
    let key = KeyPair::generate().unwrap();
    std::fs::write(&authority.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&authority.key, key.serialize_pem()).unwrap();
    let ended = "server.pem ended at 2020-02-29T00:00:00Z";
    Findings::of(&issuer).has("bad", "certificate", ended);
    Findings::of(&issuer).has("bad", "certificate", "| Renew it: the files are read again within a minute");
    start("issuer", &issuer, Start::NotReady(ended)).await;
    std::fs::write(&authority.certificate, &good[0]).unwrap();
    std::fs::write(&authority.key, &good[1]).unwrap();
    Findings::of(&issuer).has_nothing_bad();
    start("issuer", &issuer, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_secret_of_api_keys_is_named_before_a_start() {
    let home = TempDir::new().unwrap();
    let issuer = issuer_config(home.path(), "");
    add(&issuer, "alice", "3/1d");
    let (secret, aside) = (home.path().join("issuer/accounts.secret"), home.path().join("aside"));
    std::fs::rename(&secret, &aside).unwrap();
    doctor(&issuer).assert_would_not_start(70, &["accounts.secret", "missing", "restore the file"]);
    start("issuer", &issuer, Start::Refused(70, "restore the file")).await;
    std::fs::rename(&aside, &secret).unwrap();
    Findings::of(&issuer).has_nothing_bad();
    start("issuer", &issuer, Start::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_embedded_store_in_two_gateways_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let [first, second] =
        ["gateway-1.toml", "gateway-2.toml"].map(|name| gateway(home.path(), name, &issuer));
    of_folder(home.path(), &first).has("bad", "fleet", "gateway-2.toml has the same embedded store");
    let running = Daemon::ready("gateway", &first).await;
    start("gateway", &second, Start::Refused(70, "in use")).await;
    let stores = [(); 1].map(|()| Memcached::start());
    for file in [&first, &second] {
        with_memcacheds(file, &[stores[0].address()]); // the remedy
    }
    of_folder(home.path(), &first).lacks("fleet");
    drop(running);
    start("gateway", &second, Start::Ready).await;
}
