//! Signals reach the whole process, so one test has them all.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in #[test] functions, not in the functions they call

use postern_daemon::drain::Shutdown;
use std::process::Command;
use std::time::Duration;

fn send(signal: &str) {
    let sent = Command::new("kill").args([signal, &std::process::id().to_string()]).status().unwrap();
    assert!(sent.success());
}

async fn soon<F: Future>(event: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("nothing happened in 20 s")
}

#[tokio::test]
async fn hangup_reloads_terminate_drains_and_a_second_one_stops() {
    let shutdown = Shutdown::new();
    let mut reloads = shutdown.reloads();
    shutdown.on_signals().unwrap();

    send("-HUP");
    soon(reloads.next()).await;
    assert!(!shutdown.is_draining());

    let open = shutdown.tracker().token();
    send("-TERM");
    soon(shutdown.draining()).await;
    let mut stopped = Box::pin(shutdown.stopped());
    assert!(
        tokio::time::timeout(Duration::from_millis(100), &mut stopped).await.is_err(),
        "one signal only drains"
    );

    send("-INT");
    soon(stopped).await;
    drop(open);
}
