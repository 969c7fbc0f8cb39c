//! Errors of a configuration that parses, and the limits of its lists.

use crate::catalogue::Position;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Maximum tokens in a wallet: 4 MiB on disk, and half a minute of one core to mint.
pub(super) const MOST_TOKENS: usize = 8_192;
pub(crate) const MOST_GATEWAYS: usize = 32;
pub(crate) const MOST_ISSUERS: usize = 8;
pub(super) const MOST_MIRRORS: usize = 8;

/// An error of a configuration that parses but cannot be served. Each message begins with the keys concerned; keys of the first
/// hop are in `[first_hop]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// A listener beyond loopback without `listen.allow_remote`.
    #[error(
        "listen.address = \"{0}\" is not a loopback address: anyone who reaches the agent can spend your tokens. \
         Listen on 127.0.0.1, or set listen.allow_remote = true if that is what you want"
    )]
    Remote(SocketAddr),
    /// Wallet limits out of range.
    #[error(
        "{0}wallet.low = {low} and {0}wallet.high = {high}: high must be from 1 to {most} and not below low",
        .hop.section(), most = MOST_TOKENS
    )]
    Waters {
        /// The hop of the wallet.
        hop: Position,
        /// `wallet.low`.
        low: usize,
        /// `wallet.high`.
        high: usize,
    },
    /// No gateway, too many, or one listed twice.
    #[error(
        "{}gateway.url lists {number} gateways: name one at least and {most} at most, each once",
        .hop.section(), most = MOST_GATEWAYS
    )]
    Gateways {
        /// The hop of the list.
        hop: Position,
        /// The number of entries.
        number: usize,
    },
    /// No issuer, too many, or one listed twice.
    #[error(
        "{}issuer.url lists {number} issuers: name one at least and {most} at most, each once, or leave it out",
        .hop.section(), most = MOST_ISSUERS
    )]
    Issuers {
        /// The hop of the list.
        hop: Position,
        /// The number of entries.
        number: usize,
    },
    /// An API key without `issuer.url`: the gateway's challenge would choose the host that receives the key.
    #[error(
        "{of}issuer.api_key or {of}issuer.api_key_file is set but {of}issuer.url is not: name the issuer that the key is for, because \
         otherwise the gateway's operator could have it sent anywhere", of = .0.section()
    )]
    KeyWithoutIssuer(Position),
    /// Both `api_key` and `api_key_file`.
    #[error("{of}issuer.api_key and {of}issuer.api_key_file are both set: keep one", of = .0.section())]
    TwoKeys(Position),
    /// An invalid URL of a mirror, or too many mirrors.
    #[error(
        "{}issuer.consistency.mirrors lists {url}: each has to be http://host:port or https://host, with or without a path, and \
         there may be {most} at most", .hop.section(), most = MOST_MIRRORS
    )]
    Mirror {
        /// The hop of the issuer.
        hop: Position,
        /// The first invalid URL, or the first one beyond the limit.
        url: String,
    },
    /// A client certificate without its key or a key without its certificate, or either for a gateway without https.
    #[error(
        "{of}gateway.certificate and {of}gateway.key belong together, and only an https gateway can require them: set both or \
         neither, and begin each {of}gateway.url with https://", of = .0.section()
    )]
    OwnCertificate(Position),
    /// A client certificate without its key or a key without its certificate, or either for an issuer that is not named or not
    /// https.
    #[error(
        "{of}issuer.certificate and {of}issuer.key belong together, and are for an https issuer that is named: set both or neither, and \
         {of}issuer.url = \"https://…\"", of = .0.section()
    )]
    IssuerCertificate(Position),
    /// A last hop without https: the first hop could read destinations, and spend the last hop's tokens.
    #[error(
        "gateway.url = \"{0}\" is reached through [first_hop], which could read all that is sent there: begin it with https://"
    )]
    ReadByFirstHop(String),
    /// The same gateway in both hops: it would see both the client and the destinations.
    #[error(
        "gateway.url and first_hop.gateway.url both name {0}: a gateway that is both hops knows who and where. Name one of \
         another operator, or leave [first_hop] out"
    )]
    SameGateway(String),
    /// The same wallet file for both hops.
    #[error("wallet.path and first_hop.wallet.path are the same file, {}: give each hop its own", .0.display())]
    SameWallet(PathBuf),
}
