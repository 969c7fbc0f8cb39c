//! The agent of a real system: one token a tunnel, none twice across kills, and TLS everywhere.

use crate::support::admin::{self, Metrics, metrics_when};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::tls::Authority;
use crate::support::up::{Ports, Up};
use crate::support::{PATIENCE, eventually, proxy, target, tokens};
use postern_testkit::dialogue::{self, Proxy};
use postern_testkit::ports;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Values of Proxy-Authorization for the rows of plain HTTP at the gateway.
static TOKENS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The agent's high water by default.
const FULL: u64 = 128;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_of_each_kind_spend_a_hundred_tokens() {
    let home = TempDir::new().unwrap();
    let ports = Ports::held();
    let system = Up::start_on(home.path(), ports);
    let (echo, web) = (target::echo().await, target::web(Ipv4Addr::LOCALHOST).await);
    metrics_when(ports.admin, "the wallet is full", |metrics| metrics.wallet() == FULL).await;

    for request in 0..100 {
        let mut stream = proxy::dial(ports.client).await.unwrap();
        match request % 3 {
            0 => {
                let head = proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap();
                assert_eq!(head.status, 200, "{head:?}");
                proxy::echoes(&mut stream, b"through CONNECT").await.unwrap();
            }
            1 => {
                let response = proxy::get(&mut stream, &web.to_string(), None).await.unwrap();
                assert_eq!((response.status, response.body.as_str()), (200, target::PAGE), "{response:?}");
            }
            _ => {
                let reply = proxy::socks(&mut stream, &echo.ip().to_string(), echo.port()).await.unwrap();
                assert_eq!(reply, 0);
                proxy::echoes(&mut stream, b"through SOCKS5").await.unwrap();
            }
        }
    }

    // The hundredth leaves less than the low water, so more may be minted by now. Every token is kept or spent.
    let kept_or_spent = |now: &Metrics| now.issued() == now.wallet() + 100;
    let after = metrics_when(ports.admin, "issued = kept + 100", kept_or_spent).await;
    assert_eq!((after.requests("opened"), after.agent_requests("opened")), (100, 100));
    assert_eq!((after.requests("already_spent"), after.requests("bad_signature")), (0, 0));
    system.terminate().assert_stopped();
    let kept = tokens::in_wallet(&home.path().join("wallet")).len() as u64;

    let again = Up::start_on(home.path(), ports);
    let records = "the spent records are counted";
    let restarted = metrics_when(ports.admin, records, |now| now.value("postern_spent_records") > 0).await;
    assert_eq!((restarted.value("postern_spent_records"), restarted.wallet()), (100, kept));
    again.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_in_the_middle_never_presents_a_token_twice() {
    const REQUESTS: usize = 300;
    const WORKERS: usize = 8;
    const KILLS: usize = 6;
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let config = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let echo = target::echo().await.to_string();

    let mut agent = Daemon::ready("client", &config).await;
    let (address, done) = (watch::Sender::new(Some(agent.address)), watch::Sender::new(0));
    let (address, done, broken) = (Arc::new(address), Arc::new(done), Arc::new(AtomicUsize::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (address, done, broken, echo) = (address.clone(), done.clone(), broken.clone(), echo.clone());
        workers.spawn(async move {
            while *done.borrow() < REQUESTS {
                let agent = address.subscribe().wait_for(Option::is_some).await.unwrap().unwrap();
                // An agent that was just killed refuses connections; its successor is not known yet.
                let Ok(stream) = proxy::dial(agent).await else { continue };
                match tunnel(stream, &echo).await {
                    Ok(()) => done.send_modify(|done| *done += 1),
                    Err(_) => drop(broken.fetch_add(1, Ordering::Relaxed)),
                }
            }
        });
    }
    for kill in 1..=KILLS {
        let reached = kill * REQUESTS / (KILLS + 1);
        let mut progress = done.subscribe();
        // The guard from `wait_for` holds a lock that the workers need, so it must be dropped here.
        let waited = tokio::time::timeout(PATIENCE, progress.wait_for(|done| *done >= reached)).await.is_ok();
        assert!(waited, "fewer than {reached} tunnels");
        agent.kill();
        address.send_replace(None);
        agent = Daemon::ready("client", &config).await;
        address.send_replace(Some(agent.address));
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    let metrics = Metrics::of(gateway.admin).await;
    println!(
        "{} tunnels, {} broken off by {KILLS} kills",
        metrics.requests("opened"),
        broken.load(Ordering::Relaxed)
    );
    assert!(broken.load(Ordering::Relaxed) >= KILLS, "the kills met no traffic");
    assert!(metrics.requests("opened") >= REQUESTS as u64);
    assert_eq!(metrics.requests("already_spent"), 0, "a token was presented twice");
    agent.process.terminate().assert_stopped();
}

/// A tunnel through the agent at the other end of `stream`, used once.
async fn tunnel(mut stream: BufReader<TcpStream>, target: &str) -> std::io::Result<()> {
    let head = proxy::connect(&mut stream, target, None).await?;
    if head.status != 200 {
        return Err(std::io::Error::other(format!("{head:?}")));
    }
    proxy::echoes(&mut stream, b"once").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn separate_daemons_speak_tls_to_each_other() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &authority.section())).await;
    let ca = format!("ca = {:?}", authority.ca);
    let config = gateway_config(home.path(), &issuer.https(), &ca, "1s", &authority.section());
    let gateway = Daemon::ready("gateway", &config).await;
    let config = client_config(home.path(), &gateway.https(), &issuer.https(), Some(&authority.ca));
    let agent = Daemon::ready("client", &config).await;
    let target = target::tls_echo(authority.server()).await;
    let connector = TlsConnector::from(authority.client());

    for _ in 0..10 {
        let mut stream = proxy::dial(agent.address).await.unwrap();
        let head = proxy::connect(&mut stream, &target.to_string(), None).await.unwrap();
        assert_eq!(head.status, 200, "{head:?}");
        let name = "localhost".try_into().unwrap();
        let mut secure = BufReader::new(connector.connect(name, stream).await.unwrap());
        proxy::echoes(&mut secure, b"end to end, inside the gateway's own TLS").await.unwrap();
    }
    let metrics = Metrics::of(gateway.admin).await;
    assert_eq!((metrics.requests("opened"), metrics.requests("already_spent")), (10, 0));

    // A client that does not trust the authority fails with that reason, and sends nothing.
    let stranger = TempDir::new().unwrap();
    let config = client_config(stranger.path(), &gateway.https(), &issuer.https(), None);
    let stranger = Daemon::start("client", &config);
    let mut stream = proxy::dial(stranger.address).await.unwrap();
    let response = proxy::get(&mut stream, &target.to_string(), None).await.unwrap();
    assert_eq!(response.status, 502, "{response:?}");
    assert!(response.body.contains("certificate"), "{response:?}");

    for daemon in [agent, gateway, issuer] {
        daemon.process.terminate().assert_stopped();
    }
}

/// A web page that requests one name again and again, and then names that it makes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_cannot_burn_the_account() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let config = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("[wallet]\n", "[wallet]\nmost_per_minute = 6\n")).unwrap();
    let agent = Daemon::ready("client", &config).await;
    let request = async |name: &str| {
        let mut stream = proxy::dial(agent.address).await.unwrap();
        proxy::connect(&mut stream, &format!("{name}.invalid:443"), None).await.unwrap().status
    };
    let sent = async || {
        let metrics = Metrics::of(agent.admin).await;
        metrics.value("postern_agent_tokens_total{fate=\"target_failed\",hop=\"last\"}")
    };

    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(request("one").await, 502);
    }
    let (one, forgotten) = (sent().await, began.elapsed().as_secs() / 5);
    assert!((1..=1 + forgotten).contains(&one), "{one} tokens for one name");

    let mut statuses = Vec::new();
    for number in 0..20 {
        statuses.push(request(&format!("name{number}")).await);
    }
    assert!(statuses.iter().all(|status| [502, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    let (all, regained) = (sent().await, began.elapsed().as_secs() / 10);
    assert!((one + 1..=6 + regained).contains(&all), "{all} tokens: {statuses:?}");
    agent
        .process
        .wait_for("the warning", |_, log| log.contains("most_per_minute allows (6, half").then_some(()));
}

/// Its configuration names its own port as the gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_gateway_is_itself_says_so() {
    let (home, own) = (TempDir::new().unwrap(), format!("127.0.0.1:{}", ports::free()));
    let config = client_config(home.path(), &format!("http://{own}"), "http://127.0.0.1:9", None);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replacen("127.0.0.1:0", &own, 1)).unwrap();
    let agent = Daemon::start("client", &config);
    eventually("readiness says so", || async {
        let (status, body) = admin::get(agent.admin, "/readyz").await?;
        let said = "this is an agent, which pays with tokens of its own: give the gateway's address";
        (status == 503 && body.contains(said)).then_some(())
    })
    .await;
}

/// The user of an agent has no token in hand: the words of the gateway's refusals fit them, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_a_user_reads_needs_no_token_in_hand() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let agent =
        Daemon::ready("client", &client_config(home.path(), &gateway.http(), &issuer.http(), None)).await;
    let mut stream = proxy::dial(agent.address).await.unwrap();
    let refused = proxy::get(&mut stream, &ports::closed().to_string(), None).await.unwrap();
    assert_eq!(refused.status, 502, "{refused:?}");
    let said = "The target refused the connection.\nCheck the target, or try again. This attempt has spent its token.\n";
    assert_eq!(refused.body, said);
}

/// RFC 9110 and 9112: the rows that the libraries' own tests hold, at the programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_programs_do_what_a_proxy_owes_plain_http() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let agent =
        Daemon::ready("client", &client_config(home.path(), &gateway.http(), &issuer.http(), None)).await;
    dialogue::hold(Proxy { address: agent.address, admission: String::new }, dialogue::rows()).await;
    *TOKENS.lock().unwrap() = tokens::mint(&issuer.http(), &gateway.http(), 1_000);
    let admission =
        || format!("Proxy-Authorization: {}\r\n", TOKENS.lock().unwrap().pop().expect("tokens are left"));
    dialogue::hold(Proxy { address: gateway.address, admission }, dialogue::rows()).await;
}
