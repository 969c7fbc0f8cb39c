//! Three replicas that vote, across processes: two gateways, a router with two memcacheds as one replica and bare
//! memcacheds as the others, which are lost one after another.

use super::marks::{challenge, config_with};
use crate::support::daemon::{Daemon, client_config, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::router::Router;
use crate::support::tokens::present;
use crate::support::{admin, eventually, proxy, target, tokens};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Notify;

/// Two gateways over three replicas, an agent, and tokens that were spent at the gateways in turn.
struct Fleet {
    _home: TempDir,
    issuer: Daemon,
    gateways: [Daemon; 2],
    agent: Daemon,
    target: String,
    spent: Vec<String>,
}

impl Fleet {
    async fn start(home: TempDir, replicas: &[String; 3], tokens: usize) -> Self {
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let gateways = [
            Daemon::ready("gateway", &config(home.path(), "one", &issuer, replicas, "beside")).await,
            Daemon::ready("gateway", &config(home.path(), "two", &issuer, replicas, "off")).await,
        ];
        let agent_file = client_config(home.path(), &gateways[0].http(), &issuer.http(), None);
        let agent = Daemon::ready("client", &agent_file).await;
        let target = target::echo().await.to_string();
        let spent = tokens::mint(&issuer.http(), &gateways[0].http(), tokens);
        for (index, value) in spent.iter().enumerate() {
            assert_eq!(present(gateways[index % 2].address, &target, value).await.status, 200, "{index}");
        }
        Self { _home: home, issuer, gateways, agent, target, spent }
    }

    /// Presents spent tokens at the other gateway: the one that spent a token remembers it, whatever the store has lost.
    async fn replay(&self, tokens: Range<usize>) {
        for index in tokens {
            let status = present(self.gateways[(index + 1) % 2].address, &self.target, &self.spent[index])
                .await
                .status;
            assert_ne!(status, 200, "token {index}");
        }
    }
}

fn config(home: &Path, name: &str, issuer: &Daemon, replicas: &[String; 3], hint: &str) -> PathBuf {
    let [a, b, c] = replicas;
    let store = format!(
        "memcached.replicas = [[\"{a}\"], [\"{b}\"], [\"{c}\"]]\nmemcached.timeout = \"1s\"\n\
         memcached.hint = \"{hint}\"\n"
    );
    config_with(home, name, issuer, &store, "max_age = \"5s\"\n")
}

/// Starts a router over some servers.
type Start = fn(&Path, &[Memcached]) -> Router;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_lost_one_after_another_and_no_token_is_admitted_twice() {
    replicas_are_lost_one_after_another(Router::twemproxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs mcrouter: POSTERN_MCROUTER names the binary"]
async fn replicas_behind_mcrouter_are_lost_one_after_another_and_no_token_is_admitted_twice() {
    replicas_are_lost_one_after_another(Router::mcrouter_pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a memcached with its own proxy: POSTERN_MEMCACHED_PROXY names the binary"]
async fn replicas_behind_own_proxy_of_memcached_are_lost_one_after_another_and_no_token_is_admitted_twice() {
    replicas_are_lost_one_after_another(Router::own_proxy).await;
}

async fn replicas_are_lost_one_after_another(router: Start) {
    let home = TempDir::new().unwrap();
    let mut pool: Vec<_> = (0..2).map(|_| Memcached::start()).collect();
    let mut bare: Vec<_> = (0..2).map(|_| Memcached::start()).collect();
    let router = router(home.path(), &pool);
    let replicas = [format!("127.0.0.1:{}", router.port()), bare[0].address(), bare[1].address()];
    let fleet = Fleet::start(home, &replicas, 120).await;
    let gateways = &fleet.gateways;
    let serves = async || {
        eventually("both gateways admit fresh tokens", async || {
            for gateway in gateways {
                for value in tokens::mint(&fleet.issuer.http(), &gateway.http(), 5) {
                    if present(gateway.address, &fleet.target, &value).await.status != 200 {
                        return None;
                    }
                }
            }
            Some(())
        })
        .await;
        // Its first tokens may be of the mark before, which not all replicas know any more.
        eventually("the agent opens a tunnel", async || {
            let mut stream = proxy::dial(fleet.agent.address).await.unwrap();
            (proxy::connect(&mut stream, &fleet.target, None).await.unwrap().status == 200).then_some(())
        })
        .await;
    };
    // A presentation records the token again, so each third is presented for the first time after another loss.
    serves().await;

    let first = challenge(&gateways[0]).await;
    bare[0].kill();
    bare[0].launch();
    fleet.replay(0..40).await;
    serves().await;
    eventually("both gateways offer the next mark", async || {
        let [one, two] = [challenge(&gateways[0]).await, challenge(&gateways[1]).await];
        (one != first && one == two).then_some(())
    })
    .await;

    pool[1].kill();
    serves().await;
    eventually("readiness and a metric name the replica that lacks a server", async || {
        let (_, page) = admin::get(gateways[0].admin, "/readyz").await?;
        let named = page.contains(&format!("number 1 ({}) does not answer, lacks servers", replicas[0]));
        (named && away(&gateways[0]).await == [1, 0, 0]).then_some(())
    })
    .await;
    pool[1].launch();
    fleet.replay(40..80).await;
    serves().await;

    bare[1].kill();
    eventually("readiness reports that one replica does not answer", async || {
        let (status, page) = admin::get(gateways[0].admin, "/readyz").await?;
        (status == 200 && page.contains(&format!("number 3 ({})", replicas[2]))).then_some(())
    })
    .await;
    // Half of the first replica has lacked the mark for less than a minute, so the mark is not planted again yet: without the
    // third replica, only a part of the tokens is served.
    bare[1].launch();
    fleet.replay(80..120).await;
    fleet.replay(0..120).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_procedure_restarts_replicas_cold_and_refuses_no_user() {
    the_documented_procedure(Router::twemproxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs mcrouter: POSTERN_MCROUTER names the binary"]
async fn the_documented_procedure_restarts_replicas_behind_mcrouter_and_refuses_no_user() {
    the_documented_procedure(Router::mcrouter_pool).await;
}

/// docs/operate/change.md, "Three replicas that vote", while an agent's user opens tunnels: none of them is refused.
async fn the_documented_procedure(router: Start) {
    let home = TempDir::new().unwrap();
    let mut servers: Vec<_> = (0..3).map(|_| vec![Memcached::start(), Memcached::start()]).collect();
    let routers: Vec<_> = servers.iter().map(|pool| router(home.path(), pool)).collect();
    let replicas = [0, 1, 2].map(|replica: usize| format!("127.0.0.1:{}", routers[replica].port()));
    let fleet = Fleet::start(home, &replicas, 60).await;
    let gateways = &fleet.gateways;
    let ends = Arc::new(Notify::new());
    let (address, to, end) = (fleet.agent.address, fleet.target.clone(), Arc::clone(&ends));
    let user = tokio::spawn(async move {
        let mut refused = Vec::new();
        for opened in 0.. {
            let mut stream = proxy::dial(address).await.unwrap();
            let head = proxy::connect(&mut stream, &to, None).await.unwrap();
            if head.status != 200 {
                refused.push(format!("tunnel {opened}: {}\n{}", head.status, head.fields));
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
                () = end.notified() => break,
            }
        }
        refused
    });
    for (replica, pool) in servers.iter_mut().enumerate() {
        eventually("the next replica may be replaced", async || {
            gateways.iter().all(|gateway| next_replica(gateway).starts_with("yes")).then_some(())
        })
        .await;
        if replica == 2 {
            pool[0].kill(); // the router answers for the other
            eventually("it may not while one lacks a server", async || {
                let no = "no: one of the three does not answer, lacks servers";
                gateways.iter().all(|gateway| next_replica(gateway).starts_with(no)).then_some(())
            })
            .await;
        }
        pool.iter_mut().for_each(Memcached::kill);
        pool.iter_mut().for_each(Memcached::launch);
        fleet.replay(20 * replica..20 * (replica + 1)).await;
        eventually("the gateways have found out", async || {
            (sum(gateways, "postern_store_buckets_lacking").await > 0).then_some(())
        })
        .await;
        if replica == 2 {
            break; // the next mark follows within a minute, which nothing waits for any more
        }
        let whole = async {
            while sum(gateways, "postern_store_buckets_lacking").await > 0 {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(90), whole).await.expect("the next mark");
    }
    ends.notify_one();
    let refused = user.await.unwrap();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Returns the line of `postern status URL` about the next replica.
fn next_replica(gateway: &Daemon) -> String {
    let said = run(["status", &format!("http://{}", gateway.admin)]);
    let answer = said.stdout.split_once("the next replica may be replaced: ");
    answer.unwrap_or_else(|| panic!("{said:?}")).1.to_owned()
}

/// Returns which of the three replicas are away, by a gateway's metric.
async fn away(gateway: &Daemon) -> [u64; 3] {
    let metrics = admin::Metrics::of(gateway.admin).await;
    ["1", "2", "3"]
        .map(|replica| metrics.value(&format!("postern_store_replicas_away{{replica=\"{replica}\"}}")))
}

/// A metric, summed over gateways.
async fn sum(gateways: &[Daemon], series: &str) -> u64 {
    let mut sum = 0;
    for gateway in gateways {
        sum += admin::Metrics::of(gateway.admin).await.value(series);
    }
    sum
}
