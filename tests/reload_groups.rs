//! Each section of a configuration changes while the daemon serves, and what the log calls in force is.

use crate::support::collector::Collector;
use crate::support::memcached::Memcached;
use crate::support::proxy::{Head, connect, dial, echoes, read_head, read_response};
use crate::support::reload::{file, reload, reloaded, waiting};
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::tls::Authority;
use crate::support::tokens::mint;
use crate::support::unit::Unit;
use crate::support::{TICK, eventually, target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const AGENT: AgentPlan = AgentPlan { name: "user", gateways: &[0], low: 2, high: 4 };
async fn answer(gateway: &Unit, target: &str, token: Option<&str>) -> Head {
    let mut stream = dial(gateway.address).await.unwrap();
    connect(&mut stream, target, token).await.unwrap()
}

fn minted(site: &Site, count: usize) -> Vec<String> {
    let [issuer, gateway] = [&site.issuer, &site.gateways[0]].map(|unit| format!("http://{}", unit.address));
    mint(&issuer, &gateway, count)
}

/// A token for another challenge is refused as long as that challenge is away, and a spent one is spent whatever came between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_challenge_takes_the_place_of_the_first_and_gives_no_token_a_second_tunnel() {
    let site = Site::new(Plan::default());
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    let (gateway, echo) = (&site.gateways[0], target::echo().await.to_string());
    let good = file(gateway);
    let tokens = minted(&site, 2);
    assert_eq!(answer(gateway, &echo, Some(&tokens[0])).await.status, 200);

    let other =
        good.replace("origin = \"proxy.example\"\n", "origin = \"other.example\"\nmax_age = \"1m\"\n");
    reloaded(gateway, &other, "challenge.origin = \"other.example\"").await;
    let refused = answer(gateway, &echo, Some(&tokens[1])).await;
    assert!(refused.status == 407 && !refused.says_spent(), "{refused:?}");
    let fields = refused.value("proxy-authenticate").unwrap();
    assert!(fields.contains("max-age=60"), "{fields}");
    let others = minted(&site, 1);
    assert_eq!(answer(gateway, &echo, Some(&others[0])).await.status, 200);
    assert!(answer(gateway, &echo, Some(&others[0])).await.says_spent());

    reloaded(gateway, &good, "challenge.origin = \"proxy.example\"").await;
    assert!(answer(gateway, &echo, Some(&tokens[0])).await.says_spent());
    assert_eq!(answer(gateway, &echo, Some(&others[0])).await.status, 407);
    assert_eq!(answer(gateway, &echo, Some(&tokens[1])).await.status, 200);
    assert!(answer(gateway, &echo, Some(&tokens[1])).await.says_spent());
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_to_the_shared_store_changes_under_races_and_no_token_opens_two_tunnels() {
    const TOKENS: usize = 120;
    const TOKENS_A_RELOAD: usize = 30;
    let store = Memcached::start();
    let site = Site::new(Plan { store: vec![store.address()], ..Plan::default() });
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    let (gateway, echo) = (&site.gateways[0], target::echo().await.to_string());
    let (address, good) = (gateway.address, file(gateway));
    let pooled = good.replace("[store.memcached]\n", "[store.memcached]\ntransport = \"pooled\"\n");
    let (tokens, left) = (Arc::new(minted(&site, TOKENS)), Arc::new(AtomicUsize::new(TOKENS)));
    let reloads = Arc::new(AtomicUsize::new(0));
    let mut racing = JoinSet::new();
    for _ in 0..4 {
        let (tokens, left, reloads, echo) = (tokens.clone(), left.clone(), reloads.clone(), echo.clone());
        racing.spawn(async move {
            while let Ok(before) = left.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            {
                let mut racers = JoinSet::new();
                for _ in 0..4 {
                    let (token, echo) = (tokens[before - 1].clone(), echo.clone());
                    racers.spawn(async move {
                        let mut stream = dial(address).await.unwrap();
                        connect(&mut stream, &echo, Some(&token)).await.unwrap()
                    });
                }
                let answers = racers.join_all().await;
                let opened = answers.iter().filter(|answer| answer.status == 200).count();
                let spent = answers.iter().filter(|answer| answer.says_spent()).count();
                assert_eq!((opened, spent), (1, 3), "{answers:?}");
                // Races last for some reloads, however long those take.
                while (TOKENS - before) / TOKENS_A_RELOAD > reloads.load(Ordering::Relaxed) {
                    tokio::time::sleep(TICK).await;
                }
            }
        });
    }
    let mut is_pooled = false;
    while left.load(Ordering::Relaxed) > 0 {
        is_pooled = !is_pooled;
        reloaded(gateway, if is_pooled { &pooled } else { &good }, "store.memcached.transport").await;
        reloads.fetch_add(1, Ordering::Relaxed);
    }
    racing.join_all().await;
    println!("{TOKENS} tokens, {reloads:?} reloads");
    assert!(reloads.load(Ordering::Relaxed) > 2);

    // A way that does not work changes nothing.
    let broken = good.replace("[store.memcached]\n", "[store.memcached]\ntls = { server_name = \"x\" }\n");
    let from = reload(gateway, &broken);
    gateway.logs(from, &["cannot be used", "the store serves as it is reached now"]).await;
    assert!(gateway.readiness().await.body.contains("degraded: configuration: "));
    assert_eq!(answer(gateway, &echo, Some(&minted(&site, 1)[0])).await.status, 200);
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_store_waits_for_a_restart_and_the_log_says_why() {
    let site = Site::new(Plan::default());
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    let (gateway, good) = (&site.gateways[0], file(&site.gateways[0]));
    let (echo, token) = (target::echo().await.to_string(), &minted(&site, 1)[0]);
    assert_eq!(answer(gateway, &echo, Some(token)).await.status, 200);
    let other = good.replace("/spent\"", "/elsewhere\"").replace("workers = 2", "workers = 3");
    let line = waiting(gateway, &other).await;
    for part in ["store.path = ", "a token could open two tunnels", "listen.workers = 3", "refuses no client"]
    {
        assert!(line.contains(part), "{part:?}: {line}");
    }
    assert!(answer(gateway, &echo, Some(token)).await.says_spent());

    let always = good.replace("[store]\n", "[store]\nfsync = \"always\"\n");
    reloaded(gateway, &always, "store.fsync = \"always\"").await;
    assert_eq!(answer(gateway, &echo, Some(&minted(&site, 1)[0])).await.status, 200);
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_gets_tls_and_loses_it_and_its_tunnels_go_on() {
    let site = Site::started(Plan { agents: vec![AGENT], ..Plan::default() }).await;
    let (gateway, echo) = (&site.gateways[0], target::echo().await.to_string());
    let (good, authority) = (file(gateway), Authority::new(site.home()));
    let mut held = dial(site.agents[0].address).await.unwrap();
    assert_eq!(connect(&mut held, &echo, None).await.unwrap().status, 200);

    reloaded(gateway, &(good.clone() + &authority.section()), "tls.certificate").await;
    let mut over_tls = shaken(gateway, &authority).await.expect("it speaks TLS");
    let plain = format!("GET http://{echo}/ HTTP/1.1\r\nHost: {echo}\r\n\r\n"); // a refused CONNECT would be the last
    over_tls.write_all(plain.as_bytes()).await.unwrap();
    let refused = read_head(&mut over_tls).await.unwrap();
    assert_eq!(refused.status, 407);
    let mut body = vec![0; refused.value("content-length").unwrap().parse().unwrap()];
    over_tls.read_exact(&mut body).await.unwrap();
    let mut plain = dial(gateway.address).await.unwrap();
    let over_plain = connect(&mut plain, &echo, None).await.unwrap();
    assert_eq!(over_plain.status, 400, "it speaks nothing else");
    echoes(&mut held, b"through the plain one").await.unwrap();

    reloaded(gateway, &good, "tls.certificate is no longer set").await;
    assert_eq!(answer(gateway, &echo, None).await.status, 407);
    assert!(shaken(gateway, &authority).await.is_none());
    assert_eq!(connect(&mut over_tls, &echo, None).await.unwrap().status, 407, "a connection stays as it is");
    echoes(&mut held, b"through the plain one").await.unwrap();
    site.terminate();
}

async fn shaken(unit: &Unit, authority: &Authority) -> Option<BufReader<TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(unit.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(authority.client()).connect(name, stream).await.ok()?;
    Some(BufReader::new(stream))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_log_drain_and_keys_of_a_gateway_follow_its_file() {
    let site = Site::started(Plan { agents: vec![AGENT], ..Plan::default() }).await;
    let (gateway, echo) = (&site.gateways[0], target::echo().await.to_string());
    let (good, collectors) = (file(gateway), [Collector::start().await, Collector::start().await]);
    for collector in &collectors {
        let traced = format!("{good}[tracing]\nendpoint = \"{}\"\nsample_ratio = 1.0\n", collector.url());
        reloaded(gateway, &traced, "tracing.endpoint").await;
        assert_eq!(answer(gateway, &echo, None).await.status, 407);
        eventually("a trace arrives", || async { (!collector.received().is_empty()).then_some(()) }).await;
    }

    let line = reloaded(gateway, &format!("{good}[log]\nformat = \"json\"\n"), "log.format").await;
    assert!(line.starts_with("{\"timestamp\":") && line.ends_with('}'), "{line}");
    let line = reloaded(gateway, &good, "log.format").await;
    assert!(!line.starts_with('{'), "{line}");

    let from = gateway.log().len();
    let elsewhere = good.replace(&format!("http://{}/", site.issuer.address), "http://127.0.0.1:9/");
    reloaded(gateway, &elsewhere, "issuer.directory").await;
    gateway.logs(from, &["could not be refreshed", "http://127.0.0.1:9/"]).await;
    assert_eq!(answer(gateway, &echo, None).await.status, 407, "the known keys stay in use");

    let mut held = dial(site.agents[0].address).await.unwrap();
    assert_eq!(connect(&mut held, &echo, None).await.unwrap().status, 200);
    reloaded(gateway, &good.replace("deadline = \"5s\"", "deadline = \"77s\""), "drain.deadline").await;
    let from = gateway.log().len();
    gateway.signal("TERM");
    gateway.logs(from, &["waiting for 1 open tunnel to end, for 77 s at most"]).await;
    drop(held);
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuers_pool_path_tls_and_drain_follow_its_file() {
    let site = Site::new(Plan::default());
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    let (issuer, good) = (&site.issuer, file(&site.issuer));
    let (authority, is_over) = (Authority::new(site.home()), AtomicBool::new(false));
    let other = format!(
        "{good}[signing]\nthreads = 1\nqueue = 3\n[directory]\nissuer_request_uri = \"/elsewhere\"\n[drain]\n\
         deadline = \"3s\"\n"
    );
    let rounds = async {
        for text in [&other, &good].repeat(10) {
            reloaded(issuer, text, "signing.threads").await;
        }
        is_over.store(true, Ordering::Release);
    };
    let minting = async {
        let mut tokens = 0;
        while !is_over.load(Ordering::Acquire) {
            let (issuer, gateway) = (issuer.address, site.gateways[0].address);
            let mint = move || mint(&format!("http://{issuer}"), &format!("http://{gateway}"), 3).len();
            tokens += tokio::task::spawn_blocking(mint).await.unwrap();
        }
        tokens
    };
    let ((), tokens) = tokio::join!(rounds, minting);
    println!("{tokens} tokens over 20 reloads");
    assert!(tokens > 0);
    reloaded(issuer, &other, "directory.issuer_request_uri").await;
    let limit = issuer.metrics().await.unwrap().sum("postern_issuer_queue_limit_requests", &[]);
    assert_eq!(limit, 4, "a thread and three places");
    let directory = issuer_page(issuer, "/.well-known/private-token-issuer-directory").await;
    assert!(directory.contains("\"/elsewhere\""), "{directory}");
    let description = issuer_page(issuer, "/openapi.json").await;
    assert!(description.contains("\"/elsewhere\"") && !description.contains("\"/token-request\""));

    reloaded(issuer, &(other.clone() + &authority.section()), "tls.certificate").await;
    assert!(shaken(issuer, &authority).await.is_some());
    site.terminate();
}

async fn issuer_page(issuer: &Unit, path: &str) -> String {
    let mut stream = dial(issuer.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", issuer.address);
    stream.write_all(request.as_bytes()).await.unwrap();
    read_response(&mut stream).await.unwrap().body
}
