//! Routers in front of several memcacheds: twemproxy from its package, mcrouter where the environment names one.

use super::memcached::{Memcached, listening, spawn};
use postern_testkit::ports;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A router; killed when it is dropped.
pub struct Router {
    port: u16,
    child: Child,
}

impl Router {
    /// twemproxy over `servers`. Two with the same servers are two endpoints to one store.
    pub fn twemproxy(home: &Path, servers: &[Memcached]) -> Self {
        Self::twemproxy_with("hash_tag: \"||\"\n  ", home, servers)
    }

    /// The same with records of one bucket on several servers, as a configuration of one's own may have it.
    pub fn twemproxy_without_tags(home: &Path, servers: &[Memcached]) -> Self {
        Self::twemproxy_with("", home, servers)
    }

    fn twemproxy_with(more: &str, home: &Path, servers: &[Memcached]) -> Self {
        let port = ports::free();
        let list = servers.iter().enumerate();
        let list: String =
            list.map(|(index, server)| format!("  - {}:1 server{index}\n", server.address())).collect();
        // A server that is ejected hands its keys to the others, which would admit them again: never eject.
        let config = format!(
            "postern:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  {more}distribution: ketama\n  timeout: 400\n  \
             preconnect: true\n  auto_eject_hosts: false\n  server_retry_timeout: 500\n  servers:\n{list}"
        );
        let path = home.join(format!("twemproxy-{port}.yml"));
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(twemproxy_binary());
        let stats = ports::free().to_string();
        // Debian's writes to /var/log/nutcracker by itself, which is there only where it is installed.
        command.args(["-o", "/dev/null", "-c"]).arg(&path).args(["-a", "127.0.0.1", "-s", &stats]);
        Self::started(command, port, "nutcracker")
    }

    /// mcrouter over three `servers`, each a replica of its own, by the configuration that the project ships.
    pub fn mcrouter_quorum(home: &Path, servers: &[Memcached]) -> Self {
        Self::mcrouter("quorum.json", home, &servers.chunks(1).collect::<Vec<_>>())
    }

    /// mcrouter over one pool of `servers`, by the configuration that the project ships.
    pub fn mcrouter_pool(home: &Path, servers: &[Memcached]) -> Self {
        Self::mcrouter("single.json", home, &[servers])
    }

    fn mcrouter(shipped: &str, home: &Path, pools: &[&[Memcached]]) -> Self {
        let port = ports::free();
        let path = home.join(format!("mcrouter-{port}.json"));
        std::fs::write(&path, with_servers(&mcrouter_json(shipped), pools)).unwrap();
        let mut command = Command::new(mcrouter_binary());
        command.args(["-p", &port.to_string(), "-f"]).arg(&path);
        command.args(["-n", "4096", "--asynclog-disable", "--disable-miss-on-get-errors"]);
        command.args(["-r", "100", "--probe-timeout-max", "500"]);
        Self::started(command, port, "mcrouter")
    }

    fn started(command: Command, port: u16, package: &str) -> Self {
        Self { port, child: listening(spawn(command, package), port, package) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// The mcrouter that the environment names.
fn mcrouter_binary() -> PathBuf {
    let binary = std::env::var_os("POSTERN_MCROUTER").map(PathBuf::from);
    binary.expect("POSTERN_MCROUTER names an mcrouter binary")
}

/// Debian keeps it where only root's PATH looks.
fn twemproxy_binary() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join("nutcracker")).find(|file| file.is_file());
    found.expect("twemproxy is installed (apt-get install nutcracker)")
}

fn mcrouter_json(shipped: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/mcrouter").join(shipped);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration with these servers in each of its pools. Done on the text, for it has comments.
pub fn with_servers(config: &str, pools: &[&[Memcached]]) -> String {
    const LIST: &str = "\"servers\": [";
    let mut parts = config.split(LIST);
    let mut text = parts.next().unwrap().to_owned();
    let mut pools = pools.iter();
    for part in parts {
        let (_, rest) = part.split_once(']').expect("a list ends");
        let pool = pools.next().expect("servers for each pool");
        let servers: Vec<_> = pool.iter().map(|server| format!("\"{}\"", server.address())).collect();
        text += &format!("{LIST}{}]{rest}", servers.join(", "));
    }
    assert!(pools.next().is_none(), "fewer pools than lists of servers: {config}");
    text
}
