//! The arguments of `postern gateway` and `postern up`.

use clap::Args;
use postern_config::address::argument;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A daemon that reads a configuration file.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

/// A daemon that programs on other machines connect to.
#[derive(Debug, Args)]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) daemon: Daemon,
    /// Serve TLS with a certificate for localhost that is made for it, to try it: clients trust ca.pem in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) self_signed: Option<PathBuf>,
}

/// Run issuer, gateway and agent in one process on loopback, to try the system or to develop against it.
///
/// Where a port below is taken, the next one that is free is used, unless the address was given.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where keys, spent records and the wallet are kept
    #[arg(long, value_name = "DIR", default_value = "postern-data")]
    pub(crate) data: PathBuf,
    /// Where programs connect: an HTTP and SOCKS5 proxy [default: 127.0.0.1:8118]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) client: Option<SocketAddr>,
    /// Where the gateway listens [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) gateway: Option<SocketAddr>,
    /// Where the issuer listens [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) issuer: Option<SocketAddr>,
    /// Where the live page, /metrics, /livez and /readyz are served [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) admin: Option<SocketAddr>,
    /// Run a second gateway in front, through which the agent reaches the first, as two operators would: the one in front knows
    /// who, the other knows where. Both are in one process here, and one issuer signs for both: to try it, not to hide
    #[arg(long)]
    pub(crate) two_hops: bool,
    /// Where the gateway in front listens [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR", value_parser = argument, requires = "two_hops")]
    pub(crate) first_hop: Option<SocketAddr>,
    /// Open the live page in the browser once everything is ready
    #[arg(long)]
    pub(crate) open: bool,
    /// Let tunnels reach any address and port: by default private addresses and ports other than 80 and 443 are refused
    #[arg(long)]
    pub(crate) open_egress: bool,
    /// Let programs on other machines use the agent, with --client 0.0.0.0:8118: each tunnel of theirs costs one of
    /// your tokens, and they reach what this machine reaches
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// Send a trace of every request to this collector (OTLP over HTTP), such as Jaeger's http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<String>,
}
