//! Routers in front of several memcacheds: twemproxy from its package, mcrouter and a memcached with its own proxy where the
//! environment names one.

use super::memcached::{Memcached, listening, spawn};
use super::root;
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

    /// mcrouter over one pool of `servers`, by the configuration that the project ships.
    pub fn mcrouter_pool(home: &Path, servers: &[Memcached]) -> Self {
        let port = ports::free();
        let path = home.join(format!("mcrouter-{port}.json"));
        let shipped = std::fs::read_to_string(root().join("deploy/mcrouter/single.json")).unwrap();
        std::fs::write(&path, with_servers(&shipped, JSON_LIST, ']', servers)).unwrap();
        let mut command = Command::new(named("POSTERN_MCROUTER"));
        command.args(["-p", &port.to_string(), "-f"]).arg(&path);
        // As deploy/mcrouter/README.md has it.
        command.args(["-n4096", "-r", "100", "--probe-timeout-max", "500", "--asynclog-disable"]);
        command.args(["--disable-miss-on-get-errors", "--listen-addresses=127.0.0.1"]);
        Self::started(command, port, "mcrouter")
    }

    /// memcached's own proxy, by the file of deploy/mcrouter/README.md.
    pub fn own_proxy(home: &Path, servers: &[Memcached]) -> Self {
        Self::own_proxy_with(own_proxy_file(), home, servers)
    }

    /// The same without the filter of its pool, so that records of one bucket are on several servers.
    pub fn own_proxy_without_filter(home: &Path, servers: &[Memcached]) -> Self {
        let file = own_proxy_file();
        let without =
            file.lines().filter(|line| !line.contains("filter_conf")).collect::<Vec<_>>().join("\n");
        assert_ne!(without.lines().count(), file.lines().count());
        Self::own_proxy_with(without, home, servers)
    }

    fn own_proxy_with(file: String, home: &Path, servers: &[Memcached]) -> Self {
        let port = ports::free();
        let path = home.join(format!("spent-{port}.lua"));
        std::fs::write(&path, with_servers(&file, "backends = {", '}', servers)).unwrap();
        let mut command = Command::new(named("POSTERN_MEMCACHED_PROXY"));
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-u", "root", "-o"]);
        command.arg(format!("proxy_config=routelib,proxy_arg={}", path.display()));
        Self::started(command, port, "memcached")
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

/// The program that a variable of the environment names.
fn named(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no program")).into()
}

/// `spent.lua` of the guide.
fn own_proxy_file() -> String {
    let (_, section) = include_str!("../../deploy/mcrouter/README.md").split_once("`spent.lua`").unwrap();
    let code = section.lines().skip_while(|line| !line.starts_with("    "));
    code.take_while(|line| line.starts_with("    ")).collect::<Vec<_>>().join("\n")
}

/// Debian keeps it where only root's PATH looks.
fn twemproxy_binary() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join("nutcracker")).find(|file| file.is_file());
    found.expect("twemproxy is installed (apt-get install nutcracker)")
}

/// The beginning of the list of servers in mcrouter's JSON; it ends with `]`.
pub const JSON_LIST: &str = "\"servers\": [";

/// The configuration with these servers in its pool, whose list begins and ends so. Done on the text, which has comments.
pub fn with_servers(config: &str, begin: &str, end: char, servers: &[Memcached]) -> String {
    let (before, rest) = config.split_once(begin).expect("a list of servers");
    let (_, after) = rest.split_once(end).expect("the list ends");
    let servers: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.address())).collect();
    format!("{before}{begin}{}{end}{after}", servers.join(", "))
}
