//! Stopping with tunnels open: the wait is reported, a second Ctrl-C ends it at once, and a tunnel that is cut does
//! not look as if it had ended by itself.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::process::Postern;
use crate::support::up::Up;
use crate::support::{eventually, proxy, target, tokens};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// "At once", on a busy machine: a third of the deadline that the second signal cuts short.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_up_reports_what_it_waits_for_and_a_second_one_ends_it() {
    let home = TempDir::new().unwrap();
    let system = Up::start(home.path());
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        tunnels.push(open_tunnel(system.ports.client, None).await);
    }
    system.process.signal("INT");
    expect_line(&system.process, &["3", "tunnel"]).await;
    ends_at_once(system.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_of_a_gateway_reports_what_it_waits_for_and_a_second_one_ends_it() {
    let fleet = Fleet::ready("30s").await;
    let token = tokens::mint(&fleet.issuer.http(), &fleet.gateway.http(), 1).remove(0);
    let _tunnel = open_tunnel(fleet.gateway.address, Some(&token)).await;
    fleet.gateway.process.signal("TERM");
    expect_line(&fleet.gateway.process, &["1", "tunnel"]).await;
    ends_at_once(fleet.gateway.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_says_that_what_was_open_has_ended() {
    for _ in 0..3 {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let mut stream = TcpStream::connect(issuer.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap(); // the drain waits a moment for the rest
        issuer.process.signal("TERM");
        expect_line(&issuer.process, &["waiting for open connections"]).await;
        let _ = stream.write_all(b"Host: localhost\r\n\r\n").await; // the moment may be over
        let ended = issuer.process.ended();
        ended.assert_stopped();
        assert!(ended.stderr.contains("everything that was open has ended by itself"), "{}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_notices_that_a_second_ctrl_c_cut_its_tunnel() {
    for kind in [&["--proxytunnel"][..], &[]] {
        let home = TempDir::new().unwrap();
        let system = Up::start(home.path());
        let curl = Curl::begun(home.path(), system.ports.client, kind).await;
        system.process.signal("INT");
        system.process.signal("INT");
        curl.assert_failed(kind);
        system.process.ended().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_notices_that_a_gateways_deadline_cut_its_tunnel() {
    for kind in [&["--proxytunnel"][..], &[]] {
        let fleet = Fleet::ready("1s").await;
        let config = client_config(fleet.home.path(), &fleet.gateway.http(), &fleet.issuer.http(), None);
        let agent = Daemon::ready("client", &config).await;
        let curl = Curl::begun(fleet.home.path(), agent.address, kind).await;
        fleet.gateway.process.signal("TERM");
        curl.assert_failed(kind);
        fleet.gateway.process.ended().assert_stopped();
        agent.process.terminate().assert_stopped();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_notices_that_the_agents_deadline_cut_its_tunnel() {
    let fleet = Fleet::ready("1s").await;
    let config = client_config(fleet.home.path(), &fleet.gateway.http(), &fleet.issuer.http(), None);
    let text = std::fs::read_to_string(&config).unwrap() + "[drain]\ndeadline = \"1s\"\n";
    std::fs::write(&config, text).unwrap();
    let agent = Daemon::ready("client", &config).await;
    let curl = Curl::begun(fleet.home.path(), agent.address, &["--proxytunnel"]).await;
    agent.process.signal("TERM");
    curl.assert_failed(&["--proxytunnel"]);
    agent.process.ended().assert_stopped();
}

/// An issuer and a gateway.
struct Fleet {
    issuer: Daemon,
    gateway: Daemon,
    home: TempDir,
}

impl Fleet {
    async fn ready(deadline: &str) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let drain = format!("[drain]\ndeadline = \"{deadline}\"\n");
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", &drain);
        let gateway = Daemon::ready("gateway", &config).await;
        Self { issuer, gateway, home }
    }
}

/// A tunnel that has carried bytes.
async fn open_tunnel(proxy: SocketAddr, token: Option<&str>) -> BufReader<TcpStream> {
    let echo = target::echo().await.to_string();
    let mut stream = proxy::dial(proxy).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, &echo, token).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"before").await.unwrap();
    stream
}

/// Waits for a line on stderr with all of `words`, which comes before the deadline does.
async fn expect_line(process: &Postern, words: &[&str]) {
    let began = Instant::now();
    loop {
        let (_, stderr) = process.written();
        if let Some(line) = stderr.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            println!("{line}");
            return;
        }
        assert!(began.elapsed() < AT_ONCE, "no line with {words:?} within {AT_ONCE:?}, but {stderr:?}");
        tokio::time::sleep(crate::support::TICK).await;
    }
}

fn ends_at_once(process: Postern) {
    let asked = Instant::now();
    process.signal("INT");
    process.ended().assert_stopped();
    assert!(asked.elapsed() < AT_ONCE, "it ended {:?} after the second signal", asked.elapsed());
}

/// curl in the middle of a download that has no stated length: only the end of the connection shows whether it is
/// complete.
struct Curl {
    child: Child,
}

impl Curl {
    async fn begun(home: &Path, proxy: SocketAddr, kind: &[&str]) -> Self {
        let out = home.join("download");
        let _ = std::fs::remove_file(&out); // of a run before
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--no-buffer", "--max-time", "60", "--noproxy", ""]);
        command.args(["--proxy", &format!("http://{proxy}")]).args(kind).arg("--output").arg(&out);
        command.arg(format!("http://{}/", target::lines(usize::MAX, Duration::from_millis(50)).await));
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("curl has the first lines", || async {
            std::fs::metadata(&out).ok().filter(|file| file.len() > 20).map(drop)
        })
        .await;
        Self { child }
    }

    /// Waits for its end, and requires the exit code of an incomplete transfer.
    fn assert_failed(self, kind: &[&str]) {
        let ended = tokio::task::block_in_place(|| self.child.wait_with_output().unwrap());
        let output = String::from_utf8_lossy(&ended.stderr);
        println!("curl {kind:?}: {:?}, {}", ended.status.code(), output.trim());
        assert_eq!(
            ended.status.code().map(|code| code != 0),
            Some(true),
            "curl {kind:?} took a cut tunnel for whole"
        );
    }
}
