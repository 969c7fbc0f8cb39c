//! A real memcached process.

use crate::ports;
use crate::signal::signal;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};
use tokio_rustls::rustls::RootCertStore;

/// Maximum time to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A memcached process, killed when dropped.
pub struct Server {
    child: Child,
    args: Vec<String>,
    at: At,
}

enum At {
    Port(u16),
    Socket(PathBuf),
}

impl Server {
    /// Starts a server on a free port that stores no more records when it is full.
    pub fn tcp(more: &[&str]) -> Self {
        Self::start(At::Port(ports::free()), more)
    }

    /// Starts a server on a free port that evicts records when it is full.
    pub fn evicting(more: &[&str]) -> Self {
        Self::start_with(At::Port(ports::free()), more)
    }

    /// Starts a server on this port.
    pub fn tcp_on(port: u16) -> Self {
        Self::start(At::Port(port), &[])
    }

    /// Starts a TLS-only server on a free port, with a certificate for memcached.example. Returns it with the roots to trust.
    pub fn tls(directory: &Path) -> (Self, RootCertStore) {
        let own = rcgen::generate_simple_self_signed(["memcached.example".to_owned()]).unwrap();
        let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
        std::fs::write(&certificate, own.cert.pem()).unwrap();
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let files = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).unwrap();
        (Self::tcp(&["-Z", "-o", &files]), roots)
    }

    /// Starts a server on a Unix socket in `directory`.
    pub fn unix(directory: &Path) -> Self {
        Self::start(At::Socket(directory.join("memcached.sock")), &[])
    }

    fn start(at: At, more: &[&str]) -> Self {
        Self::start_with(at, &[&["-M"], more].concat())
    }

    fn start_with(at: At, more: &[&str]) -> Self {
        let args: Vec<String> = more.iter().map(|&arg| arg.to_owned()).collect();
        let mut server = Self { child: spawn(&at, &args), args, at };
        server.answers();
        server
    }

    /// Returns the address as in a gateway's configuration: `HOST:PORT`, or `unix:PATH`.
    pub fn address<T: FromStr<Err: Debug>>(&self) -> T {
        match &self.at {
            At::Port(port) => format!("127.0.0.1:{port}"),
            At::Socket(path) => format!("unix:{}", path.display()),
        }
        .parse()
        .unwrap()
    }

    /// Returns the port. Panics if the server listens on a Unix socket.
    pub fn port(&self) -> u16 {
        match self.at {
            At::Port(port) => port,
            At::Socket(_) => panic!("it listens on a Unix socket"),
        }
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Replaces the process by a new one without records, at the same address.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.at, &self.args);
        self.answers();
    }

    /// Deletes all records, while connections stay open.
    pub fn flush(&self) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.write_all(b"flush_all\r\n").unwrap();
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"OK\r\n");
    }

    /// Returns a number from the server's `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.write_all(b"stats\r\nquit\r\n").unwrap();
        let mut stats = String::new();
        stream.read_to_string(&mut stats).unwrap();
        let value = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
    }

    /// Stores unrelated records until the server accepts no more, which requires `-M`.
    pub fn fill(&self) {
        const BATCH: u32 = 500;
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
        // Items of one size share pages, so the loop covers every size that a record may have.
        for size in (1..400).step_by(8) {
            let value = "x".repeat(size);
            for batch in 0_u32.. {
                let set = |n: u32| format!("set fill-{size}-{} 0 0 {size}\r\n{value}\r\n", batch * BATCH + n);
                stream.write_all((0..BATCH).map(set).collect::<String>().as_bytes()).unwrap();
                let said = (0..BATCH).map(|_| replies.next().unwrap().unwrap());
                if said.filter(|reply| reply == "STORED").count() < BATCH as usize {
                    break;
                }
            }
        }
    }

    /// Sends a signal: "STOP" freezes the process, "CONT" resumes it.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    fn answers(&mut self) {
        let began = Instant::now();
        while !match &self.at {
            At::Port(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            At::Socket(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        } {
            assert_eq!(self.child.try_wait().unwrap(), None, "memcached ended");
            assert!(began.elapsed() < PATIENCE, "memcached does not listen");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(at: &At, more: &[String]) -> Child {
    let mut command = Command::new("memcached");
    match at {
        At::Port(port) => command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0"]),
        At::Socket(path) => command.arg("-s").arg(path),
    };
    // As root, memcached refuses to start without a user; as another user, memcached ignores the option.
    command.args(["-u", "root", "-c", "4096"]).args(more).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("memcached is installed (apt-get install memcached)")
}
