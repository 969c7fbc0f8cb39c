//! Real memcacheds, each on its own port, and ways to make them fail.

use super::{PATIENCE, faketime};
use postern_testkit::ports;
use postern_testkit::signal::signal;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A memcached; killed when it is dropped.
pub struct Memcached {
    port: u16,
    child: Option<Child>,
    /// Its clock's distance from the machine's, as faketime writes it.
    clock: Option<&'static str>,
    /// It is started without -M.
    evicts: bool,
    /// Options in addition to those of all.
    options: &'static [&'static str],
}

impl Memcached {
    /// Starts a memcached that listens when this returns.
    pub fn start() -> Self {
        let mut server = Self::absent();
        server.launch();
        server
    }

    /// One whose clock is so far from the machine's: "+2h".
    pub fn with_clock(difference: &'static str) -> Self {
        let mut server = Self::absent();
        server.clock = Some(difference);
        server.launch();
        server
    }

    /// One with these options in addition.
    pub fn with_options(options: &'static [&'static str]) -> Self {
        let mut server = Self::absent();
        server.options = options;
        server.launch();
        server
    }

    /// One that drops records when it is full.
    pub fn evicting() -> Self {
        let mut server = Self::absent();
        server.evicts = true;
        server.launch();
        server
    }

    /// A port on which nothing listens yet.
    pub fn absent() -> Self {
        Self { port: ports::free(), child: None, clock: None, evicts: false, options: &[] }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it, empty.
    pub fn launch(&mut self) {
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &self.port.to_string(), "-U", "0", "-t", "2"]);
        // As root it refuses to start without a user; as another user it ignores the option.
        command.args(["-c", "4096", "-u", "root"]).args(self.options);
        if !self.evicts {
            command.arg("-M"); // an error rather than an eviction
        }
        if let Some(difference) = self.clock {
            command.env("LD_PRELOAD", faketime::library()).env("FAKETIME", difference);
        }
        self.child = Some(listening(spawn(command, "memcached"), self.port, "memcached"));
    }

    /// SIGKILL, and the end of it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// No more is done, and connections are still accepted, until [`Memcached::thaw`].
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        signal(self.child.as_ref().expect("it runs").id(), name);
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and discards its output.
pub fn spawn(mut command: Command, package: &str) -> Child {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.unwrap_or_else(|error| panic!("{package} does not start (apt-get install {package}): {error}"))
}

/// Returns the server as soon as it listens there.
pub fn listening(mut server: Child, port: u16, what: &str) -> Child {
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert_eq!(server.try_wait().unwrap(), None, "{what} ended");
        assert!(began.elapsed() < PATIENCE, "{what} does not listen on port {port}");
        thread::sleep(Duration::from_millis(2));
    }
    server
}
