//! The arguments of `postern init`.

use clap::Args;
use postern_config::address::argument;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Write the configurations of a gateway, an issuer and an agent that work together on this machine, and what they need:
/// a certificate of an authority made for trying, an account with its API key, and folders for their state.
/// Or, with --origin, the configurations of a fleet on machines of their own.
///
/// The configurations have comments and are for keeping: change names, addresses and certificates, and the same files serve on
/// other machines. Nothing is started, and nothing that is there is overwritten. Where a port below is taken, the next one that is
/// free is used, unless the address was given.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Where to write; made where it is missing
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// Write those of a fleet: two gateways on three memcacheds, of which two decide, with files for routers and Prometheus
    #[arg(long)]
    pub(crate) fleet: bool,
    /// A memcached for the records of spent tokens; with --fleet three times. By default one that is fit at 127.0.0.1:11211, or
    /// else files of the gateway's own; with --fleet ports 11221 to 11223
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) memcached: Vec<String>,
    /// With --fleet: write the files of servers on machines of their own, which nothing has to be edited in. The gateways' name in
    /// tokens, such as proxy.example, which is final once tokens are out
    #[arg(long, value_name = "NAME", requires_all = ["fleet", "gateway_url", "issuer_url"])]
    #[arg(conflicts_with_all = ["client", "gateway", "second_gateway", "issuer", "admin"])]
    pub(crate) origin: Option<String>,
    /// With --origin: where clients reach the gateways, a URL for all of them, or one for each
    #[arg(long, value_name = "URL", requires = "origin")]
    pub(crate) gateway_url: Vec<String>,
    /// With --origin: where clients and gateways reach the issuer
    #[arg(long, value_name = "URL", requires = "origin")]
    pub(crate) issuer_url: Option<String>,
    /// With --origin: certificates of Let's Encrypt, to whose terms of service you agree, in place of files
    #[arg(long, requires = "origin")]
    pub(crate) acme: bool,
    /// Where programs connect: an HTTP and SOCKS5 proxy [default: 127.0.0.1:8118]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) client: Option<SocketAddr>,
    /// Where the gateway listens [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) gateway: Option<SocketAddr>,
    /// Where the second gateway listens [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR", value_parser = argument, requires = "fleet")]
    pub(crate) second_gateway: Option<SocketAddr>,
    /// Where the issuer listens [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) issuer: Option<SocketAddr>,
    /// The gateway's admin listener; those of the issuer, the agent and a second gateway take the ports after it
    /// [default: 127.0.0.1:9090; with --fleet 127.0.0.1:9190, for 9090 is Prometheus' own]
    #[arg(long, value_name = "ADDR", value_parser = argument)]
    pub(crate) admin: Option<SocketAddr>,
}
