//! A real PostgreSQL with a cluster of its own in a temporary folder, on its own port, never as a service.

use super::PATIENCE;
use super::memcached::{listening, spawn};
use postern_testkit::ports;
use postern_testkit::signal::signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server; killed when it is dropped.
pub struct Postgres {
    home: TempDir,
    port: u16,
    options: Vec<String>,
    child: Option<Child>,
}

/// A command of PostgreSQL, which refuses root: root runs it as another user of a namespace, with its own files.
fn program(name: &str) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(name);
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=65534", "--map-group=65534", "--kill-child", name]);
    command
}

impl Postgres {
    /// Starts a server that listens when this returns, with these settings (`name=value`) in addition.
    pub fn start(options: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let mut initdb = program("initdb");
        initdb.args(["--no-sync", "--no-instructions", "-A", "trust", "-U", "postern", "-E", "UTF8"]);
        let output = initdb.args(["--locale=C", "-D"]).arg(home.path().join("cluster")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { home, port: ports::free(), options, child: None };
        server.launch();
        server
    }

    pub fn cluster(&self) -> PathBuf {
        self.home.path().join("cluster")
    }

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
        self.child = Some(listening(spawn(command, "postgres"), self.port, "postgres"));
        let began = Instant::now();
        // It listens before it has recovered from a kill.
        while let Err(error) = psql(&self.url(""), "SELECT 1") {
            assert!(began.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URL of a database, with these parameters in addition.
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

    pub fn freeze(&self) {
        signal(self.pid(), "STOP");
    }

    pub fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    /// The process of the server itself, which `unshare` becomes or starts.
    fn pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.cluster().join("postmaster.pid")).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    /// Runs statements; returns the lines of the result.
    pub fn sql(&self, text: &str) -> Vec<String> {
        psql(&self.url(""), text).unwrap()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// Writes the configuration of an issuer in `home` with its keys in the database.
pub fn issuer_in(server: &Postgres, home: &Path, name: &str, more: &str) -> PathBuf {
    let folder = home.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let passphrase = home.join("passphrase");
    std::fs::write(&passphrase, "a passphrase of this test\n").unwrap();
    std::fs::set_permissions(&passphrase, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text =
        format!("passphrase_file = {passphrase:?}\n{more}\n[accounts]\ndatabase = {:?}\n", server.url(""));
    super::daemon::issuer_config(&folder, &text)
}

/// Runs statements with `psql`; returns the lines of the result.
fn psql(url: &str, sql: &str) -> Result<Vec<String>, String> {
    let output = Command::new("psql").args(["-XAtq", url, "-c", sql]).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
