//! Set-ups that a start takes without a word, or that fail in the first hour: what `postern doctor` says of each beforehand, and
//! that its remedy works.

use super::machine::Findings;
use crate::support::daemon::{client_config, gateway_config, issuer_config, with_memcacheds};
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::tls::Authority;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const ISSUER: &str = "http://127.0.0.1:9";

fn edit(file: &Path, before: &str, after: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(before), "{before:?} is not in {text}");
    std::fs::write(file, text.replace(before, after)).unwrap();
}

/// What is found of each file of a folder.
fn of_folder(folder: &Path, file: &Path) -> Findings {
    Findings::read(&run(["doctor".as_ref(), "--json".as_ref(), folder.as_os_str()]), file)
}

fn gateway(home: &Path, name: &str, more: &str) -> PathBuf {
    let made = gateway_config(home, ISSUER, "", "1s", more);
    let file = home.join(name);
    std::fs::rename(made, &file).unwrap();
    file
}

#[test]
fn two_gateways_of_a_folder_that_differ_are_named() {
    let home = TempDir::new().unwrap();
    let (first, second) =
        (gateway(home.path(), "gateway-1.toml", ""), gateway(home.path(), "gateway-2.toml", ""));
    for file in [&first, &second] {
        with_memcacheds(file, &["127.0.0.1:9".to_owned()]);
    }
    let text = std::fs::read_to_string(&second).unwrap();
    let line = |key: &str| text.lines().find(|line| line.trim_start().starts_with(key)).unwrap().to_owned();
    let (origin, issuer_name) = (line("origin"), line("issuer_name"));
    for (before, after, said) in [
        (&*origin, "origin = \"other.example\"", "challenge.origin is "),
        (&*issuer_name, "issuer_name = \"other.example\"", "challenge.issuer_name is "),
        ("127.0.0.1:9\"]", "127.0.0.1:7\"]", "has the same challenge and another store"),
    ] {
        edit(&second, before, after);
        of_folder(home.path(), &first).has("bad", "fleet", said);
        of_folder(home.path(), &second).has("bad", "fleet", "gateway-1.toml");
        std::fs::write(&second, &text).unwrap(); // the remedy
        of_folder(home.path(), &second).lacks("fleet");
    }
}

#[test]
fn certificates_that_clients_refuse_and_keys_that_others_read_are_named() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = issuer_config(home.path(), &authority.section());
    Findings::of(&issuer).has("well", "certificate", "server.pem ends at ");

    let mode = |mode| std::fs::set_permissions(&authority.key, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    Findings::of(&issuer).has("bad", "certificate", "every user of this machine can read the private key");
    Findings::of(&issuer).has("bad", "certificate", "chmod o-rwx ");
    mode(0o640);
    Findings::of(&issuer).has("well", "certificate", "server.pem ends at ");

    edit(&issuer, "address = \"127.0.0.1:0\"", "address = \"127.0.0.1:1\"");
    let agent = client_config(home.path(), ISSUER, "https://issuer.other:1", None);
    of_folder(home.path(), &issuer).has(
        "bad",
        "certificate",
        "https://issuer.other:1 leads here, and the certificate",
    );
    edit(&agent, "https://issuer.other:1", "https://localhost:1");
    of_folder(home.path(), &issuer).lacks_bad("certificate");

    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(&authority.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&authority.key, key.serialize_pem()).unwrap();
    Findings::of(&issuer).has("bad", "certificate", "is an authority's own (CA:TRUE)");
}

#[test]
fn listeners_that_strangers_reach_are_named() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let account = format!(
        "[[accounts]]\nname = \"a\"\nkey_sha256 = \"{}\"\nquota = \"1/1d\"\n",
        "e51bb35eabb2399eeabf72f6e696ab57f7f4152762a2e59693ae1f765776119f"
    );
    let files = [issuer_config(home.path(), &account), gateway_config(home.path(), ISSUER, "", "1s", "")];
    for (file, carried) in files.iter().zip(["API keys", "tokens and the names of targets"]) {
        Findings::of(file).lacks("listener");
        edit(file, "127.0.0.1:0", "0.0.0.0:0");
        let found = Findings::of(file);
        found.has("look", "listener", &format!("without TLS | who is on the way reads {carried}"));
        found.has("look", "listener", "0.0.0.0:0 (listen.admin) is reached from other machines");
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, text + &authority.section()).unwrap();
        edit(file, "admin = \"0.0.0.0:0\"", "admin = \"127.0.0.1:0\"");
        Findings::of(file).lacks("listener");
    }
}

#[test]
fn addresses_of_two_memcacheds_and_one_in_two_replicas_are_named() {
    let home = TempDir::new().unwrap();
    let servers: Vec<Memcached> = (0..2).map(|_| Memcached::start()).collect();
    let [a, b] = [servers[0].address(), servers[1].address()];
    let file = gateway_config(home.path(), ISSUER, "", "1s", "");
    let before = std::fs::read_to_string(&file).unwrap();
    with_memcacheds(&file, &[a.clone(), b.clone()]);
    Findings::of(&file).has(
        "bad",
        "store",
        "are two memcacheds, and store.memcached.addresses is of one store",
    );
    std::fs::write(&file, &before).unwrap();
    with_memcacheds(&file, std::slice::from_ref(&a));
    Findings::of(&file).lacks_bad("store");

    let other_name = a.replace("127.0.0.1", "localhost");
    edit(
        &file,
        &format!("addresses = [\"{a}\"]"),
        &format!("replicas = [[\"{a}\"], [\"{b}\"], [\"{other_name}\"]]"),
    );
    edit(&file, "[challenge]\n", "[challenge]\nbind = \"offer\"\n");
    let twice = format!("{a} and {other_name} are one server, in two lists of store.memcached.replicas");
    Findings::of(&file).has("bad", "store", &twice);
}
