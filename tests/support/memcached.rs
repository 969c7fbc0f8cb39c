//! Real memcacheds, each on a port of its own, and ways to make them fail.

use super::PATIENCE;
pub use postern_testkit::memcached::free_port;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A memcached; killed when it is dropped.
pub struct Memcached {
    port: u16,
    child: Option<Child>,
}

impl Memcached {
    /// One that listens when this returns.
    pub fn start() -> Self {
        let mut server = Self::absent();
        server.launch();
        server
    }

    /// A port on which nothing listens yet.
    pub fn absent() -> Self {
        Self { port: free_port(), child: None }
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
        // -M: an error rather than an eviction. As root it refuses to start without a user; as another user it
        // ignores the option.
        command.args(["-c", "4096", "-M", "-u", "root"]);
        self.child = Some(spawn(command, "memcached"));
        listens(self.port, "memcached");
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
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
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

/// Returns as soon as something listens there.
pub fn listens(port: u16, what: &str) {
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < PATIENCE, "{what} does not listen on port {port}");
        thread::sleep(Duration::from_millis(2));
    }
}
