//! The arguments of `postern init`.

use clap::Args;
use postern_config::address::argument;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Write the configurations of a gateway, an issuer and an agent that work together on this machine, and what they need:
/// a certificate of an authority made for trying, an account with its API key, and folders for their state.
///
/// The configurations have comments and are for keeping: change names, addresses and certificates, and the same files serve on
/// other machines. Nothing is started, and nothing that is there is overwritten.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Where to write; made where it is missing
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// Write those of a fleet: two gateways on three memcacheds, of which two decide, with files for routers and Prometheus
    #[arg(long)]
    pub(crate) fleet: bool,
    /// A memcached for the records of spent tokens; with --fleet three times. By default one that is fit at 127.0.0.1:11211, or
    /// else files of the gateway's own; with --fleet ports 11211 to 11213
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) memcached: Vec<String>,
    /// Where programs connect: an HTTP and SOCKS5 proxy
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8118")]
    pub(crate) client: SocketAddr,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8080")]
    pub(crate) gateway: SocketAddr,
    /// Where the second gateway listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8082", requires = "fleet")]
    pub(crate) second_gateway: SocketAddr,
    /// Where the issuer listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8081")]
    pub(crate) issuer: SocketAddr,
    /// The gateway's admin listener; those of the issuer, the agent and a second gateway take the ports after it
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:9090")]
    pub(crate) admin: SocketAddr,
}
