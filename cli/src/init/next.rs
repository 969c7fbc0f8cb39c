//! The text that `postern init` prints: the next commands.

use super::memcached::{Found, MEMORY, capacity, start};
use super::place::Place;
use crate::args::Init;
use nix::unistd::Uid;
use std::net::TcpListener;
use std::path::Path;

pub(super) const ACCOUNT: &str = "agent";
/// Folder in which the package installs the documents, at their paths in the repository.
const DOCUMENTS: &str = "/usr/share/doc/postern";

pub(super) struct Next {
    /// Inspected memcacheds, with the result of each.
    pub(super) memcacheds: Vec<(String, Found)>,
    /// `true` if the gateways store spent tokens in memcached; `false` if each uses embedded files.
    pub(super) shares: bool,
}

impl Next {
    pub(super) fn text(&self, args: &Init, place: &Place) -> String {
        let gateways: &[&str] =
            if args.fleet { &["gateway-1.toml", "gateway-2.toml"] } else { &["gateway.toml"] };
        let (folder, agent) = (quoted(&place.directory), place.client.address);
        let file = |name: &str| quoted(&place.path(name));
        let missing = self.memcacheds.iter().filter(|(_, found)| self.shares && *found == Found::Nothing);
        let mut commands: Vec<String> = missing.map(|(address, _)| start(address)).collect();
        commands.push(format!("postern issuer --config {}", file("issuer.toml")));
        commands.extend(gateways.iter().map(|name| format!("postern gateway --config {}", file(name))));
        commands.push(format!("postern client --config {}", file("client.toml")));
        let (contents, install) = (contents(args, place, gateways), self.missing(args));
        let dashboards = if args.fleet { dashboards(place) } else { String::new() };
        let (store, ports) = (self.store(), ports(place));
        format!(
            "{contents}{install}
Start them, each in its own terminal, where Ctrl-C stops it:

    {}

Then see whether they are ready, and fetch a page, for one token:

    postern status {folder}
    curl -x http://{agent} https://example.com/

Where something is not as it should be, postern doctor {folder} names the reason and the remedy.
A browser takes http://{agent}/proxy.pac as its automatic proxy configuration.

{dashboards}Certificate: of a development authority that was made for this folder. Only programs configured to trust {}
accept it, and it ends after 90 days. For other machines replace it by [tls.acme] or your own: {}.
Account: {ACCOUNT:?}, whose API key the agent has. For another agent:
    postern issuer account add NAME --quota 10000/1d --join --config {}
{store}{ports}",
            commands.join("\n    "),
            file("tls/ca.pem"),
            document("docs/operate/install.md"),
            file("issuer.toml")
        )
    }

    /// Describes the programs to install first; empty if none is missing.
    fn missing(&self, args: &Init) -> String {
        let starts_memcached =
            self.shares && self.memcacheds.iter().any(|(_, found)| *found == Found::Nothing);
        let wanted = [("memcached", starts_memcached), ("prometheus", args.fleet), ("curl", true)];
        let missing = wanted.into_iter().filter(|(program, is_wanted)| *is_wanted && !is_installed(program));
        let missing: Vec<&str> = missing.map(|(program, _)| program).collect();
        if missing.is_empty() {
            return String::new();
        }
        if !is_installed("apt-get") {
            return format!("\nFirst install what is not here yet: {}.\n", missing.join(", "));
        }
        let sudo = if Uid::effective().is_root() { "" } else { "sudo " };
        let services = [("memcached", "a memcached on 11211"), ("prometheus", "a Prometheus on 9090")];
        let started = services.into_iter().filter(|(program, _)| missing.contains(program));
        let started: Vec<&str> = started.map(|(_, service)| service).collect();
        let started = match started.join(" and ") {
            none if none.is_empty() => none,
            services => format!("\nThe packages also start {services}, which nothing here uses.\n"),
        };
        format!(
            "\nFirst install what is not here yet:\n\n    {sudo}apt-get install -y --no-install-recommends {}\n{started}",
            missing.join(" ")
        )
    }

    /// Describes the store of spent tokens, and changes that it requires.
    fn store(&self) -> String {
        let found = |is_wanted: fn(&Found) -> bool| {
            let wanted = self.memcacheds.iter().filter(|(_, found)| is_wanted(found));
            wanted.map(|(address, _)| address.as_str()).collect::<Vec<_>>().join(", ")
        };
        let fit = found(|found| matches!(found, Found::Fit(_)));
        let evicting = found(|found| *found == Found::Evicts);
        let missing = found(|found| *found == Found::Nothing);
        let mut text = String::new();
        let mut say = |sentence: &str| text += &format!("Store: {sentence}\n");
        if !self.shares {
            say("spent tokens are kept in files of the gateway's own, which need nothing else.");
            if evicting.is_empty() {
                say("several gateways share memcached: postern init --fleet.");
            } else {
                say(&format!(
                    "the memcached at {evicting} is not used: it evicts when it is full. Started with -M it would do."
                ));
            }
            return text;
        }
        if !fit.is_empty() {
            say(&format!("spent tokens are kept in memcached at {fit}, which runs and does not evict."));
        }
        if !evicting.is_empty() {
            say(&format!(
                "memcached at {evicting} evicts when it is full, so no token could be admitted by it: start it with -M."
            ));
        }
        if !missing.is_empty() {
            say(&format!("no memcached answers at {missing} yet: start it as above."));
        }
        // Each of three replicas has every record: the smallest is full first.
        let memories = self.memcacheds.iter().filter_map(|(_, found)| match found {
            Found::Fit(memory) => Some(*memory),
            Found::Nothing => Some(MEMORY),
            Found::Evicts => None,
        });
        if let Some(least) = memories.min() {
            say(&capacity(least));
        }
        text
    }
}

fn contents(args: &Init, place: &Place, gateways: &[&str]) -> String {
    let configurations = [gateways, &["issuer.toml", "client.toml"]].concat().join(" ");
    let fleet = match args.fleet {
        true => format!(
            "    mcrouter-*.json nutcracker-*.yml
        either router before each memcached, if you want one: {}
    prometheus.yml rules/
        what Prometheus scrapes and alerts of
    grafana/
        three dashboards, and where Grafana finds them and Prometheus
",
            document("deploy/mcrouter/README.md")
        ),
        false => String::new(),
    };
    format!(
        "{} has

    {configurations}
        the configurations, for keeping: their comments say what to change for other machines
{fleet}    tls/
        a certificate for localhost, and the development authority that signed it
    state/
        keys, accounts, spent tokens, the agent's API key and wallet: only you can read it
",
        place.directory.display()
    )
}

/// Describes the start of Prometheus and Grafana for a fleet.
fn dashboards(place: &Place) -> String {
    let names = ["prometheus.yml", "state/prometheus", "state/grafana", "grafana/provisioning"];
    let [config, series, state, provisioning] = names.map(|name| quoted(&place.path(name)));
    let [log, plugins] = ["log", "plugins"].map(|name| quoted(&place.path("state/grafana").join(name)));
    let (prometheus, grafana) = (place.prometheus, place.grafana);
    let (ip, port) = (grafana.ip(), grafana.port());
    let targets = place.listeners().count();
    let jaeger = document("deploy/jaeger/jaeger.yaml");
    // Not the `grafana` script of Grafana's packages: it reads /etc/grafana, which is meant for the user grafana.
    format!(
        "For its dashboards start Prometheus and Grafana (https://grafana.com/grafana/download) as well:

    prometheus --enable-feature=exemplar-storage --config.file {config} --storage.tsdb.path {series} \
         --web.listen-address {prometheus}
    /usr/share/grafana/bin/grafana server --homepath /usr/share/grafana cfg:default.paths.data={state} \
         cfg:default.paths.logs={log} cfg:default.paths.plugins={plugins} cfg:default.paths.provisioning={provisioning} \
         cfg:default.server.http_addr={ip} cfg:default.server.http_port={port}

http://{prometheus}/targets has {targets} targets, all \"up\" within half a minute, and http://{prometheus}/alerts the alerts.
http://{grafana}/dashboards has three dashboards in the folder Postern; log in as admin with the password admin. Rates
appear within a minute.
For traces, which points on the latency of checks link to, start Jaeger 2 with {jaeger},
and the gateways with POSTERN_TRACING_ENDPOINT=http://127.0.0.1:4318 and POSTERN_TRACING_SAMPLE_RATIO=1 in their environment.

"
    )
}

fn ports(place: &Place) -> String {
    let moved = place.moved.iter().map(|sentence| format!("Port: {sentence}\n"));
    let addresses = place.listeners().flat_map(|listener| [listener.address, listener.admin]);
    let taken = addresses.filter(|address| TcpListener::bind(address).is_err()).map(|address| {
        format!(
            "Port: {address} is taken at the moment. Stop what has it, or change the address in the files.\n"
        )
    });
    moved.chain(taken).collect()
}

/// Returns the path of a document on this machine, or else in the repository.
fn document(path: &str) -> String {
    let installed = Path::new(DOCUMENTS).join(path);
    if installed.exists() { installed.display().to_string() } else { path.to_owned() }
}

fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Quotes a path for a shell.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_memcached_says_how_much_fits() {
        let said = |found: &[Found]| {
            let memcacheds = found.iter().map(|found| ("127.0.0.1:11211".to_owned(), *found)).collect();
            Next { memcacheds, shares: true }.store()
        };
        assert!(
            said(&[Found::Fit(1024), Found::Fit(128), Found::Evicts])
                .contains("-m 128 holds 1398000 records")
        );
        assert!(said(&[Found::Fit(1024), Found::Nothing]).contains("-m 64 holds"));
        assert!(!said(&[Found::Evicts]).contains("holds"));
    }

    #[test]
    fn paths_are_written_for_a_shell() {
        let written = ["/a b/it's", "/x/y.toml"].map(|path| quoted(Path::new(path)));
        assert_eq!(written, ["'/a b/it'\\''s'", "/x/y.toml"]);
    }
}
