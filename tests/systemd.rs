//! A daemon's messages to systemd: a datagram socket in place of systemd's, as sd_notify(3) has it.

use crate::support::PATIENCE;
use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::process::{Postern, command};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The other end of `NOTIFY_SOCKET`.
struct Systemd {
    socket: UnixDatagram,
    /// Lines of reports.
    heard: Vec<String>,
    home: TempDir,
}

impl Systemd {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(home.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, heard: Vec::new(), home }
    }

    /// With a watchdog of four seconds.
    fn start(&self, kind: &str, config: &Path) -> Postern {
        let mut command = command([kind.as_ref(), "--config".as_ref(), config.as_os_str()]);
        command.env("NOTIFY_SOCKET", self.home.path().join("notify")).env("WATCHDOG_USEC", "4000000");
        Postern::start(command)
    }

    /// Waits until it has heard this number of lines that begin so.
    fn hears(&mut self, wanted: &str, times: usize) {
        let began = Instant::now();
        while self.heard.iter().filter(|line| line.starts_with(wanted)).count() < times {
            assert!(began.elapsed() < PATIENCE, "{wanted} is missing: {:#?}", self.heard);
            let mut bytes = [0; 4096];
            let length = self.socket.recv(&mut bytes).unwrap();
            self.heard.extend(std::str::from_utf8(&bytes[..length]).unwrap().lines().map(str::to_owned));
        }
    }
}

#[test]
fn a_daemon_reports_that_it_serves_that_it_lives_and_that_it_drains() {
    let mut systemd = Systemd::new();
    let issuer = systemd.start("issuer", &issuer_config(systemd.home.path(), ""));
    systemd.hears("READY=1", 1);
    systemd.hears("STATUS=ready", 1);
    let began = Instant::now();
    systemd.hears("WATCHDOG=1", 4);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "systemd would have restarted it: {:?}",
        began.elapsed()
    );
    let address = issuer.wait_for_address("the issuer listens on ");

    let mut systemd = Systemd::new();
    let config = gateway_config(systemd.home.path(), &format!("http://{address}"), "", "1s", "");
    let gateway = systemd.start("gateway", &config);
    for report in ["READY=1", "STATUS=ready", "WATCHDOG=1"] {
        systemd.hears(report, 1);
    }
    let mut client = TcpStream::connect(gateway.wait_for_address("the gateway listens on ")).unwrap();
    client.write_all(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n").unwrap(); // a request that is coming holds up the drain
    systemd.hears("WATCHDOG=1", 3);
    gateway.signal("TERM");
    systemd.hears("STOPPING=1", 1);
    drop(client);
    gateway.ended().assert_stopped();
    issuer.terminate().assert_stopped();
}

#[test]
fn a_gateway_that_waits_for_its_keys_gets_more_time_and_says_what_it_waits_for() {
    let mut systemd = Systemd::new();
    let config = gateway_config(systemd.home.path(), "http://127.0.0.1:9", "", "1s", "");
    let gateway = systemd.start("gateway", &config);
    systemd.hears("EXTEND_TIMEOUT_USEC=", 2);
    while !systemd
        .heard
        .iter()
        .any(|line| line.starts_with("STATUS=not ready: ") && line.contains("cannot be fetched"))
    {
        let count = systemd.heard.len();
        systemd.hears("", count + 1);
    }
    assert!(!systemd.heard.iter().any(|line| line == "READY=1"), "{:#?}", systemd.heard);
    gateway.terminate().assert_stopped();
}

/// Starts a daemon with a socket that is handed over as systemd does: descriptor 3, and two variables.
fn activated(kind: &str, config: &Path, socket: &TcpListener) -> Daemon {
    let plain = command([kind.as_ref(), "--config".as_ref(), config.as_os_str()]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Daemon::of(kind, command)
}

/// Clients connect without a pause while the gateway is replaced: each is answered, by the old one or the new one.
#[test]
fn a_gateway_that_is_replaced_under_a_socket_unit_refuses_no_client() {
    const REPLACED: usize = 20;
    let home = TempDir::new().unwrap();
    let issuer = Daemon::start("issuer", &issuer_config(home.path(), ""));
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replacen("127.0.0.1:0", &address.to_string(), 1)).unwrap();
    let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let asking = || {
            let mut answered = 0_usize;
            while !is_over.load(Ordering::Acquire) {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n").unwrap();
                let mut start = [0; 12];
                stream.read_exact(&mut start).unwrap();
                assert!(
                    start == *b"HTTP/1.1 407" || start == *b"HTTP/1.1 503",
                    "{:?}",
                    String::from_utf8_lossy(&start)
                );
                answered += 1;
                answers.fetch_add(1, Ordering::Relaxed);
            }
            answered
        };
        let mut gateway = activated("gateway", &config, &socket);
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(asking)).collect();
        for replaced in 1..=REPLACED {
            let before = answers.load(Ordering::Relaxed);
            let began = Instant::now();
            while answers.load(Ordering::Relaxed) < before + 20 {
                assert!(began.elapsed() < PATIENCE, "replacement {replaced} serves no one");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(gateway.address, address);
            gateway.process.terminate().assert_stopped();
            gateway = activated("gateway", &config, &socket);
        }
        is_over.store(true, Ordering::Release);
        let answered: Vec<usize> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        assert!(answered.iter().all(|count| *count > REPLACED), "{answered:?}");
        gateway.process.terminate().assert_stopped();
    });
}

#[test]
fn a_socket_that_nothing_listens_on_is_named() {
    let (home, socket) = (TempDir::new().unwrap(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let issuer = activated("issuer", &issuer_config(home.path(), ""), &socket);
    let sentence =
        format!("a socket that listens on {}, and nothing here does", socket.local_addr().unwrap());
    issuer.process.wait_for("the warning", |_, stderr| stderr.contains(&sentence).then_some(()));
}
