//! Tokens bound to the memory that records them, across processes: two gateways, twemproxy and three memcacheds, of which
//! one comes back empty while spent tokens are presented again and again.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::router::Router;
use crate::support::tokens::present;
use crate::support::{admin, eventually, proxy, target, tokens};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A gateway of a fleet behind `router`.
fn config(home: &Path, name: &str, issuer: &Daemon, router: &Router) -> PathBuf {
    let store = format!("memcached.addresses = [\"127.0.0.1:{}\"]\n", router.port());
    config_with(home, name, issuer, &store, "")
}

/// A gateway of a fleet with these lines about the shared store and the challenge.
pub(super) fn config_with(home: &Path, name: &str, issuer: &Daemon, store: &str, challenge: &str) -> PathBuf {
    let text = std::fs::read_to_string(gateway_config(home, &issuer.http(), "", "1s", "")).unwrap();
    let text = text
        .replace("[store]\n", &format!("[store]\nkind = \"memcached\"\n{store}"))
        .replace("[challenge]\n", &format!("[challenge]\n{challenge}"))
        .replace("workers = 8\n", "workers = 2\n");
    let path = home.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

/// The challenge that a gateway offers now; empty while it has none.
pub(super) async fn challenge(gateway: &Daemon) -> String {
    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, "target.example:443", None).await.unwrap();
    head.value("proxy-authenticate").unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spent_token_is_admitted_by_a_server_that_came_back_empty() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers);
    let gateways = [
        Daemon::ready("gateway", &config(home.path(), "first", &issuer, &router)).await,
        Daemon::ready("gateway", &config(home.path(), "second", &issuer, &router)).await,
    ];
    let target = target::echo().await.to_string();
    let spent = tokens::mint(&issuer.http(), &gateways[0].http(), 150);
    for (index, value) in spent.iter().enumerate() {
        assert_eq!(present(gateways[index % 2].address, &target, value).await.status, 200, "{index}");
    }
    let held = tokens::mint(&issuer.http(), &gateways[1].http(), 60);

    servers[1].kill();
    servers[1].launch();
    let mut again = Vec::new();
    // At the other gateway: the one that spent a token remembers it, whatever the store has lost.
    for (index, value) in spent.iter().cycle().take(600).enumerate() {
        again.push(present(gateways[(index + 1) % 2].address, &target, value).await.status);
    }
    assert!(
        !again.contains(&200),
        "{} of 600 presentations",
        again.iter().filter(|status| **status == 200).count()
    );

    // Tokens of the servers that kept their records are good, the others void, and those of the next mark all good.
    let mut kept = 0;
    for value in &held {
        kept += usize::from(present(gateways[0].address, &target, value).await.status == 200);
    }
    assert!((20..60).contains(&kept), "{kept} of 60 tokens of the first mark");
    eventually("tokens of another mark are requested, and good", || async {
        let fresh = tokens::mint(&issuer.http(), &gateways[1].http(), 12);
        for (index, value) in fresh.iter().enumerate() {
            if present(gateways[index % 2].address, &target, value).await.status != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
    for (index, value) in spent.iter().enumerate() {
        assert_ne!(present(gateways[index % 2].address, &target, value).await.status, 200, "{index}");
    }
}

/// Tokens of a key that begins while a server is away are good on the others, and on that one when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_begins_while_a_server_is_away_gets_a_mark() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let mut servers = vec![Memcached::start(), Memcached::start(), Memcached::absent()];
    let router = Router::twemproxy(home.path(), &servers);
    let gateway = Daemon::ready("gateway", &config(home.path(), "gateway", &issuer, &router)).await;
    let target = target::echo().await.to_string();
    let good = async || {
        let mut good = 0;
        for value in tokens::mint(&issuer.http(), &gateway.http(), 30) {
            good += usize::from(present(gateway.address, &target, &value).await.status == 200);
        }
        good
    };
    eventually("about two thirds of the tokens are good", || async {
        (8..30).contains(&good().await).then_some(())
    })
    .await;
    servers[2].launch();
    eventually("all tokens are good", || async { (good().await == 30).then_some(()) }).await;
}

/// A loss costs the users of an agent a share of its tokens, and no service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_recovers_after_a_loss() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let mut servers: Vec<_> = (0..3).map(|_| Memcached::start()).collect();
    let router = Router::twemproxy(home.path(), &servers);
    let gateway = Daemon::ready("gateway", &config(home.path(), "gateway", &issuer, &router)).await;
    let agent_file = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let text = std::fs::read_to_string(&agent_file).unwrap();
    std::fs::write(&agent_file, text.replace("[wallet]\n", "[wallet]\nmost_per_minute = 0\n")).unwrap();
    let agent = Daemon::ready("client", &agent_file).await;
    let target = target::echo().await.to_string();
    let tunnel = async || {
        let mut stream = proxy::dial(agent.address).await.unwrap();
        proxy::connect(&mut stream, &target, None).await.unwrap().status
    };
    for index in 0..30 {
        assert_eq!(tunnel().await, 200, "{index}");
    }
    servers[1].kill();
    servers[1].launch();
    eventually("thirty tunnels in a row after the loss", || async {
        for _ in 0..30 {
            if tunnel().await != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
    let metrics = admin::Metrics::of(gateway.admin).await;
    let (void, admitted) = (metrics.requests("void"), metrics.requests("opened"));
    assert!(0 < void && void < admitted, "one of three servers was lost: {void} void, {admitted} admitted");
    eventually("thirty tunnels in a row, and no token that is void", || async {
        let before = admin::Metrics::of(gateway.admin).await.requests("void");
        for _ in 0..30 {
            if tunnel().await != 200 {
                return None;
            }
        }
        (admin::Metrics::of(gateway.admin).await.requests("void") == before).then_some(())
    })
    .await;
}

/// Without hash_tag a record and its witness lie on different servers, and the one may be lost without the other. Servers that
/// number no records (`-C`) would hide it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_parts_buckets_or_may_do_so_is_given_no_mark() {
    for (options, explanation, remedy) in [
        (&[][..], "is a router that keeps records of one bucket on several servers", "hash_tag"),
        (
            &["-C"][..],
            "is a router that does not show whether it keeps records of a bucket on one server",
            "without -C",
        ),
    ] {
        is_given_no_mark(Router::twemproxy_without_tags, options, &[explanation, remedy]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a memcached with its own proxy: POSTERN_MEMCACHED_PROXY names the binary"]
async fn own_proxy_of_memcached_without_its_filter_is_given_no_mark() {
    let explanation = "is a router that keeps records of one bucket on several servers";
    is_given_no_mark(Router::own_proxy_without_filter, &[], &[explanation, "filter_conf"]).await;
}

/// A gateway behind this router is not ready, and explains why.
async fn is_given_no_mark(
    router: fn(&Path, &[Memcached]) -> Router,
    options: &'static [&'static str],
    explanation: &[&str],
) {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let servers: Vec<_> = (0..3).map(|_| Memcached::with_options(options)).collect();
    let router = router(home.path(), &servers);
    let gateway = Daemon::start("gateway", &config(home.path(), "gateway", &issuer, &router));
    let address = format!("127.0.0.1:{} is a router", router.port());
    is_not_ready(&gateway, &[&[&*address], explanation].concat()).await;
}

/// Waits until a gateway has no mark, and reports why.
async fn is_not_ready(gateway: &Daemon, explanation: &[&str]) {
    eventually("no mark is planted, and the gateway reports why", || async {
        let (status, page) = admin::get(gateway.admin, "/readyz").await?;
        (status == 503 && explanation.iter().all(|text| page.contains(text))).then_some(())
    })
    .await;
}

/// A replica has two addresses, and nothing shows at the router's that the memcached behind it drops records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memcached_that_evicts_is_given_no_mark_through_a_router_either() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let servers = [Memcached::evicting()];
    let router = Router::twemproxy(home.path(), &servers);
    let addresses = [format!("127.0.0.1:{}", router.port()), servers[0].address()];
    let store = format!("memcached.addresses = {addresses:?}\n");
    let gateway = Daemon::start("gateway", &config_with(home.path(), "gateway", &issuer, &store, ""));
    is_not_ready(&gateway, &["is a memcached that drops records when it is full", "start it with -M"]).await;
    // Longer than a mark without all of its witnesses is held back.
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(admin::get(gateway.admin, "/readyz").await.unwrap().0, 503);
    }
}

/// A memcached that is reached directly is one server, whatever it numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memcached_without_numbers_is_given_a_mark() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let server = Memcached::with_options(&["-C"]);
    let store = format!("memcached.addresses = [\"{}\"]\n", server.address());
    Daemon::ready("gateway", &config_with(home.path(), "gateway", &issuer, &store, "")).await;
}
