//! Every check and every spend leaves in one send, and those that come together share one: counted by strace, at a real memcached.
//!
//! In two writes a command can wait 40 ms for an acknowledgement, or be cut where the connection breaks.

use crate::support::{Server, begun, fresh, options, pipelined, pooled};
use postern_spend::memcached::{Memcached, Options, Transport};
use postern_spend::{Hint, Spend, SpendStore};
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;

/// The traced process's task: the transport and the callers, as in `pipelined one-by-one PORT`.
const TASK: &str = "POSTERN_ONE_SEND";
/// Requests one after the other: half of them checks, half spends.
const REQUESTS: usize = 400;
/// Callers at once.
const CALLERS: usize = 64;

/// The process that the tests below run under strace.
#[test]
#[ignore = "run by another test"]
fn traced() {
    let task = std::env::var(TASK).expect("the tests below set it");
    let words: Vec<&str> = task.split(' ').collect();
    let [transport, callers, port] = words[..] else { panic!("{task}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let transport = if transport == "pipelined" { pipelined() } else { pooled(CALLERS) };
    runtime.block_on(speak(transport, callers == "at-once", port.parse().unwrap()));
}

async fn speak(transport: Transport, at_once: bool, port: u16) {
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    // The mark is planted when the epoch begins, and the watch is silent from then on.
    let interval = Duration::from_secs(3600);
    let store = Memcached::open(Options { interval, ..options(vec![address], transport) }).unwrap();
    let (client, epoch) = begun(&store).await;
    if !at_once {
        for _ in 0..REQUESTS / 2 {
            let key = fresh(&epoch);
            assert_eq!(client.check(&key, &epoch).await, Ok(Hint::NotFound));
            assert_eq!(client.spend(&key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted));
        }
        return;
    }
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move { client.check(&fresh(&epoch), &epoch).await });
    }
    assert!(callers.join_all().await.iter().all(|seen| *seen == Ok(Hint::NotFound)));
}

/// Runs a task under strace; each send to memcached as strace prints its bytes.
fn sends(task: &str) -> Vec<String> {
    let server = Server::tcp(&[]);
    let trace = tempfile::NamedTempFile::new().unwrap();
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-s", "65536", "-e", "trace=network,write,writev,close", "-o"]).arg(trace.path());
    command
        .arg(this)
        .args(["--ignored", "--exact", "one_send::traced"])
        .env(TASK, format!("{task} {}", server.port()));
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.expect("strace can be run (apt-get install strace)");
    assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
    sends_to(server.port(), &std::fs::read_to_string(trace.path()).unwrap())
}

/// Returns the beginning of each send on the descriptors connected to `port`: strace prints a call that another thread's
/// interrupts in two lines, with the bytes in the first.
fn sends_to(port: u16, trace: &str) -> Vec<String> {
    let mut connected = HashSet::new();
    let mut sends = Vec::new();
    for line in trace.lines() {
        let call = line.split_once(' ').unwrap().1.trim_start();
        let Some((name, arguments)) = call.split_once('(') else { continue };
        let descriptor = arguments.split([',', ')', ' ']).next().unwrap().to_owned();
        match name {
            "connect" if arguments.contains(&format!("htons({port})")) => {
                connected.insert(descriptor);
            }
            "close" => {
                connected.remove(&descriptor);
            }
            "write" | "writev" | "sendto" | "sendmsg" | "sendmmsg" if connected.contains(&descriptor) => {
                sends.push(arguments.split_once('"').map_or("", |(_, bytes)| bytes).to_owned());
            }
            _ => {}
        }
    }
    sends
}

/// Those of callers: the watch sends whole batches, what it reads to see whether the store answers, and records in order, to see
/// whether a router parts buckets.
fn of_callers(sends: &[String]) -> Vec<&String> {
    let is_watch = |send: &&String| {
        send.starts_with("stats settings")
            || send.starts_with("gets ")
            || send.contains("ordered")
            || send.contains("pp1.")
            || send.contains("po1.")
            || send.matches("|#|").count() > 64
    };
    sends.iter().filter(|send| !is_watch(send)).collect()
}

/// Counts the checks and spends in one send, which must begin and end with them. A `get` may be the checks of several
/// callers; a spend is an `add` and the `get` of what witnesses for it.
fn requests(send: &str) -> usize {
    let bytes = send.split_once('"').map_or(send, |(bytes, _)| bytes);
    let lines: Vec<&str> = bytes.split_inclusive(r"\r\n").collect();
    let keys = |line: &str| {
        let words = line.strip_prefix("get ").and_then(|keys| keys.strip_suffix(r"\r\n"));
        let mut keys = words.map(|words| words.split(' ')).into_iter().flatten();
        keys.try_fold(0, |count, key| (key.len() == 30 && key.starts_with('|')).then_some(count + 1))
    };
    let (mut count, mut lines) = (0, lines.into_iter());
    while let Some(line) = lines.next() {
        let read = if line.starts_with("add |") && line.split(' ').count() == 5 {
            let value = lines.next().filter(|value| value.len() == 7 + 4 && value.ends_with(r"\r\n"));
            // The pool's client writes a `get` for each key.
            let mut witness = value.and(lines.next()).and_then(keys);
            if witness == Some(1) {
                witness = lines.next().and_then(keys).map(|more| 1 + more);
            }
            witness.filter(|witness| *witness == 2).map(|_| 1)
        } else {
            keys(line)
        };
        match read {
            Some(read) if read > 0 => count += read,
            _ => panic!("a send that is no whole request: {bytes}"),
        }
    }
    count
}

#[test]
#[ignore = "needs strace, and the right to trace"]
fn a_request_is_one_send() {
    for transport in ["pipelined", "pooled"] {
        let sends = sends(&format!("{transport} one-by-one"));
        let sends = of_callers(&sends);
        let several: Vec<_> = sends.iter().filter(|send| requests(send) != 1).collect();
        assert!(several.is_empty(), "{transport}: {several:?}");
        assert_eq!(sends.len(), REQUESTS, "{transport}: sends for {REQUESTS} requests");
    }
}

#[test]
#[ignore = "needs strace, and the right to trace"]
fn callers_at_once_share_sends_where_they_share_a_connection() {
    for (transport, most) in [("pipelined", CALLERS / 8), ("pooled", CALLERS)] {
        let sends = sends(&format!("{transport} at-once"));
        let sends = of_callers(&sends);
        let sum: usize = sends.iter().map(|send| requests(send)).sum();
        assert_eq!(sum, CALLERS, "{transport}");
        assert!(sends.len() <= most, "{transport}: {} sends for {CALLERS} checks", sends.len());
        eprintln!("{transport}: {} sends for {CALLERS} checks at once", sends.len());
    }
}
