use clap::{Args, Subcommand};
use postern_config::address::argument;
use postern_gateway::{Target, TargetError};
use std::net::SocketAddr;
use std::path::PathBuf;

/// A daemon that programs on other machines connect to.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
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

/// Write the configurations of a gateway, an issuer and an agent that work together on this machine, and what they need:
/// a certificate of an authority made for trying, an account with its API key, and folders for their state.
/// Or, with --origin, the configurations of a fleet on several machines.
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
    /// With --fleet: write the files of servers on separate machines, ready without edits. The gateways' name in
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

/// Print what of Postern runs on this machine: each daemon, its version, whether it is ready or why not, and its live page.
///
/// It queries the admin listeners of the configurations in a folder, or of those given by --config; without any, the default
/// admin ports, such as that of `postern up`. A URL is that of one admin listener, whose links are printed, too: attempts, losses
/// and times of each. `postern client status` shows more of an agent, `postern doctor` of what is wrong.
///
/// Exit code 0 when all are ready, 1 when one is not, 3 when none runs: fit for health checks.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The folder of the configurations, such as that of `postern init`, or the URL of a daemon's admin listener
    #[arg(value_name = "DIR|URL", default_value = ".")]
    pub(crate) place: String,
    /// A daemon's configuration file, with the environment variables as they are now; repeat it for several
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "place")]
    pub(crate) config: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Status {
    /// Returns the URL of an admin listener if `place` is a URL.
    pub(crate) fn admin(&self) -> Option<&str> {
        let is_url = self.place.starts_with("http://") || self.place.starts_with("https://");
        is_url.then_some(self.place.as_str())
    }
}

/// Examine this machine, every part of Postern on it, and what its configurations need.
///
/// A PATH is the configuration of a gateway, an issuer or an agent (TOML), of mcrouter (JSON) or of twemproxy (YAML), or a folder
/// with some of them; what a file holds decides. Without one, it looks in this folder and in /etc/postern. Would the daemons start, and
/// is what they need there (names, certificates, store, issuer, open files)? Can a router admit a token twice? It starts
/// nothing, writes nothing and needs no privileges. `postern status` shows what runs.
///
/// Exit code 0 when nothing is bad; that of the start when a daemon would not start (64 for its configuration), 64 when a router is
/// unfit, and 70 when something else is bad or a gateway refuses a target.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Doctor {
    #[command(subcommand)]
    pub(crate) question: Option<Question>,
    /// Configuration files, or folders with some, such as that of `postern init`
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A question and its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// May a gateway's tunnels reach a target: which of its egress rules or keys decides, and does a refusal cost a token?
    ///
    /// Resolves the target as a gateway on this machine does, and connects to nothing. Exit code 0 when tunnels may reach it, 70
    /// when they may not or its name has no address, 64 when the configuration is refused.
    Egress(EgressQuestion),
}

#[derive(Debug, Args)]
pub(crate) struct EgressQuestion {
    #[arg(
        help = "The target as a client gives it, such as b.example:443, 192.0.2.7:80 or [2001:db8::1]:443"
    )]
    #[arg(value_name = "NAME:PORT", value_parser = target)]
    pub(crate) target: Target,
    /// The gateway's configuration file (TOML), with the environment variables as they are now
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

fn target(text: &str) -> Result<Target, TargetError> {
    Target::parse(text, None)
}
