//! Reports of the shared store's fill level, before anyone is refused: readiness, metric, page, `doctor`.

use crate::support::admin::{self, Metrics};
use crate::support::daemon::{Daemon, gateway_config, issuer_config, with_memcacheds};
use crate::support::doctor::Findings;
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::proxy::{connect, dial};
use crate::support::router::Router;
use crate::support::{edit, eventually, target, tokens};
use postern_testkit::memcached::Server;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use tempfile::TempDir;

/// Memory of a memcached that this file fills, in MiB.
const MEMORY: &str = "64";

/// Stores records of others until this many bytes are in use.
fn fill_to(server: &Server, bytes: u64) {
    const BATCH: u64 = 500;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
    let value = "x".repeat(1_000);
    let mut batch = 0;
    while server.stat("bytes") < bytes {
        let set = |n: u64| format!("set fill-{n} 0 0 1000\r\n{value}\r\n");
        let sets: String = (batch * BATCH..(batch + 1) * BATCH).map(set).collect();
        stream.write_all(sets.as_bytes()).unwrap();
        assert!((0..BATCH).all(|_| replies.next().unwrap().unwrap() == "STORED"), "it is full already");
        batch += 1;
    }
}

fn with_replicas(file: &Path, replicas: &[Vec<String>; 3]) {
    let text = std::fs::read_to_string(file).unwrap();
    let text = text
        .replace("[store]\n", &format!("[store]\nkind = \"memcached\"\nmemcached.replicas = {replicas:?}\n"));
    std::fs::write(file, text).unwrap();
}

/// The row of the store's table whose address begins so.
async fn row(admin: std::net::SocketAddr, address: &str) -> Vec<Value> {
    eventually("the page has the store", || async {
        let page: Value = serde_json::from_str(&admin::page(admin, "/live.json").await).ok()?;
        let sections = page["sections"].as_array()?.clone();
        let store = sections.into_iter().find(|section| section["id"] == "store")?;
        let rows = store["tables"][0]["rows"].as_array()?.clone();
        let row = rows.into_iter().find(|row| row[0].as_str().is_some_and(|at| at.starts_with(address)))?;
        row.as_array().cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fills_is_degraded_and_says_when_it_is_full() {
    let home = TempDir::new().unwrap();
    let server = Server::tcp(&["-M", "-m", MEMORY]);
    fill_to(&server, 54 << 20);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let address: String = server.address();
    with_memcacheds(&file, std::slice::from_ref(&address));
    let found = Findings::of(&file);
    found.has("look", "store", &format!("{address} uses 5"));
    found.has("look", "store", "start memcached with a larger -m");

    let gateway = Daemon::ready("gateway", &file).await;
    let said = gateway.readyz(200, &["degraded: ", &address, "of its memory", "full in "]).await;
    assert!(said.contains(" at this rate: once it is full it rejects every new record"), "{said}");
    let metrics = Metrics::of(gateway.admin).await;
    let of = |name: &str| metrics.value(&format!("postern_store_{name}_bytes{{address=\"{address}\"}}"));
    let (used, most) = (of("memory"), of("memory_limit"));
    assert!(used >= 54 << 20 && most == 64 << 20, "{used} of {most}");
    let share = used as f64 / most as f64;
    eventually("the page has the same", || async {
        let shown = row(gateway.admin, &address).await[2].as_f64()?;
        ((shown - share).abs() < 0.01).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_full_is_away_and_the_other_two_decide() {
    let home = TempDir::new().unwrap();
    let full = Server::tcp(&["-M", "-m", "8"]);
    let others = [Memcached::start(), Memcached::start()];
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let address: String = full.address();
    let replicas = [vec![address.clone()], vec![others[0].address()], vec![others[1].address()]];
    with_replicas(&file, &replicas);
    // A spend that a busy machine delays is answered 503 after 100 ms.
    edit(&file, "memcached.replicas", "memcached.timeout = \"2s\"\nmemcached.replicas");
    let gateway = Daemon::ready("gateway", &file).await;
    let echo = target::echo().await.to_string();
    let spend = |token: String| {
        let (gateway, echo) = (gateway.address, echo.clone());
        async move { connect(&mut dial(gateway).await.unwrap(), &echo, Some(&token)).await.unwrap().status }
    };
    assert_eq!(admin::page(gateway.admin, "/readyz").await, "ready\n");
    let mut tokens = tokens::mint(&issuer.http(), &gateway.http(), 12);
    assert_eq!(spend(tokens.pop().unwrap()).await, 200);

    full.fill();
    for token in tokens {
        assert_eq!(spend(token).await, 200, "two replicas decide");
    }
    gateway.readyz(200, &["does not answer, lacks servers, or rejects records"]).await;
    eventually("the page says so", || async {
        (row(gateway.admin, &address).await[1] == "bad: rejects records, as a full server does").then_some(())
    })
    .await;
    let is_away = |metrics: &Metrics| metrics.value("postern_store_replicas_away{replica=\"1\"}") == 1;
    admin::metrics_when(gateway.admin, "the metric says so", is_away).await;
    Findings::of(&file).has("bad", "store", &format!("{address} is full: it has rejected "));
    let status = run(["status".as_ref(), "--config".as_ref(), with_admin(&file, &gateway).as_os_str()]);
    assert!(status.stdout.contains("the next replica may be replaced: no"), "{status:?}");
}

/// One full, and another full or frozen: the third alone decides nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_without_a_vote_are_not_ready() {
    for other_is_full in [true, false] {
        let home = TempDir::new().unwrap();
        let servers: [Server; 3] = std::array::from_fn(|_| Server::tcp(&["-M", "-m", "8"]));
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
        let at: [String; 3] = std::array::from_fn(|index| servers[index].address());
        with_replicas(&file, &at.each_ref().map(|address| vec![address.clone()]));
        let gateway = Daemon::ready("gateway", &file).await;
        let echo = target::echo().await.to_string();
        let tokens = tokens::mint(&issuer.http(), &gateway.http(), 3);

        servers[0].fill();
        if other_is_full {
            servers[1].fill()
        } else {
            servers[1].signal("STOP")
        }
        // Fewer than the number of refusals in a row that would show it without the watch.
        for token in tokens {
            let mut stream = dial(gateway.address).await.unwrap();
            assert_eq!(connect(&mut stream, &echo, Some(&token)).await.unwrap().status, 503);
        }
        eventually("it is not ready", || async {
            let (status, body) = admin::get(gateway.admin, "/readyz").await?;
            let said = "two are needed for a verdict, so checks are refused with 503";
            let names = at[..2].iter().all(|address| body.contains(address));
            (status == 503 && body.contains(said) && names).then_some(())
        })
        .await;
        eventually("the metrics say so", || async {
            let metrics = Metrics::of(gateway.admin).await;
            let away =
                |replica| metrics.value(&format!("postern_store_replicas_away{{replica=\"{replica}\"}}"));
            ([away(1), away(2), away(3)] == [1, 1, 0]).then_some(())
        })
        .await;
        for address in &at[..2] {
            eventually("the page says so", || async {
                row(gateway.admin, address).await[1].as_str()?.starts_with("bad: ").then_some(())
            })
            .await;
        }
        assert_eq!(row(gateway.admin, &at[2]).await[1], "ok");
        if !other_is_full {
            servers[1].signal("CONT");
            gateway.readyz(200, &["degraded: ", &at[0], "the other two decide"]).await;
            let token = tokens::mint(&issuer.http(), &gateway.http(), 1).remove(0);
            let mut stream = dial(gateway.address).await.unwrap();
            assert_eq!(connect(&mut stream, &echo, Some(&token)).await.unwrap().status, 200);
        }
    }
}

/// The file of a daemon that chose its own port.
fn with_admin(file: &Path, daemon: &Daemon) -> std::path::PathBuf {
    let text = std::fs::read_to_string(file).unwrap();
    let copy = file.with_file_name("running.toml");
    std::fs::write(&copy, text.replace("admin = \"127.0.0.1:0\"", &format!("admin = \"{}\"", daemon.admin)))
        .unwrap();
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_router_the_page_says_that_the_fill_is_not_known() {
    let home = TempDir::new().unwrap();
    let servers = [Memcached::start()];
    let router = Router::twemproxy(home.path(), &servers);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let file = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let address = format!("127.0.0.1:{}", router.port());
    with_memcacheds(&file, std::slice::from_ref(&address));
    let gateway = Daemon::ready("gateway", &file).await;
    eventually("the page says so", || async {
        (row(gateway.admin, &address).await[2] == "not known behind a router").then_some(())
    })
    .await;
    assert!(!admin::page(gateway.admin, "/metrics").await.contains("\npostern_store_memory_bytes"));
}
