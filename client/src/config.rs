//! The agent's configuration: `postern client --config FILE`.

mod hop;

pub use hop::{
    ConfigProblem, ConsistencyConfig, FirstHop, GatewayConfig, IssuerConfig, Urls, WalletConfig, api_key_of,
};
pub(crate) use hop::{HopConfig, MOST_GATEWAYS, MOST_ISSUERS, each_once, server_url};

use crate::catalogue::Position;
use hop::require;
use postern_config::{Address, address};
use postern_daemon::drain::DrainConfig;
use postern_telemetry::log::LogConfig;
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The local agent.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listeners for programs and you.
    #[serde(default)]
    pub listen: Listen,
    /// Gateway that opens the tunnels.
    pub gateway: GatewayConfig,
    /// Issuer of the tokens.
    #[serde(default)]
    pub issuer: IssuerConfig,
    /// Tokens kept ready.
    pub wallet: WalletConfig,
    /// Gateway of another operator in front: it sees who you are, `[gateway]` where you go.
    #[serde(default)]
    pub first_hop: Option<FirstHop>,
    /// Shutdown on SIGTERM.
    #[serde(default)]
    pub drain: DrainConfig<30>,
    /// Logs, to standard error.
    #[serde(default)]
    pub log: LogConfig,
}

/// Listeners for programs and their user.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// HTTP proxy and SOCKS5.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// Live page, `/metrics`, `/livez` and `/readyz`.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// Allow an address beyond loopback: anyone who reaches it can spend your tokens.
    pub allow_remote: bool,
    /// Connections of programs and targets of UDP; beyond, the oldest idle connection gives way, or the new one is refused.
    /// Scarce file descriptors lower it.
    #[schemars(range(min = 1))]
    pub connections: usize,
    /// Targets of UDP at once for each association of SOCKS5, a token each; beyond, the one silent for longest ends. All together
    /// take half of `connections` at most. 0: no UDP, over HTTP either.
    pub udp_targets: usize,
}

impl Default for Listen {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            address: loopback(8118),
            admin: loopback(9092),
            allow_remote: false,
            connections: 1_024,
            udp_targets: 64,
        }
    }
}

impl Config {
    /// Returns a configuration for the gateway at `gateway_url` with its wallet at `wallet`, and defaults for everything else.
    #[must_use]
    pub fn new(gateway_url: impl Into<String>, wallet: impl Into<PathBuf>) -> Self {
        let (gateway, wallet) = (GatewayConfig::at(gateway_url), WalletConfig::at(wallet));
        let required = json!({ "gateway": { "url": "" }, "wallet": { "path": "" } });
        Self { gateway, wallet, ..hop::with_defaults(required) }
    }

    /// Checks the constraints that parsing does not.
    ///
    /// # Errors
    /// [`ConfigProblem`], with the keys concerned and the correction.
    pub fn check(&self) -> Result<(), ConfigProblem> {
        let address = self.listen.address;
        require(address.ip().is_loopback() || self.listen.allow_remote, || {
            format!(
                "listen.address = \"{address}\" is not a loopback address: anyone who reaches the agent can spend your tokens. \
                 Listen on 127.0.0.1, or set listen.allow_remote = true if that is what you want"
            )
        })?;
        self.hops().try_for_each(|(position, hop)| hop.check(position))?;
        self.first_hop.as_ref().map_or(Ok(()), |first| self.check_apart(first))
    }

    /// Returns the hops that tunnels pass through, in order.
    pub(crate) fn hops(&self) -> impl Iterator<Item = (Position, HopConfig<'_>)> {
        let last = HopConfig { gateway: &self.gateway, issuer: &self.issuer, wallet: &self.wallet };
        let first = self.first_hop.as_ref().map(|hop| {
            (Position::First, HopConfig { gateway: &hop.gateway, issuer: &hop.issuer, wallet: &hop.wallet })
        });
        first.into_iter().chain([(Position::Last, last)])
    }

    /// Rejects hops that share a wallet or a gateway, and a second hop without https.
    fn check_apart(&self, first: &FirstHop) -> Result<(), ConfigProblem> {
        require(first.wallet.path != self.wallet.path, || {
            let wallet = self.wallet.path.display();
            format!(
                "wallet.path and first_hop.wallet.path are the same file, {wallet}: give each hop its own"
            )
        })?;
        let place = |url: &String| Url::parse(url).ok();
        self.gateway.url.list().iter().try_for_each(|url| {
            require(url.starts_with("https://"), || {
                format!(
                    "gateway.url = \"{url}\" is reached through [first_hop], which could read all that is sent there: begin it \
                     with https://"
                )
            })?;
            require(first.gateway.url.list().iter().all(|other| place(other) != place(url)), || {
                format!(
                    "gateway.url and first_hop.gateway.url both name {url}: a gateway that is both hops knows who and where. Name one \
                     of another operator, or leave [first_hop] out"
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_config::parse;

    const NO_ENV: [(String, String); 0] = [];

    fn config(text: &str) -> Config {
        parse("test.toml", text, NO_ENV).unwrap()
    }

    fn assert_refused(config: &Config, beginning: &str) {
        let problem = config.check().unwrap_err().to_string();
        assert!(problem.starts_with(beginning), "{problem}");
    }

    const LEAST: &str = "[gateway]\nurl = \"http://127.0.0.1:8080\"\n[wallet]\npath = \"wallet\"\n";

    #[test]
    fn gateway_and_wallet_are_enough() {
        let config = config(LEAST);
        assert_eq!(config.listen.address.to_string(), "127.0.0.1:8118");
        assert_eq!((config.wallet.low, config.wallet.high, config.wallet.fsync), (32, 128, false));
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn an_agent_open_to_others_must_be_asked_for() {
        let open = format!("{LEAST}[listen]\naddress = \"0.0.0.0:8118\"\n");
        let error = config(&open).check().unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:8118") && error.contains("listen.allow_remote = true"), "{error}");
        assert_eq!(config(&format!("{open}allow_remote = true\n")).check(), Ok(()));
    }

    #[test]
    fn an_api_key_goes_to_a_named_issuer_only() {
        let [key, file] = ["api_key = \"k\"\n", "api_key_file = \"k\"\n"];
        let (issuer, url) = (format!("{LEAST}[issuer]\n"), "url = \"https://issuer.example\"\n");
        for one in [key, file] {
            let without = config(&format!("{issuer}{one}"));
            assert_refused(&without, "issuer.api_key or issuer.api_key_file is set but issuer.url is not");
            assert_eq!(config(&format!("{issuer}{one}{url}")).check(), Ok(()));
        }
        let both = config(&format!("{issuer}{key}{file}{url}"));
        assert_refused(&both, "issuer.api_key and issuer.api_key_file are both set");
    }

    #[test]
    fn a_gateway_is_a_url_or_a_list_of_them() {
        let several = LEAST.replace("\"http://127.0.0.1:8080\"", "[\"http://a:1\", \"http://b:2\"]");
        assert_eq!(config(&several).gateway.url.list(), ["http://a:1", "http://b:2"]);
        assert_eq!(config(&several).check(), Ok(()));
        assert_eq!(config(LEAST).gateway.url.list(), ["http://127.0.0.1:8080"]);
        for (bad, found) in [("[]", 0), ("[\"http://a:1\", \"http://a:1/\"]", 2)] {
            let bad = LEAST.replace("\"http://127.0.0.1:8080\"", bad);
            assert_refused(&config(&bad), &format!("gateway.url lists {found} gateways"));
        }
        let from_env = |value: &str| {
            let env = [("POSTERN_GATEWAY_URL".to_owned(), value.to_owned())];
            parse::<Config>("test.toml", LEAST, env).unwrap().gateway.url.list().join(" ")
        };
        assert_eq!(from_env("http://c:3"), "http://c:3");
        assert_eq!(from_env("[\"http://c:3\", \"http://d:4\"]"), "http://c:3 http://d:4");
    }

    #[test]
    fn water_levels_must_make_sense() {
        for (low, high) in [(0, 0), (33, 32), (1, 8_193)] {
            let mut config = config(LEAST);
            (config.wallet.low, config.wallet.high) = (low, high);
            assert_refused(&config, &format!("wallet.low = {low} and wallet.high = {high}"));
        }
    }

    #[test]
    fn hops_have_nothing_in_common() {
        let first =
            "[first_hop.gateway]\nurl = \"https://a.example\"\n[first_hop.wallet]\npath = \"first\"\n";
        let two = |gateway: &str| LEAST.replace("http://127.0.0.1:8080", gateway) + first;
        assert_eq!(config(&two("https://b.example")).check(), Ok(()));
        assert_refused(
            &config(&two("http://b.example")),
            "gateway.url = \"http://b.example\" is reached through",
        );
        let same = "gateway.url and first_hop.gateway.url both name https://A.example/";
        assert_refused(&config(&two("https://A.example/")), same);
        let shared = two("https://b.example").replace("\"first\"", "\"wallet\"");
        assert_refused(&config(&shared), "wallet.path and first_hop.wallet.path are the same file, wallet");
        let wrong = two("https://b.example") + "high = 0\n";
        assert_refused(&config(&wrong), "first_hop.wallet.low = 32 and first_hop.wallet.high = 0");
    }
}
