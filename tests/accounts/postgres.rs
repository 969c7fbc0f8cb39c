//! Several issuers with one PostgreSQL: never a token beyond a quota, one directory, no key lost, whatever is killed.

use super::kills::ask_all;
use super::{add, issuer, json, mint, said};
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::postgres::{Postgres, issuer_in};
use crate::support::tls::Authority;
use postern_token::{DIRECTORY_PATH, Directory, DirectoryKey, UnixSeconds};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

/// A period that is under way for years yet.
const PERIOD: &str = "10000d";

/// A server, and the configurations of two issuers.
fn two(more: &str) -> (Postgres, TempDir, [PathBuf; 2]) {
    let (server, home) = (Postgres::start(&[]), TempDir::new().unwrap());
    let configs = ["one", "other"].map(|name| issuer_in(&server, home.path(), name, more));
    (server, home, configs)
}

async fn started(configs: &[PathBuf; 2]) -> [Daemon; 2] {
    [Daemon::ready("issuer", &configs[0]).await, Daemon::ready("issuer", &configs[1]).await]
}

async fn directory(issuer: &Daemon) -> Vec<u8> {
    let url = format!("{}{DIRECTORY_PATH}", issuer.http());
    reqwest::get(url).await.unwrap().bytes().await.unwrap().to_vec()
}

/// Waits until both publish the same bytes; returns their directory.
async fn same_directory(one: &Daemon, other: &Daemon, keys: usize) -> Directory {
    eventually("both publish the same directory", || async {
        let (first, second) = (directory(one).await, directory(other).await);
        let parsed = Directory::parse(&first).unwrap();
        (first == second && parsed.token_keys.len() == keys).then_some(parsed)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_issuers_and_server_under_64_clients_give_no_token_beyond_the_quota() {
    const QUOTA: i64 = 6_000;
    const ROUNDS: i64 = 6;
    let (mut server, _home, configs) = two("");
    let key = add(&configs[0], "alice", &format!("{QUOTA}/{PERIOD}"));
    let signed = Arc::new(AtomicI64::new(0));
    for round in 0..ROUNDS {
        let [one, other] = started(&configs).await;
        let mut clients = ask_all(&one, &key, 32, &signed).await;
        clients.extend(ask_all(&other, &key, 32, &signed).await);
        let wanted = signed.load(SeqCst) + 60 + 17 * round;
        let until = async |wanted| {
            while signed.load(SeqCst) < wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        until(wanted).await;
        if round % 2 == 0 {
            server.kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.launch();
            until(signed.load(SeqCst) + 40).await; // both go on by themselves
        }
        one.kill();
        until(signed.load(SeqCst) + 20).await;
        other.kill();
        for client in clients {
            client.await.unwrap();
        }
        let used: i64 = server.sql("SELECT tokens FROM usage")[0].parse().unwrap();
        let came = signed.load(SeqCst);
        assert!(came <= used && used <= QUOTA, "{came} tokens came, {used} are counted");
    }
    let [one, other] = started(&configs).await;
    let mut clients = ask_all(&one, &key, 32, &signed).await;
    clients.extend(ask_all(&other, &key, 32, &signed).await);
    for client in clients {
        client.await.unwrap();
    }
    let all = signed.load(SeqCst);
    // A kill of an issuer costs a fiftieth of the quota, and those being requested; one of the server that of each issuer.
    let lost = 3 * ROUNDS * (QUOTA / 50 + 32);
    assert!((QUOTA - lost..=QUOTA).contains(&all), "{all} tokens of {QUOTA}");
    println!("{all} of {QUOTA} tokens came after {ROUNDS} kills of both and {} of the server", ROUNDS / 2);
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_gives_back_what_was_reserved_and_all_of_a_quota_can_be_had_at_either() {
    let (server, _home, configs) = two("");
    let key = add(&configs[1], "alice", &format!("100/{PERIOD}"));
    let [one, other] = started(&configs).await;
    mint(&one, &key).assert_stopped();
    mint(&other, &key).assert_stopped();
    one.process.terminate().assert_stopped();
    for _ in 0..98 {
        mint(&other, &key).assert_stopped();
    }
    mint(&other, &key).assert_failed(70, &["429", "quota is spent"]);
    assert_eq!(server.sql("SELECT tokens FROM usage"), ["100"]);
    other.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_publish_one_directory_whichever_makes_retires_or_imports_a_key() {
    let (server, home, configs) = two("types = [5, 2]");
    let both = Daemon::start("issuer", &configs[0]);
    let other = Daemon::ready("issuer", &configs[1]).await; // both started at once, and made each key once
    both.until_ready("issuer").await;
    let [one, other] = [both, other];
    let first = same_directory(&one, &other, 2).await;
    said(&configs[1], &["key", "rotate", "--in", "0s"]);
    let rotated = same_directory(&one, &other, 4).await;
    assert!(first.token_keys.iter().all(|key| rotated.token_keys.contains(key)));
    let id = json(&configs[0], &["key", "list"])[0]["id"].as_str().unwrap().to_owned();
    let file = home.path().join("exported");
    std::fs::create_dir(&file).unwrap();
    let key = add(&configs[0], "alice", "100/1d");
    mint(&other, &key).assert_stopped();
    said(&configs[0], &["key", "export", &id, file.to_str().unwrap()]);
    said(&configs[1], &["key", "retire", &id, "--now", "--yes"]);
    same_directory(&one, &other, 4).await;
    mint(&one, &key).assert_stopped();
    // Each content is an EncryptedPrivateKeyInfo with PBES2, whose object identifier is near its beginning.
    let plain = "SELECT name FROM token_keys WHERE position('\\x06092a864886f70d01050d'::bytea IN content) NOT BETWEEN 1 AND 16";
    assert_eq!(server.sql(plain), Vec::<String>::new());
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn issuers_that_are_killed_while_keys_rotate_lose_no_key_and_publish_one_directory() {
    let (mut server, _home, configs) =
        two("rotate_every = \"20s\"\npublish_ahead = \"6s\"\nredeem_for = \"200s\"");
    let mut seen = Vec::new();
    for round in 0..4 {
        let [one, other] = started(&configs).await;
        tokio::time::sleep(Duration::from_secs(2 + round)).await;
        if round == 2 {
            server.kill();
            server.launch();
        }
        for issuer in [&one, &other] {
            for key in Directory::parse(&directory(issuer).await).unwrap().token_keys {
                if !seen.contains(&key) {
                    seen.push(key);
                }
            }
        }
        one.kill();
        other.kill();
    }
    let [one, other] = started(&configs).await;
    // On a slow machine the first ones leave before the last look.
    let is_alive = |key: &&DirectoryKey| key.not_after.is_some_and(|end| UnixSeconds::now() < end);
    eventually("both publish one directory, with every key that was ever published", || async {
        let (first, second) = (directory(&one).await, directory(&other).await);
        let keys = Directory::parse(&first).unwrap().token_keys;
        (first == second && seen.iter().filter(is_alive).all(|key| keys.contains(key))).then_some(())
    })
    .await;
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_database_issuers_give_what_is_reserved_and_then_503_and_go_on_by_themselves() {
    let (mut server, _home, configs) = two("");
    let key = add(&configs[0], "alice", &format!("5000/{PERIOD}"));
    let [one, other] = started(&configs).await;
    let request = crate::support::accounts::token_request(&one, &key).await;
    let send = async || request.try_clone().unwrap().send().await.unwrap();
    assert_eq!(send().await.status(), 200); // reserves a fiftieth
    server.kill();
    for _ in 0..20 {
        assert_eq!(send().await.status(), 200);
    }
    one.readyz(200, &["quota counts cannot be written"]).await;
    other.readyz(200, &["quota counts cannot be written"]).await;
    let mut given = 21;
    let refused = loop {
        let answer = send().await;
        match answer.status().as_u16() {
            200 => given += 1,
            _ => break answer,
        }
    };
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert!((21..=101).contains(&given), "{given}");
    assert!(issuer(&configs[0], &["account", "list"]).code != Some(0));
    server.launch();
    eventually("tokens are given again", || async { (send().await.status() == 200).then_some(()) }).await;
    eventually("by the other issuer, too", || async { (mint(&other, &key).code == Some(0)).then_some(()) })
        .await;
    let used: u64 = server.sql("SELECT tokens FROM usage")[0].parse().unwrap();
    assert!(used >= given + 2);
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_delays_requests_for_seconds_and_loses_no_issuer() {
    let (server, _home, configs) = two("");
    let key = add(&configs[0], "alice", &format!("5000/{PERIOD}"));
    let [one, other] = started(&configs).await;
    let request = crate::support::accounts::token_request(&one, &key).await;
    server.freeze();
    let answer = request.try_clone().unwrap().send().await.unwrap();
    assert_eq!(answer.status(), 503);
    one.readyz(200, &["has not answered for 4 s"]).await;
    server.thaw();
    for issuer in [&one, &other] {
        eventually("tokens are given again", || async { (mint(issuer, &key).code == Some(0)).then_some(()) })
            .await;
    }
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_an_account_counts_at_every_issuer_within_seconds() {
    let (_server, _home, configs) = two("");
    let [one, other] = started(&configs).await;
    let key = add(&configs[0], "alice", "100/1d");
    mint(&other, &key).assert_stopped();
    said(&configs[0], &["account", "disable", "alice"]);
    eventually("the other issuer refuses it", || async {
        (mint(&other, &key).code == Some(70)).then_some(())
    })
    .await;
    mint(&one, &key).assert_failed(70, &["403"]);
    for issuer in [one, other] {
        issuer.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_with_files_moves_into_the_database_and_back_with_its_keys_accounts_and_usage() {
    let (server, home) = (Postgres::start(&[]), TempDir::new().unwrap());
    let shared = issuer_in(&server, home.path(), "one", "types = [2, 5]");
    let text = std::fs::read_to_string(&shared).unwrap();
    let files = home.path().join("files.toml");
    std::fs::write(&files, text.split("[accounts]").next().unwrap()).unwrap();
    let key = add(&files, "alice", &format!("5/{PERIOD}"));
    let issuer = Daemon::ready("issuer", &files).await;
    let before = directory(&issuer).await;
    mint(&issuer, &key).assert_stopped();
    issuer.process.terminate().assert_stopped();
    super::issuer(&shared, &[]).assert_failed(70, &["postern issuer migrate --to postgres"]);
    for to in ["postgres", "sqlite", "postgres"] {
        said(&shared, &["migrate", "--to", to]);
        let config = if to == "sqlite" { &files } else { &shared };
        let issuer = Daemon::ready("issuer", config).await;
        assert_eq!(directory(&issuer).await, before, "{to}");
        mint(&issuer, &key).assert_stopped();
        add(config, &format!("new-{to}-{}", issuer.address.port()), "1/1d");
        issuer.process.terminate().assert_stopped();
    }
    let issuer = Daemon::ready("issuer", &shared).await;
    mint(&issuer, &key).assert_stopped();
    mint(&issuer, &key).assert_failed(70, &["429", "quota is spent"]);
    super::issuer(&shared, &["migrate", "--to", "sqlite"]).assert_failed(70, &["stop it"]);
    issuer.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_verified_and_the_password_comes_from_a_file() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let (certificate, key) = (&authority.certificate, &authority.key);
    let options = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", certificate.display()),
        format!("ssl_key_file={}", key.display()),
    ];
    let server = Postgres::start(&options.each_ref().map(String::as_str));
    server.sql("CREATE USER issuer PASSWORD 'a secret'");
    server.sql("CREATE DATABASE tokens OWNER issuer");
    std::fs::write(
        server.cluster().join("pg_hba.conf"),
        "hostssl tokens issuer all scram-sha-256\nhost all postern all trust\n",
    )
    .unwrap();
    server.sql("SELECT pg_reload_conf()");
    let config = issuer_in(&server, home.path(), "issuer", "");
    let text = std::fs::read_to_string(&config).unwrap();
    let write = |url: &str, more: &str| {
        let text = text.replace(&server.url(""), url) + more;
        std::fs::write(&config, text).unwrap();
    };
    let url = format!("postgres://issuer@localhost:{}/tokens", server.port());
    let password = home.path().join("password");
    std::fs::write(&password, "a secret\n").unwrap();
    std::fs::set_permissions(&password, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = format!("password_file = {password:?}\n");
    let refused = |parts: &[&str]| issuer(&config, &["account", "list"]).assert_failed(70, parts);
    write(&url, &file);
    refused(&["localhost/tokens", "invalid peer certificate: UnknownIssuer"]);
    let trusted = format!("{url}?sslrootcert={}", authority.ca.display());
    write(&trusted, "");
    refused(&["localhost/tokens"]);
    std::fs::write(&password, "another\n").unwrap();
    write(&trusted, &file);
    refused(&["password authentication failed"]);
    std::fs::write(&password, "a secret\n").unwrap();
    said(&config, &["account", "list"]);
    for (url, why) in [
        (format!("{url}?sslmode=require"), "does not check who answers"),
        (url.replace("issuer@", "issuer:secret@"), "has a password"),
        ("tokens.sqlite".to_owned(), "is not a URL"),
    ] {
        write(&url, &file);
        issuer(&config, &["account", "list"]).assert_failed(64, &["[accounts] database", why]);
    }
}
