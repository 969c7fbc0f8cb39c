//! What is wrong with a configuration that parses, and the limits of its lists.

use crate::catalogue::Position;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The most tokens that a wallet is filled to: 4 MiB on disk, and half a minute of one core to mint.
pub(super) const MOST_TOKENS: usize = 8_192;
/// The most gateways in a list.
pub(crate) const MOST_GATEWAYS: usize = 32;
/// The most issuers in a list.
pub(crate) const MOST_ISSUERS: usize = 8;
/// The most mirrors in a list.
pub(super) const MOST_MIRRORS: usize = 8;

/// Errors of a configuration that parses but cannot be served. Each begins with the keys that it is about; those of the first
/// hop are in `[first_hop]`.
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
        "{0}wallet.low = {low} and {0}wallet.high = {high}: high must be from 1 to {most} and not below low",
        .hop.section(), most = MOST_TOKENS
    )]
    Waters {
        /// Whose wallet.
        hop: Position,
        /// The low water.
        low: usize,
        /// The high water.
        high: usize,
    },
    /// No gateway, or too many.
    #[error(
        "{}gateway.url lists {number} gateways: name one at least and {most} at most, each once",
        .hop.section(), most = MOST_GATEWAYS
    )]
    Gateways {
        /// Whose list.
        hop: Position,
        /// How many it has.
        number: usize,
    },
    /// No issuer, or too many.
    #[error(
        "{}issuer.url lists {number} issuers: name one at least and {most} at most, each once, or leave it out",
        .hop.section(), most = MOST_ISSUERS
    )]
    Issuers {
        /// Whose list.
        hop: Position,
        /// How many it has.
        number: usize,
    },
    /// The gateway chooses the issuer's name: it must not choose who gets the key.
    #[error(
        "{0}issuer.api_key or {0}issuer.api_key_file is set but {0}issuer.url is not: name the issuer that the key is for, because otherwise \
         the gateway's operator could have it sent anywhere", .hop.section()
    )]
    KeyWithoutIssuer {
        /// Whose issuer.
        hop: Position,
    },
    /// Two keys for one account.
    #[error("{0}issuer.api_key and {0}issuer.api_key_file are both set: keep one", .hop.section())]
    TwoKeys {
        /// Whose issuer.
        hop: Position,
    },
    /// A mirror that could not be fetched.
    #[error(
        "{}issuer.consistency.mirrors lists {url}: each has to be http://host:port or https://host, with or without a path, and \
         there may be {most} at most", .hop.section(), most = MOST_MIRRORS
    )]
    Mirror {
        /// Whose issuer.
        hop: Position,
        /// The first one that is wrong, or beyond the most.
        url: String,
    },
    /// A certificate that could not be shown.
    #[error(
        "{0}gateway.certificate and {0}gateway.key belong together, and only an https gateway can require them: set both or \
         neither, and begin each {0}gateway.url with https://", .hop.section()
    )]
    OwnCertificate {
        /// Whose gateway.
        hop: Position,
    },
    /// A certificate for the issuer that could not be shown, or to anyone.
    #[error(
        "{0}issuer.certificate and {0}issuer.key belong together, and are for an https issuer that is named: set both or neither, and \
         {0}issuer.url = \"https://…\"", .hop.section()
    )]
    IssuerCertificate {
        /// Whose issuer.
        hop: Position,
    },
    /// The first hop could read where tunnels lead, and spend the tokens for the second.
    #[error(
        "gateway.url = \"{0}\" is reached through [first_hop], which could read all that is sent there: begin it with https://"
    )]
    ReadByFirstHop(String),
    /// One gateway at both ends knows who and where.
    #[error(
        "gateway.url and first_hop.gateway.url both name {0}: a gateway that is both hops knows who and where. Name one of \
         another operator, or leave [first_hop] out"
    )]
    SameGateway(String),
    /// Tokens of two gateways in one file.
    #[error("wallet.path and first_hop.wallet.path are the same file, {}: give each hop its own", .0.display())]
    SameWallet(PathBuf),
}
