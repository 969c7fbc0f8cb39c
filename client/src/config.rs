//! The agent's configuration: `postern client --config FILE`.

use postern_config::{Address, ConfigDuration, Secret, address};
use postern_daemon::drain::DrainConfig;
use postern_daemon::tls::{OwnCertificate, TlsError};
use postern_telemetry::log::LogConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The local agent.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where programs reach the agent.
    #[serde(default)]
    pub listen: Listen,
    /// The gateway that opens the tunnels.
    pub gateway: GatewayConfig,
    /// The issuer that signs the tokens.
    #[serde(default)]
    pub issuer: IssuerConfig,
    /// The tokens kept ready.
    pub wallet: WalletConfig,
    /// Stopping.
    #[serde(default)]
    pub drain: DrainConfig<30>,
    /// Logs.
    #[serde(default)]
    pub log: LogConfig,
}

/// Where programs reach the agent.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// HTTP proxy and SOCKS5, on one port.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub address: SocketAddr,
    /// The admin listener: the live page, `/metrics`, `/livez` and `/readyz`, which report why there are no tokens.
    #[serde(with = "address")]
    #[schemars(with = "Address")]
    pub admin: SocketAddr,
    /// Listen on an address that is not loopback. Anyone who reaches the agent can spend your tokens.
    pub allow_remote: bool,
    /// Connections of programs at once, tunnels included. For one more the oldest gives way that has neither a tunnel nor a
    /// request in progress; where there is none, it is refused. The limit is lower where the process may not open enough
    /// files, two for each connection and some beside; the log says so.
    #[schemars(range(min = 1))]
    pub connections: usize,
}

impl Default for Listen {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { address: loopback(8118), admin: loopback(9092), allow_remote: false, connections: 1_024 }
    }
}

/// The gateway that opens the tunnels.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// "http://127.0.0.1:8080", or "https://gateway.example" to reach it over TLS (port 443 unless given); or a list of
    /// such URLs in order of preference. While one is unavailable the next is used.
    pub url: Urls,
    /// The origin name that the gateway's challenges must have (`[challenge] origin` there), if it differs from the
    /// host of `url`. Challenges for other origins are ignored (RFC 9577, section 2.1.3). If this is not set and `url`
    /// has an address or localhost, which identify no gateway, any origin is accepted.
    #[serde(default)]
    pub origin: Option<String>,
    /// PEM certificates to trust for an https gateway instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// PEM file with a certificate chain of this agent, for an https gateway that requires one (mutual TLS). The gateway can tell
    /// agents apart by it: only where it may. Read again when it changes, as its key is.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// PEM file with that certificate's private key, unencrypted.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Tunnels at once on one HTTP/2 connection to an https gateway that speaks it, so that not each needs a TLS
    /// handshake. The gateway sees that they belong together, as it sees their address. With 1 each tunnel has a connection of
    /// its own.
    #[serde(default = "tunnels")]
    pub tunnels: NonZeroUsize,
    /// For how long such a connection takes tunnels. The gateway cannot link tunnels that are further apart by it.
    #[serde(default = "connection_lifetime")]
    pub connection_lifetime: ConfigDuration,
    /// The time limit for name resolution, connecting and the TLS handshake together.
    #[serde(default = "connect_timeout")]
    pub connect_timeout: ConfigDuration,
    /// The time limit for the gateway's answer to a CONNECT; in this time it resolves and dials the target.
    #[serde(default = "answer_timeout")]
    pub answer_timeout: ConfigDuration,
}

/// One URL or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a URL, or a list of URLs")]
pub enum Urls {
    /// One.
    One(String),
    /// In order of preference.
    Several(Vec<String>),
}

impl Urls {
    /// All of them, in order of preference.
    #[must_use]
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(url) => std::slice::from_ref(url),
            Self::Several(urls) => urls,
        }
    }
}

impl GatewayConfig {
    /// What is shown to a gateway that requires a certificate.
    pub(crate) fn own_certificate(&self) -> Result<Option<OwnCertificate>, TlsError> {
        let files = self.certificate.clone().zip(self.key.clone());
        files.map(|(certificate, key)| OwnCertificate::load(certificate, key)).transpose()
    }

    /// What an operator should know of that certificate now; `None` where all is well.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        self.own_certificate().ok()??.remark()
    }
}

fn tunnels() -> NonZeroUsize {
    const { NonZeroUsize::new(64).unwrap() }
}

fn connection_lifetime() -> ConfigDuration {
    ConfigDuration::minutes(10)
}

fn connect_timeout() -> ConfigDuration {
    ConfigDuration::secs(10)
}

fn answer_timeout() -> ConfigDuration {
    ConfigDuration::secs(60)
}

impl GatewayConfig {
    /// The gateway at `url`, everything else at its default.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: Urls::One(url.into()),
            origin: None,
            ca: None,
            certificate: None,
            key: None,
            tunnels: tunnels(),
            connection_lifetime: connection_lifetime(),
            connect_timeout: connect_timeout(),
            answer_timeout: answer_timeout(),
        }
    }
}

/// The issuer that signs the tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IssuerConfig {
    /// The issuer's address, such as "https://issuer.example". By default https and the issuer name of the gateway's
    /// challenge, if that host has a public address.
    pub url: Option<String>,
    /// The account's API key. It is sent only to the issuer at `url`, so it requires `url`.
    pub api_key: Option<Secret>,
    /// PEM certificates to trust for an https issuer instead of the platform's.
    pub ca: Option<PathBuf>,
}

/// The tokens kept ready.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletConfig {
    /// The wallet file (created with mode 0600). The gateway's challenge is stored beside it, in a file of the same
    /// name with ".challenge" appended, and the marks of gateways in one with ".marks".
    pub path: PathBuf,
    /// Minting ahead begins below this number of tokens.
    #[serde(default = "low")]
    pub low: usize,
    /// Minting ahead ends at this number of tokens.
    #[serde(default = "high")]
    pub high: usize,
    /// Flush the disk before a token is sent. Without it, a kill or crash of the agent never restores a spent token,
    /// but a power loss may: the gateway then refuses the token as spent and learns that both tunnels were yours.
    #[serde(default)]
    pub fsync: bool,
}

fn low() -> usize {
    32
}

fn high() -> usize {
    128
}

impl WalletConfig {
    /// A wallet at `path`, everything else at its default.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), low: low(), high: high(), fsync: false }
    }
}

/// Errors of a configuration that parses but cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// An open agent gives away tokens.
    #[error(
        "listen.address = \"{0}\" is not a loopback address: anyone who reaches the agent can spend your tokens. \
         Listen on 127.0.0.1, or set listen.allow_remote = true if that is what you want"
    )]
    Remote(SocketAddr),
    /// The limits would mint nothing, or without end.
    #[error(
        "wallet.low = {low} and wallet.high = {high}: high must be from 1 to {MOST_TOKENS} and not below low"
    )]
    Waters {
        /// The low water.
        low: usize,
        /// The high water.
        high: usize,
    },
    /// No gateway, or too many.
    #[error("gateway.url lists {0} gateways: name one at least and {MOST_GATEWAYS} at most, each once")]
    Gateways(usize),
    /// The gateway chooses the issuer's name: it must not choose who gets the key.
    #[error(
        "issuer.api_key is set but issuer.url is not: name the issuer that the key is for, because otherwise \
         the gateway's operator could have it sent anywhere"
    )]
    KeyWithoutIssuer,
    /// A certificate that could not be shown.
    #[error(
        "gateway.certificate and gateway.key belong together, and only an https gateway can require them: set both or neither, \
         and begin each gateway.url with https://"
    )]
    OwnCertificate,
}

/// The most tokens that a wallet is filled to: 4 MiB on disk, and half a minute of one core to mint.
const MOST_TOKENS: usize = 8_192;
/// The most gateways in the list.
const MOST_GATEWAYS: usize = 32;

impl Config {
    /// An agent for the gateway at `gateway_url` with its wallet at `wallet`, everything else at its default.
    #[must_use]
    pub fn new(gateway_url: impl Into<String>, wallet: impl Into<PathBuf>) -> Self {
        Self {
            listen: Listen::default(),
            gateway: GatewayConfig::at(gateway_url),
            issuer: IssuerConfig::default(),
            wallet: WalletConfig::at(wallet),
            drain: DrainConfig::default(),
            log: LogConfig::default(),
        }
    }

    /// Checks what no single value shows.
    ///
    /// # Errors
    /// [`ConfigProblem`], which names the keys and states what to write.
    pub fn check(&self) -> Result<(), ConfigProblem> {
        if !self.listen.address.ip().is_loopback() && !self.listen.allow_remote {
            return Err(ConfigProblem::Remote(self.listen.address));
        }
        let (low, high) = (self.wallet.low, self.wallet.high);
        if high == 0 || high > MOST_TOKENS || low > high {
            return Err(ConfigProblem::Waters { low, high });
        }
        let urls = self.gateway.url.list();
        let different: BTreeSet<&str> = urls.iter().map(|url| url.trim_end_matches('/')).collect();
        if urls.is_empty() || urls.len() > MOST_GATEWAYS || different.len() < urls.len() {
            return Err(ConfigProblem::Gateways(urls.len()));
        }
        let shown = [&self.gateway.certificate, &self.gateway.key].map(Option::is_some);
        if shown[0] != shown[1] || shown[0] && urls.iter().any(|url| !url.starts_with("https://")) {
            return Err(ConfigProblem::OwnCertificate);
        }
        if self.issuer.api_key.is_some() && self.issuer.url.is_none() {
            return Err(ConfigProblem::KeyWithoutIssuer);
        }
        Ok(())
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
        let key = format!("{LEAST}[issuer]\napi_key = \"k\"\n");
        assert_eq!(config(&key).check(), Err(ConfigProblem::KeyWithoutIssuer));
        assert_eq!(config(&format!("{key}url = \"https://issuer.example\"\n")).check(), Ok(()));
    }

    #[test]
    fn a_gateway_is_a_url_or_a_list_of_them() {
        let several = LEAST.replace("\"http://127.0.0.1:8080\"", "[\"http://a:1\", \"http://b:2\"]");
        assert_eq!(config(&several).gateway.url.list(), ["http://a:1", "http://b:2"]);
        assert_eq!(config(&several).check(), Ok(()));
        assert_eq!(config(LEAST).gateway.url.list(), ["http://127.0.0.1:8080"]);
        for (bad, found) in [("[]", 0), ("[\"http://a:1\", \"http://a:1/\"]", 2)] {
            let bad = LEAST.replace("\"http://127.0.0.1:8080\"", bad);
            assert_eq!(config(&bad).check(), Err(ConfigProblem::Gateways(found)));
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
        for (low, high) in [(0, 0), (33, 32), (1, MOST_TOKENS + 1)] {
            let mut config = config(LEAST);
            (config.wallet.low, config.wallet.high) = (low, high);
            assert_eq!(config.check(), Err(ConfigProblem::Waters { low, high }));
        }
    }
}
