//! What systemd reads of a daemon that it started: a datagram socket in place of systemd's, as sd_notify(3) has it.

use crate::support::PATIENCE;
use crate::support::daemon::{gateway_config, issuer_config};
use crate::support::process::{Postern, command};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
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
