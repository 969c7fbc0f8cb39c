//! The configuration of one hop: gateway, issuer and wallet.

use crate::catalogue::Position;
use postern_config::{ConfigDuration, Secret};
use postern_daemon::tls::{OwnCertificate, TlsError};
use reqwest::Url;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Maximum tokens in a wallet: 4 MiB on disk, and half a minute of one core to mint.
const MOST_TOKENS: usize = 8_192;
pub(crate) const MOST_GATEWAYS: usize = 32;
pub(crate) const MOST_ISSUERS: usize = 8;
const MOST_MIRRORS: usize = 8;

/// An error of a configuration that parses but cannot be served. The message begins with the keys concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigProblem(String);

pub(super) fn require(is_right: bool, problem: impl FnOnce() -> String) -> Result<(), ConfigProblem> {
    if is_right { Ok(()) } else { Err(ConfigProblem(problem())) }
}

/// The gateway in front of the one that opens the tunnels. Its keys are those of `[gateway]`, `[issuer]` and `[wallet]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstHop {
    /// First gateway; its `[egress]` must allow the second.
    pub gateway: GatewayConfig,
    /// Issuer of the first hop's tokens.
    #[serde(default)]
    pub issuer: IssuerConfig,
    /// The first hop's tokens, in another file.
    pub wallet: WalletConfig,
}

/// The configuration of one hop, from `[first_hop]` or the top level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopConfig<'a> {
    pub(crate) gateway: &'a GatewayConfig,
    pub(crate) issuer: &'a IssuerConfig,
    pub(crate) wallet: &'a WalletConfig,
}

/// Parses the URL of a server: http or https, with a host, and without user, query and fragment.
pub(crate) fn server_url(text: &str) -> Option<Url> {
    let is_server = |url: &Url| {
        let is_anonymous = url.username().is_empty() && url.password().is_none();
        let is_bare = url.query().is_none() && url.fragment().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && is_anonymous && is_bare
    };
    Url::parse(text).ok().filter(is_server)
}

/// Returns `true` if a list has from one to `most` URLs, each once; trailing slashes make no difference.
pub(crate) fn each_once(urls: &[String], most: usize) -> bool {
    let different: BTreeSet<&str> = urls.iter().map(|url| url.trim_end_matches('/')).collect();
    (1..=most).contains(&urls.len()) && different.len() == urls.len()
}

impl HopConfig<'_> {
    pub(super) fn check(&self, position: Position) -> Result<(), ConfigProblem> {
        let (Self { gateway, issuer, wallet }, of) = (*self, position.section());
        let (low, high, gateways, issuers) = (wallet.low, wallet.high, gateway.url.list(), issuer.urls());
        require((1..=MOST_TOKENS).contains(&high) && low <= high, || {
            format!(
                "{of}wallet.low = {low} and {of}wallet.high = {high}: high must be from 1 to {MOST_TOKENS} and not below low"
            )
        })?;
        require(each_once(gateways, MOST_GATEWAYS), || {
            format!(
                "{of}gateway.url lists {} gateways: name one at least and {MOST_GATEWAYS} at most, each once",
                gateways.len()
            )
        })?;
        require(is_pair_for(gateways, &gateway.certificate, &gateway.key), || {
            format!(
                "{of}gateway.certificate and {of}gateway.key belong together, and only an https gateway can require them: set both or \
                 neither, and begin each {of}gateway.url with https://"
            )
        })?;
        require(is_pair_for(issuers, &issuer.certificate, &issuer.key), || {
            format!(
                "{of}issuer.certificate and {of}issuer.key belong together, and are for an https issuer that is named: set both or \
                 neither, and {of}issuer.url = \"https://…\""
            )
        })?;
        let has_key = [issuer.api_key.is_some(), issuer.api_key_file.is_some()];
        require(has_key != [true, true], || {
            format!("{of}issuer.api_key and {of}issuer.api_key_file are both set: keep one")
        })?;
        // The gateway's challenge would choose the host that receives the key.
        require(!has_key.contains(&true) || issuer.url.is_some(), || {
            format!(
                "{of}issuer.api_key or {of}issuer.api_key_file is set but {of}issuer.url is not: name the issuer that the key is for, \
                 because otherwise the gateway's operator could have it sent anywhere"
            )
        })?;
        require(issuer.url.is_none() || each_once(issuers, MOST_ISSUERS), || {
            format!(
                "{of}issuer.url lists {} issuers: name one at least and {MOST_ISSUERS} at most, each once, or leave it out",
                issuers.len()
            )
        })?;
        let mut mirrors = issuer.consistency.mirrors.iter().enumerate();
        let wrong = mirrors.find(|(index, url)| *index >= MOST_MIRRORS || server_url(url).is_none());
        wrong.map_or(Ok(()), |(_, url)| {
            Err(ConfigProblem(format!(
                "{of}issuer.consistency.mirrors lists {url}: each has to be http://host:port or https://host, with or without a \
                 path, and there may be {MOST_MIRRORS} at most"
            )))
        })
    }
}

/// Returns `true` if certificate and key are both absent, or both present and all of `urls` https.
fn is_pair_for(urls: &[String], certificate: &Option<PathBuf>, key: &Option<PathBuf>) -> bool {
    match (certificate, key) {
        (None, None) => true,
        (Some(_), Some(_)) => !urls.is_empty() && urls.iter().all(|url| url.starts_with("https://")),
        _ => false,
    }
}

/// The gateway that opens the tunnels.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// "https://gateway.example", or a list of up to 32, preferred first.
    pub url: Urls,
    /// `[challenge] origin` there, if not the host of `url`; unset, an address in `url` accepts any.
    #[serde(default)]
    pub origin: Option<String>,
    /// Trusted authorities (PEM), instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Certificate chain (PEM) for mutual TLS; it lets the gateway distinguish agents.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Tunnels on one HTTP/2 connection, which the gateway can link.
    #[serde(default = "tunnels")]
    pub tunnels: NonZeroUsize,
    /// Age from which HTTP/2 connections take no new tunnels.
    #[serde(default = "seconds::<600>")]
    pub connection_lifetime: ConfigDuration,
    /// Time to resolve and connect, with TLS.
    #[serde(default = "seconds::<10>")]
    pub connect_timeout: ConfigDuration,
    /// Time for the answer to a CONNECT.
    #[serde(default = "seconds::<60>")]
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
    /// Returns all URLs, in order of preference.
    #[must_use]
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(url) => std::slice::from_ref(url),
            Self::Several(urls) => urls,
        }
    }
}

impl From<String> for Urls {
    fn from(url: String) -> Self {
        Self::One(url)
    }
}

impl GatewayConfig {
    pub(crate) fn own_certificate(&self) -> Result<Option<OwnCertificate>, TlsError> {
        own_certificate(&self.certificate, &self.key)
    }
}

fn own_certificate(
    certificate: &Option<PathBuf>,
    key: &Option<PathBuf>,
) -> Result<Option<OwnCertificate>, TlsError> {
    let files = certificate.clone().zip(key.clone());
    files.map(|(certificate, key)| OwnCertificate::load(certificate, key)).transpose()
}

fn seconds<const NUMBER: u64>() -> ConfigDuration {
    ConfigDuration::secs(NUMBER)
}

fn tunnels() -> NonZeroUsize {
    const { NonZeroUsize::new(64).unwrap() }
}

impl GatewayConfig {
    /// Returns settings for the gateway at `url`, with defaults for everything else.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: Urls::One(url.into()), ..with_defaults(json!({ "url": "" })) }
    }
}

/// Parses a section that has its required key alone.
pub(super) fn with_defaults<T: DeserializeOwned>(required: Value) -> T {
    serde_json::from_value(required).expect("every other key has a default")
}

/// The issuer of the tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IssuerConfig {
    /// URL, or up to 8 with the same keys and accounts, preferred first. Default: the issuer name of the challenge, if its
    /// address is public.
    pub url: Option<Urls>,
    /// API key of the account, sent only to `url`.
    pub api_key: Option<Secret>,
    /// File with the API key alone; SIGHUP rereads it.
    pub api_key_file: Option<PathBuf>,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
    /// Certificate chain (PEM) that identifies the account, for an https `url`.
    pub certificate: Option<PathBuf>,
    /// Unencrypted private key (PEM).
    pub key: Option<PathBuf>,
    /// Comparison of the issuer's keys with what others see.
    pub consistency: ConsistencyConfig,
}

impl IssuerConfig {
    /// Returns the issuers in order of preference; none if the challenge names the issuer.
    pub(crate) fn urls(&self) -> &[String] {
        self.url.as_ref().map_or(&[], Urls::list)
    }

    pub(crate) fn own_certificate(&self) -> Result<Option<OwnCertificate>, TlsError> {
        own_certificate(&self.certificate, &self.key)
    }
}

/// Comparison of the issuer's keys with what others see of them. A key that is made for one client alone marks each of its
/// tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConsistencyConfig {
    /// URLs of the directory at other operators, 8 at most. New keys wait until one confirms and none differs. Mirrors see your
    /// address.
    pub mirrors: Vec<String>,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
}

/// Parses an API key from a file's text, which contains nothing else but surrounding white space.
///
/// # Errors
/// A description of the fault, without any part of the text.
pub fn api_key_of(text: &str) -> Result<Secret, &'static str> {
    match text.trim() {
        "" => Err("it is empty"),
        key if key.contains(char::is_whitespace) => Err("it has more than a key in it"),
        key => Ok(Secret::new(key)),
    }
}

/// The tokens kept ready.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletConfig {
    /// Wallet file, with `.challenge`, `.marks` and `.keys` next to it.
    pub path: PathBuf,
    /// Tokens below which minting ahead begins.
    #[serde(default = "low")]
    pub low: usize,
    /// Tokens at which minting ends, 8192 at most.
    #[serde(default = "high")]
    pub high: usize,
    /// Longest random delay of minting, to hide the moment of use; none when tokens run short.
    #[serde(default = "seconds::<60>")]
    pub delay: ConfigDuration,
    /// Tokens sent in a minute, half of them for UDP; more requests get 429. 0 means no limit.
    #[serde(default = "most_per_minute")]
    pub most_per_minute: u32,
    /// Sync before a token is sent; without it a power loss may link tunnels to you.
    #[serde(default)]
    pub fsync: bool,
}

fn low() -> usize {
    32
}

fn high() -> usize {
    128
}

fn most_per_minute() -> u32 {
    600
}

impl WalletConfig {
    /// Returns settings for a wallet at `path`, with defaults for everything else.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..with_defaults(json!({ "path": "" })) }
    }
}
