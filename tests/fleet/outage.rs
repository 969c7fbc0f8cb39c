//! A store that is not there at the start, and one that freezes: quick answers, no pile-up, recovery without help.

use super::driver::{Route, config};
use super::minted::Turn;
use crate::support::admin::Metrics;
use crate::support::daemon::Daemon;
use crate::support::memcached::Memcached;
use crate::support::proxy::{Head, connect, dial};
use crate::support::{admin, eventually, target};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// The gateway promises a second; a busy machine may take longer.
const SOON: Duration = Duration::from_secs(5);
const CROWD: usize = 200;
/// Tokens for what comes after a crowd.
const FRESH: usize = 200;
/// A token that is never verified while there is no store.
const NO_TOKEN: &str = "PrivateToken token=\"AAAA\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_down_at_the_start_is_used_as_soon_as_it_is_there() {
    let turn = Turn::take().await;
    for transport in ["pipelined", "pooled"] {
        let home = TempDir::new().unwrap();
        let mut server = Memcached::absent();
        let route = Route::to(&[server.address()], transport, "");
        let config = config(&turn, home.path(), 0, &route);
        // It would take no clients for ten seconds, and this tests what it answers them.
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replacen("[listen]\n", "[listen]\npatience = \"0s\"\n", 1)).unwrap();
        let gateway = Daemon::start("gateway", &config);
        let target = target::echo().await;
        eventually("the keys are read, and only the store is missing", || async {
            let (status, page) = admin::get(gateway.admin, "/readyz").await?;
            assert_eq!(status, 503, "{page}");
            let is_missed = page.contains("store: the double-spend store failed or could not be reached");
            (is_missed && !page.contains("keys: ")).then_some(())
        })
        .await;

        let (head, took) = ask(gateway.address, target, NO_TOKEN).await;
        println!("{transport}: without a store answered {} after {took:.1?}", head.status);
        assert_unavailable(&head, "could not be reached");
        assert!(took < SOON, "{took:?}");

        server.launch();
        let back = Instant::now();
        eventually("the gateway is ready", || async {
            admin::get(gateway.admin, "/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
        println!("{transport}: ready {:.2?} after the store's start", back.elapsed());
        assert!(back.elapsed() < SOON);
        let token = turn.mint(&gateway, 1).remove(0);
        let (head, _) = ask(gateway.address, target, &token).await;
        assert_eq!(head.status, 200, "{head:?}");
        let (head, _) = ask(gateway.address, target, &token).await;
        assert!(head.says_spent(), "{head:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_store_piles_nothing_up_and_is_used_again_when_it_moves() {
    let turn = Turn::take().await;
    for transport in ["pipelined", "pooled"] {
        let home = TempDir::new().unwrap();
        let server = Memcached::start();
        let route = Route::to(&[server.address()], transport, "");
        let gateway = Daemon::ready("gateway", &config(&turn, home.path(), 0, &route)).await;
        let target = target::echo().await;
        let tokens = turn.mint(&gateway, 2 * CROWD + FRESH);
        let (head, _) = ask(gateway.address, target, &tokens[0]).await;
        assert_eq!(head.status, 200, "{head:?}");

        server.freeze();
        let (heads, longest) = crowd(&tokens, gateway.address, target).await;
        println!("{transport}: {CROWD} at once at a frozen store, the last answer after {longest:.1?}");
        assert!(heads.iter().all(|head| head.status == 503), "{heads:?}");
        assert!(longest < SOON, "{longest:?}");
        // Each of them waited for the deadline, or came after those that did. Now none waits.
        let (heads, longest) = crowd(&tokens, gateway.address, target).await;
        println!("{transport}: and {CROWD} more, the last answer after {longest:.1?}");
        assert!(heads.iter().all(|head| head.status == 503), "{heads:?}");
        // Refused without being sent, by the store, or before, by a gateway that knows that the store does not answer.
        let metrics = Metrics::of(gateway.admin).await;
        let sent = ["stored", "server_error", "timed_out", "broken"].map(|result| {
            metrics.value(&format!("postern_store_commands_total{{command=\"add\",result=\"{result}\"}}"))
        });
        assert_eq!(sent[0], 1, "before it froze");
        assert!(sent.iter().sum::<u64>() <= 1 + u64::try_from(CROWD).unwrap(), "{sent:?}");

        server.thaw();
        let back = Instant::now();
        let next = AtomicUsize::new(1 + CROWD);
        eventually("a token opens a tunnel", || async {
            // There is not a token for each attempt: none is presented before the gateway would read it.
            let (head, _) = ask(gateway.address, target, NO_TOKEN).await;
            if head.status == 503 {
                return None;
            }
            let token = &tokens[next.fetch_add(1, Ordering::Relaxed)];
            let (head, _) = ask(gateway.address, target, token).await;
            (head.status == 200).then_some(())
        })
        .await;
        println!("{transport}: admits again {:.2?} after the store moves", back.elapsed());
        assert!(back.elapsed() < SOON);
        let ready = admin::get(gateway.admin, "/readyz").await.unwrap();
        println!("{transport}: then /readyz is {ready:?}");
    }
}

/// Many presentations of different tokens at once: the answers, and how long the longest took.
async fn crowd(tokens: &[String], gateway: SocketAddr, target: SocketAddr) -> (Vec<Head>, Duration) {
    let mut asking = JoinSet::new();
    for token in &tokens[1..=CROWD] {
        let token = token.clone();
        asking.spawn(async move { ask(gateway, target, &token).await });
    }
    let answers = asking.join_all().await;
    let longest = answers.iter().map(|(_, took)| *took).max().unwrap();
    (answers.into_iter().map(|(head, _)| head).collect(), longest)
}

/// The answer to a presentation, and how long it took.
async fn ask(gateway: SocketAddr, target: SocketAddr, token: &str) -> (Head, Duration) {
    let began = Instant::now();
    let mut stream = dial(gateway).await.unwrap();
    let head = connect(&mut stream, &target.to_string(), Some(token)).await.unwrap();
    (head, began.elapsed())
}

fn assert_unavailable(head: &Head, details: &str) {
    assert_eq!(head.status, 503, "{head:?}");
    assert!(head.value("retry-after").is_some(), "{head:?}");
    assert!(head.value("proxy-status").is_some_and(|status| status.contains(details)), "{head:?}");
}
