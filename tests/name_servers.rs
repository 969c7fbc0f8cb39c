//! A system whose parts know each other by name, while name servers are down. The system's resolver waits for one of them, each
//! time, longer than an attempt to connect may take.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config, with_memcacheds};
use crate::support::memcached::Memcached;
use crate::support::{eventually, proxy, target};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tempfile::TempDir;

/// A name server: every name is 127.0.0.1, for no time.
struct NameServer {
    address: SocketAddr,
    answers: Arc<AtomicBool>,
    questions: Arc<AtomicUsize>,
}

impl NameServer {
    /// On an address of its own, for resolv.conf can name no port.
    fn start(address: &str, answers: bool) -> Self {
        let socket = UdpSocket::bind((address, 53)).unwrap();
        let address = socket.local_addr().unwrap();
        let (answers, questions) = (Arc::new(AtomicBool::new(answers)), Arc::default());
        let shared = (Arc::clone(&answers), Arc::clone(&questions));
        std::thread::spawn(move || serve(&socket, &shared.0, &shared.1));
        Self { address, answers, questions }
    }

    fn asked(&self) -> usize {
        self.questions.load(SeqCst)
    }
}

/// RFC 1035, section 4.
fn serve(socket: &UdpSocket, answers: &AtomicBool, questions: &AtomicUsize) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        questions.fetch_add(1, SeqCst);
        let name = query[12..length].iter().position(|byte| *byte == 0);
        let (true, Some(end)) = (answers.load(SeqCst), name.map(|end| 12 + end + 5)) else { continue };
        let is_a = query[end - 4..end] == [0, 1, 0, 1];
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
        answer.extend(&query[12..end]);
        if is_a {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
        }
        let _ = socket.send_to(&answer, from);
    }
}

/// Starts a daemon to which these name servers are the system's, and /etc/hosts is empty.
fn started(kind: &str, config: &Path, servers: [&NameServer; 2]) -> Daemon {
    let home = config.parent().unwrap();
    let lines = servers.map(|server| format!("nameserver {}\n", server.address.ip())).concat();
    // Longer than an attempt, and shorter than without a word, which is 5 s, twice.
    std::fs::write(home.join("resolv.conf"), lines + "options timeout:4 attempts:1\n").unwrap();
    std::fs::write(home.join("hosts"), "").unwrap();
    let mut program = Command::new("unshare");
    let mounts = "mount --bind resolv.conf /etc/resolv.conf && mount --bind hosts /etc/hosts && exec \"$@\"";
    program.args(["--mount", "sh", "-c", &format!("cd \"$0\" && {mounts}")]).arg(home);
    Daemon::started_by(program, kind, config)
}

/// The same address, of which the host is a name.
fn named(name: &str, address: SocketAddr) -> String {
    format!("{name}.localhost:{}", address.port())
}

/// The status of one tunnel through the agent.
async fn tunnel(agent: &Daemon, target: &str) -> u16 {
    let mut stream = proxy::dial(agent.address).await.unwrap();
    proxy::connect(&mut stream, target, None).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root, for port 53 and mounts"]
async fn everything_is_reached_by_name_while_the_first_of_two_name_servers_is_down() {
    let home = TempDir::new().unwrap();
    let (down, up) = (NameServer::start("127.53.0.1", false), NameServer::start("127.53.0.2", true));
    let servers = [&down, &up];
    let (memcached, echo) = (Memcached::start(), target::echo().await);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config =
        gateway_config(home.path(), &format!("http://{}", named("issuer", issuer.address)), "", "1s", "");
    with_memcacheds(&config, &[format!("store.localhost:{}", memcached.port())]);
    let gateway = started("gateway", &config, servers);
    let urls = [("gateway", gateway.address), ("issuer", issuer.address)]
        .map(|(name, address)| format!("http://{}", named(name, address)));
    let agent = started("client", &client_config(home.path(), &urls[0], &urls[1], None), servers);
    gateway.until_ready("gateway").await;
    agent.until_ready("agent").await;
    assert_eq!(tunnel(&agent, &named("one", echo)).await, 200);
    assert!(down.asked() > 0 && up.asked() > 0);

    // Neither answers: whoever asks for a new name reads so, and nothing hangs. When one is back, so are the tunnels.
    up.answers.store(false, SeqCst);
    let refused = tunnel(&agent, &named("two", echo)).await;
    assert!(matches!(refused, 502..=504), "{refused}");
    up.answers.store(true, SeqCst);
    eventually("there are tunnels again", || async {
        (tunnel(&agent, &named("three", echo)).await == 200).then_some(())
    })
    .await;
    gateway.until_ready("gateway").await;
    agent.until_ready("agent").await;
}
