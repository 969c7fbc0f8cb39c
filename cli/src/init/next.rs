//! What to type after `postern init`.

use super::memcached::{Found, capacity, start};
use super::place::Place;
use crate::args::Init;
use nix::unistd::Uid;
use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;

/// The agent's account.
pub(super) const ACCOUNT: &str = "agent";
/// Where the package has the documents, each by its path in the repository.
const DOCUMENTS: &str = "/usr/share/doc/postern";

/// What was found of the store.
pub(super) struct Next {
    /// The memcacheds that were looked at.
    pub(super) memcacheds: Vec<(String, Found)>,
    /// Whether the gateways keep spent tokens there; in files of their own otherwise.
    pub(super) shares: bool,
}

impl Next {
    pub(super) fn text(&self, args: &Init, place: &Place) -> String {
        let gateways: &[&str] =
            if args.fleet { &["gateway-1.toml", "gateway-2.toml"] } else { &["gateway.toml"] };
        let folder = quoted(&place.directory);
        let file = |name: &str| quoted(&place.path(name));
        let mut text = contents(args, place, gateways);
        text.push_str(&self.missing(args));

        text.push_str("\nStart them, each in a terminal of its own, where Ctrl-C stops it:\n\n");
        for (address, found) in self.memcacheds.iter().filter(|_| self.shares) {
            if *found == Found::Nothing {
                let _ = writeln!(text, "    {}", start(address));
            }
        }
        let _ = writeln!(text, "    postern issuer --config {}", file("issuer.toml"));
        for name in gateways {
            let _ = writeln!(text, "    postern gateway --config {}", file(name));
        }
        let _ = writeln!(text, "    postern client --config {}", file("client.toml"));
        let agent = place.client.address;
        let _ = writeln!(
            text,
            "\nThen see whether they are ready, and fetch a page, for one token:\n\n    postern status {folder}\n    \
             curl -x http://{agent} https://example.com/\n\n\
             Where something is not as it should be, postern doctor {folder} names the reason and the remedy.\n\
             A browser takes http://{agent}/proxy.pac as its automatic proxy configuration.\n"
        );
        if args.fleet {
            text.push_str(&dashboards(place));
        }
        let _ = writeln!(
            text,
            "Certificate: of a development authority that was made for this folder. Only programs configured to trust {}\n\
             accept it, and it ends after 90 days. For other machines replace it by [tls.acme] or your own: {}.",
            file("tls/ca.pem"),
            document("docs/operate/install.md")
        );
        let _ = writeln!(
            text,
            "Account: {ACCOUNT:?}, whose API key the agent has. For another agent:\n    postern issuer account add NAME --quota 10000/1d \
             --join --config {}",
            file("issuer.toml")
        );
        self.store(&mut text);
        ports(place, &mut text);
        text
    }

    /// What to install first; nothing where all is there.
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
        let mut text = format!(
            "\nFirst install what is not here yet:\n\n    {sudo}apt-get install -y --no-install-recommends {}\n",
            missing.join(" ")
        );
        let services = [("memcached", "a memcached on 11211"), ("prometheus", "a Prometheus on 9090")];
        let started = services.into_iter().filter(|(program, _)| missing.contains(program));
        let started: Vec<&str> = started.map(|(_, service)| service).collect();
        if !started.is_empty() {
            let _ = writeln!(
                text,
                "\nThe packages also start {}, which nothing here uses.",
                started.join(" and ")
            );
        }
        text
    }

    /// Where spent tokens are remembered, and what to change for it.
    fn store(&self, text: &mut String) {
        let found = |wanted| {
            let is_wanted = |(_, found): &&(String, Found)| *found == wanted;
            let all: Vec<&str> =
                self.memcacheds.iter().filter(is_wanted).map(|(address, _)| address.as_str()).collect();
            all.join(", ")
        };
        let [fit, evicting, missing] = [Found::Fit, Found::Evicts, Found::Nothing].map(found);
        let mut say = |sentence: &str| {
            let _ = writeln!(text, "Store: {sentence}");
        };
        if !self.shares {
            say("spent tokens are kept in files of the gateway's own, which need nothing else.");
            if evicting.is_empty() {
                say("several gateways share memcached: postern init --fleet.");
            } else {
                say(&format!(
                    "the memcached at {evicting} is not used: it evicts when it is full. Started with -M it would do."
                ));
            }
            return;
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
            say(&capacity());
        }
    }
}

/// What was written.
fn contents(args: &Init, place: &Place, gateways: &[&str]) -> String {
    let mut text = format!("{} has\n\n", place.directory.display());
    let mut line = |what: &str, about: &str| {
        let _ = writeln!(text, "    {what}\n        {about}"); // a String takes everything
    };
    line(
        &[gateways, &["issuer.toml", "client.toml"]].concat().join(" "),
        "the configurations, for keeping: their comments say what to change for other machines",
    );
    if args.fleet {
        let routers = document("deploy/mcrouter/README.md");
        line(
            "mcrouter-*.json nutcracker-*.yml",
            &format!("either router before each memcached, if you want one: {routers}"),
        );
        line("prometheus.yml rules/", "what Prometheus scrapes and alerts of");
        line("grafana/", "three dashboards, and where Grafana finds them and Prometheus");
    }
    line("tls/", "a certificate for localhost, and the development authority that signed it");
    line("state/", "keys, accounts, spent tokens, the agent's API key and wallet: only you can read it");
    text
}

/// How to see a fleet.
fn dashboards(place: &Place) -> String {
    let names = ["prometheus.yml", "state/prometheus", "state/grafana", "grafana/provisioning"];
    let [config, series, state, provisioning] = names.map(|name| quoted(&place.path(name)));
    let [log, plugins] = ["log", "plugins"].map(|name| quoted(&place.path("state/grafana").join(name)));
    let (prometheus, grafana) = (place.prometheus, place.grafana);
    let (ip, port) = (grafana.ip(), grafana.port());
    let targets = place.listeners().count();
    let jaeger = document("deploy/jaeger/jaeger.yaml");
    // Not the script `grafana` of Grafana's packages: it reads /etc/grafana, which is for the user grafana.
    format!(
        "For its dashboards start Prometheus and Grafana (https://grafana.com/grafana/download) as well:\n\n    \
         prometheus --enable-feature=exemplar-storage --config.file {config} --storage.tsdb.path {series} \
         --web.listen-address {prometheus}\n    \
         /usr/share/grafana/bin/grafana server --homepath /usr/share/grafana cfg:default.paths.data={state} \
         cfg:default.paths.logs={log} cfg:default.paths.plugins={plugins} cfg:default.paths.provisioning={provisioning} \
         cfg:default.server.http_addr={ip} cfg:default.server.http_port={port}\n\n\
         http://{prometheus}/targets has {targets} targets, all \"up\" within half a minute, and http://{prometheus}/alerts the alerts.\n\
         http://{grafana}/dashboards has three dashboards in the folder Postern; log in as admin with the password admin. Rates\n\
         appear within a minute.\n\
         For traces, which points beside the latency of checks lead to, start Jaeger 2 with {jaeger},\n\
         and the gateways with POSTERN_TRACING_ENDPOINT=http://127.0.0.1:4318 and POSTERN_TRACING_SAMPLE_RATIO=1 in their environment.\n\n"
    )
}

/// What has a port that a listener was to have.
fn ports(place: &Place, text: &mut String) {
    for (usual, chosen) in &place.moved {
        let _ =
            writeln!(text, "Port: {usual} or one after it is taken here, so {chosen} is used in its place.");
    }
    for address in place.listeners().flat_map(|listener| [listener.address, listener.admin]) {
        if TcpListener::bind(address).is_err() {
            let _ = writeln!(
                text,
                "Port: {address} is taken at the moment. Stop what has it, or change the address in the files."
            );
        }
    }
}

/// Where a document is on this machine, or else in the repository.
fn document(path: &str) -> String {
    let installed = Path::new(DOCUMENTS).join(path);
    if installed.exists() { installed.display().to_string() } else { path.to_owned() }
}

fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// A path as a shell reads it.
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
    fn paths_are_written_for_a_shell() {
        let written = ["/a b/it's", "/x/y.toml"].map(|path| quoted(Path::new(path)));
        assert_eq!(written, ["'/a b/it'\\''s'", "/x/y.toml"]);
    }
}
