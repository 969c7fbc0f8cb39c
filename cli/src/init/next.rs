//! What to type after `postern init`.

use super::memcached::{Found, INSTALL, is_installed, start};
use super::{ACCOUNT, Place};
use crate::args::Init;
use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;

/// Where Prometheus listens: its own port, 9090, is a gateway's admin listener.
pub(super) const PROMETHEUS: &str = "127.0.0.1:9490";
const GRAFANA_PORT: u16 = 3000;

/// What was found of the store.
pub(super) struct Next {
    /// The memcacheds that were looked at.
    pub(super) memcacheds: Vec<(String, Found)>,
    /// Whether the gateways keep spent tokens there; in files of their own otherwise.
    pub(super) shares: bool,
}

impl Next {
    pub(super) fn text(&self, args: &Init, place: &Place) -> String {
        let file = |name: &str| quoted(&args.directory.join(name));
        let gateways: &[&str] =
            if args.fleet { &["gateway-1.toml", "gateway-2.toml"] } else { &["gateway.toml"] };
        let mut text = format!("{} has\n\n", place.directory.display());
        let mut line = |what: &str, about: &str| {
            let _ = writeln!(text, "    {what}\n        {about}"); // a String takes everything
        };
        let configurations = [gateways, &["issuer.toml", "client.toml"]].concat().join(" ");
        line(
            &configurations,
            "the configurations, for keeping: their comments say what to change for other machines",
        );
        if args.fleet {
            line(
                "mcrouter-*.json nutcracker-*.yml",
                "either router before each memcached, if you want one: deploy/mcrouter/README.md",
            );
            line("prometheus.yml rules/", "what Prometheus scrapes and alerts of");
            line("grafana/", "three dashboards, and where Grafana finds them and Prometheus");
        }
        line("tls/", "a certificate for localhost, and the development authority that signed it");
        line("state/", "keys, accounts, spent tokens, the agent's API key and wallet: only you can read it");

        text.push_str("\nStart them, each in a terminal of its own:\n\n");
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
        let status = if args.directory == Path::new(".") {
            "postern status".to_owned()
        } else {
            format!("postern status {}", quoted(&args.directory))
        };
        let agent = place.client.address;
        let _ = writeln!(
            text,
            "\nThen a page, for one token, and what runs:\n\n    curl -x http://{agent} https://example.com/\n    {status}\n\n\
             A browser takes http://{agent}/proxy.pac as its automatic proxy configuration.\n"
        );
        if args.fleet {
            text.push_str(&dashboards(&file, place));
        }
        let ca = file("tls/ca.pem");
        let _ = writeln!(
            text,
            "Certificate: of a development authority that was made for this folder. Only programs configured to trust {ca}\n\
             accept it, and it ends after 90 days. For other machines replace it by [tls.acme] or your own: docs/operate/install.md."
        );
        let issuer = file("issuer.toml");
        let _ = writeln!(
            text,
            "Account: {ACCOUNT:?}, whose API key the agent has. For another agent:\n    postern issuer account add NAME --quota 10000/1d --join --config {issuer}"
        );
        self.store(&mut text);
        for address in place.listeners().flat_map(|listener| [listener.address, listener.admin]) {
            if TcpListener::bind(address).is_err() {
                let _ = writeln!(
                    text,
                    "Port: {address} is taken at the moment. Stop what has it, or change the address in the files."
                );
            }
        }
        text
    }

    /// Where spent tokens are remembered, and what to install or to change for it.
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
            if !evicting.is_empty() {
                say(&format!(
                    "the memcached at {evicting} is not used: it evicts when it is full. Started with -M it would do."
                ));
            } else if let Some(how) = (!is_installed()).then_some(INSTALL) {
                say(&format!(
                    "several gateways share memcached: {how}, and start with postern init --fleet."
                ));
            } else {
                say("several gateways share memcached: postern init --fleet.");
            }
            return;
        }
        if !fit.is_empty() {
            say(&format!("spent tokens are kept in memcached at {fit}, which runs and does not evict."));
        }
        if !evicting.is_empty() {
            say(&format!(
                "memcached at {evicting} evicts when it is full, and the tokens whose records it drops are good again: start it with -M."
            ));
        }
        if !missing.is_empty() {
            let first = if is_installed() { String::new() } else { format!(" Install it first: {INSTALL}.") };
            say(&format!("no memcached answers at {missing} yet: start it as above.{first}"));
        }
    }
}

/// How to see a fleet.
fn dashboards(file: &impl Fn(&str) -> String, place: &Place) -> String {
    let absolute = |name: &str| quoted(&place.path(name));
    let mut text = "Then its dashboards, with Prometheus (https://prometheus.io/download; Debian's package also starts a service on \
                    port 9090, which is a gateway's here) and Grafana (https://grafana.com/grafana/download):\n\n"
        .to_owned();
    let _ = writeln!(
        text,
        "    prometheus --enable-feature=exemplar-storage --config.file {} --storage.tsdb.path {} --web.listen-address {PROMETHEUS}\n    \
         grafana server --homepath /usr/share/grafana cfg:default.paths.data={} cfg:default.paths.provisioning={} \
         cfg:default.server.http_addr=127.0.0.1 cfg:default.server.http_port={GRAFANA_PORT}\n\n\
         http://{PROMETHEUS}/alerts has the alerts, http://127.0.0.1:{GRAFANA_PORT}/dashboards the dashboards in the folder Postern.\n",
        file("prometheus.yml"),
        file("state/prometheus"),
        absolute("state/grafana"),
        absolute("grafana/provisioning"),
    );
    text
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.strip_prefix(".").unwrap_or(path).display().to_string();
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
        let written = ["./issuer.toml", "a b/it's", "x/y.toml"].map(|path| quoted(Path::new(path)));
        assert_eq!(written, ["issuer.toml", "'a b/it'\\''s'", "x/y.toml"]);
    }
}
