//! A gateway's system calls for a tunnel, by strace: their number, for tunnels one after the other, and that bulk is spliced.

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::{PATIENCE, eventually};
use crate::support::{process, proxy, target, tokens};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Tunnels that are opened and closed.
const TUNNELS: usize = 40;
/// The most calls of one tunnel: connect, CONNECT with a token, a byte there and back, close. What waits for events is not
/// counted, since it depends on the machine's speed.
const MOST: usize = 22;

/// A system call by which tokio checks each socket that it takes over, in development builds alone.
const ASSERTED: &str = "fcntl";

#[tokio::test]
#[ignore = "needs strace, and the right to trace"]
async fn a_tunnel_makes_few_of_them() {
    let trace = trace_of(async |gateway, issuer| {
        let target = target::echo().await.to_string();
        for token in tokens::mint(&issuer.http(), &gateway.http(), TUNNELS) {
            timeout(PATIENCE, one_tunnel(gateway, &target, &token)).await.unwrap();
        }
    })
    .await;
    let mut tunnels = calls_of_tunnels(&trace);
    assert!(tunnels.len() >= TUNNELS / 2, "{} tunnels in the trace", tunnels.len());
    tunnels.sort_by_key(Vec::len);
    let median = &tunnels[tunnels.len() / 2];
    let mut by_name = BTreeMap::<&str, usize>::new();
    median.iter().for_each(|call| *by_name.entry(call).or_default() += 1);
    assert!(median.len() <= MOST, "{} calls: {by_name:?}, in this order: {median:?}", median.len());
    eprintln!("{} calls: {by_name:?}", median.len());
}

/// Through all that stands between the two sockets.
#[tokio::test]
#[ignore = "needs strace, and the right to trace"]
async fn bulk_is_spliced() {
    const MUCH: usize = 2 << 20;
    let trace = trace_of(async |gateway, issuer| {
        let target = target::echo().await.to_string();
        let token = tokens::mint(&issuer.http(), &gateway.http(), 1).remove(0);
        let mut stream = proxy::dial(gateway.address).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &target, Some(&token)).await.unwrap().status, 200);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (sent, mut got) = (vec![7; MUCH], vec![0; MUCH]);
        let exchange =
            async { tokio::try_join!(writer.write_all(&sent), reader.read_exact(&mut got)).unwrap() };
        timeout(PATIENCE, exchange).await.unwrap();
        // The gateway's end is waited for by a thread that the target needs, too.
        writer.shutdown().await.unwrap();
        assert_eq!(timeout(PATIENCE, reader.read(&mut [0])).await.unwrap().unwrap(), 0);
    })
    .await;
    let splices = trace.lines().filter(|line| line.contains(" splice("));
    let spliced: usize = splices.filter_map(|line| line.rsplit(" = ").next()?.parse::<usize>().ok()).sum();
    // Both ways, in and out of a pipe.
    assert!(spliced > 2 * MUCH, "{spliced} bytes");
}

/// Returns strace's output for a gateway with one worker while `work` uses it, to its end.
async fn trace_of(work: impl AsyncFnOnce(&Daemon, &Daemon)) -> String {
    let home = tempfile::tempdir().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let text = std::fs::read_to_string(&config).unwrap().replace("workers = 8", "workers = 1");
    std::fs::write(&config, text).unwrap();

    let trace = home.path().join("trace");
    let gateway = Daemon::of("gateway", traced(&["gateway", "--config", config.to_str().unwrap()], &trace));
    eventually("it takes clients", || async { proxy::dial(gateway.address).await.ok() }).await;
    work(&gateway, &issuer).await;
    gateway.process.terminate().assert_stopped();
    eventually("strace has written all of it", || async {
        std::fs::read_to_string(&trace).ok().filter(|text| text.trim_end().ends_with("+++ exited with 0 +++"))
    })
    .await
}

/// The binary under test under strace, which is not its parent: signals reach the gateway itself.
fn traced(args: &[&str], trace: &Path) -> Command {
    let plain = process::command(args);
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-q", "-o"]).arg(trace).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Opens a tunnel, sends a byte there and back, and closes it. Returns when the gateway has closed it, too.
async fn one_tunnel(gateway: &Daemon, target: &str, token: &str) {
    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, target, Some(token)).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

/// The calls between each accepted connection and the next, of the thread that accepts.
fn calls_of_tunnels(trace: &str) -> Vec<Vec<&str>> {
    let calls = trace.lines().filter_map(|line| line.split_once(' '));
    let calls = calls.map(|(thread, call)| (thread, call.trim_start()));
    // With a client's address: in a drain all listeners look whether one waits.
    let accepts = |call: &str| call.starts_with("accept4(") && call.contains("sa_family");
    // The admin listener's thread accepts, too: readiness is not asked of it here.
    let (worker, _) = calls.clone().rfind(|(_, call)| accepts(call)).unwrap();
    let mut tunnels: Vec<Vec<&str>> = Vec::new();
    for (_, call) in calls.filter(|(thread, _)| *thread == worker) {
        if accepts(call) {
            tunnels.push(Vec::new());
        }
        let name = call.split('(').next().unwrap_or_default();
        if let Some(tunnel) = tunnels.last_mut()
            && call.contains('(')
            && !["epoll_wait", ASSERTED].contains(&name)
        {
            tunnel.push(name);
        }
    }
    tunnels.pop(); // the end of the gateway is in the last one
    tunnels
}
