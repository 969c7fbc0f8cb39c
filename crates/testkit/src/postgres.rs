//! A real PostgreSQL with a cluster of its own in a temporary folder, on its own port, never as a service.

use crate::ports;
use crate::signal::signal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// Options of `initdb`. Segments of 1 MB, because each test copies them.
const CLUSTER: [&str; 7] = [
    "--no-sync",
    "--no-instructions",
    "--auth=trust",
    "--username=postern",
    "-EUTF8",
    "--locale=C",
    "--wal-segsize=1",
];

/// A server; killed when it is dropped.
pub struct Postgres {
    home: TempDir,
    port: u16,
    options: Vec<String>,
    child: Option<Child>,
}

/// A command of PostgreSQL, which refuses root: root runs it as another user of a namespace, with its own files.
fn program(name: &str) -> Command {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Command::new(name);
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=65534", "--map-group=65534", "--kill-child", name]);
    command
}

/// Returns a cluster to copy, made once in the build folder: `initdb` takes three quarters of a second of CPU, a copy a twentieth.
fn template() -> PathBuf {
    let version = program("initdb").arg("--version").output().unwrap().stdout;
    let mut name = format!("{}{CLUSTER:?}", String::from_utf8(version).unwrap());
    name.retain(|letter| letter.is_ascii_alphanumeric() || letter == '.');
    let executable = std::env::current_exe().unwrap(); // in target/debug/deps
    let folder = executable.ancestors().nth(2).unwrap_or(Path::new("/")).join("postgres");
    let template = folder.join(name);
    if !template.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let new = TempDir::new_in(&folder).unwrap();
        let cluster = new.path().join("cluster");
        let output = program("initdb").args(CLUSTER).arg("-D").arg(&cluster).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let _ = std::fs::rename(cluster, &template); // another test may have been first
    }
    template
}

impl Postgres {
    /// Starts a server that takes connections when this returns, with these settings (`name=value`) in addition.
    pub fn start(options: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let copied = Command::new("cp").arg("-a").arg(template()).arg(home.path().join("cluster")).status();
        assert!(copied.unwrap().success());
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { home, port: ports::free(), options, child: None };
        server.launch();
        server
    }

    /// Returns the folder of its files.
    #[must_use]
    pub fn cluster(&self) -> PathBuf {
        self.home.path().join("cluster")
    }

    /// Returns its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Starts it again, on the same files and port.
    pub fn launch(&mut self) {
        let mut command = program("postgres");
        command.arg("-D").arg(self.cluster()).args(["-p", &self.port.to_string()]);
        for option in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB"] {
            command.args(["-c", option]);
        }
        self.options.iter().for_each(|option| _ = command.args(["-c", option]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let killed = self.state(); // the file of a server that was killed stays
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("postgres does not start: {error}")));
        let began = Instant::now();
        let is_ready =
            |state: String| state != killed && state.lines().nth(7).map(str::trim) == Some("ready");
        while !is_ready(self.state()) {
            assert!(began.elapsed() < PATIENCE, "postgres takes no connections: {}", self.state());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns what the server states about itself, as `pg_ctl` reads it: its process in the first line, its state in the eighth.
    fn state(&self) -> String {
        std::fs::read_to_string(self.cluster().join("postmaster.pid")).unwrap_or_default()
    }

    /// The URL of a database, with these parameters in addition.
    #[must_use]
    pub fn url(&self, more: &str) -> String {
        format!("postgres://postern@127.0.0.1:{}/postgres?sslmode=disable{more}", self.port)
    }

    /// SIGKILL of the server, after which its other processes end.
    pub fn kill(&mut self) {
        let pid = self.pid();
        signal(pid, "KILL");
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        // The shared memory is free once the last process has gone.
        std::thread::sleep(Duration::from_millis(500));
    }

    /// Nothing more is answered, until [`Postgres::thaw`].
    pub fn freeze(&self) {
        self.processes().into_iter().for_each(|process| signal(process, "STOP"));
    }

    /// It goes on.
    pub fn thaw(&self) {
        self.processes().into_iter().for_each(|process| signal(process, "CONT"));
    }

    /// The server and its other processes.
    fn processes(&self) -> Vec<u32> {
        let server = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
        std::iter::once(server)
            .chain(children.split_whitespace().map(|child| child.parse().unwrap()))
            .collect()
    }

    /// The process of the server itself, which `unshare` becomes or starts.
    fn pid(&self) -> u32 {
        self.state().lines().next().unwrap().parse().unwrap()
    }

    /// Runs statements; returns the lines of the result.
    #[allow(clippy::must_use_candidate, reason = "most statements return nothing")]
    pub fn sql(&self, text: &str) -> Vec<String> {
        let output = Command::new("psql").args(["-XAtq", &self.url(""), "-c", text]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}
