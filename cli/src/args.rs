//! The command line.

mod client;
mod init;
mod issuer;
mod quantity;
mod status;

use crate::doctor::Link;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
pub(crate) use client::{AgentStatus, Client, ClientCommand, ClientTask, JoinArgs, Joining};
pub(crate) use init::Init;
pub(crate) use issuer::{
    AccountCommand, Change, ExportKey, Issuer, IssuerCommand, KeyCommand, NewAccount, Output, Pace,
    RetireKey, Rotate, RotateKey, Task, UsageArgs, UsageFormat,
};
use postern_config::address::argument;
use postern_config::{ConfigDuration, Size};
use postern_gateway::{Target, TargetError};
use quantity::{bandwidth, rate};
use serde::Serialize;
pub(crate) use status::Status;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A forward proxy paid for with anonymous tokens (Privacy Pass, RFC 9577 and 9578).
///
/// `postern up` runs the whole system on this machine: start there.
#[derive(Debug, Parser)]
#[command(name = "postern", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line of this process. Exits if it only requests help.
    pub(crate) fn read() -> Self {
        let wants_plan = std::env::args_os().any(|argument| argument == "--plan");
        let matches = command(wants_plan).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The command line. The many arguments of a plan are shown only with `--plan`.
pub(crate) fn command(shows_plan: bool) -> clap::Command {
    Cli::command().mut_subcommand("doctor", |doctor| {
        doctor.mut_args(|argument| {
            let is_planned = argument.get_help_heading() == Some(PLAN_HEADING);
            argument.hide(is_planned && !shows_plan)
        })
    })
}

/// Above the arguments of a plan.
const PLAN_HEADING: &str = "With --plan";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run issuer, gateway and agent in one process on loopback, to try the system or to develop against it
    Up(Up),
    /// Write the configurations of a gateway, an issuer and an agent, or of a fleet, that work together on this machine
    Init(Init),
    /// Run a gateway: the proxy that takes a token for each tunnel
    Gateway(Server),
    /// Run an issuer: the server that signs tokens without seeing them; or see and change its accounts and keys
    Issuer(Issuer),
    /// Run the agent: the local proxy that gets tokens and pays with them; or configure one, or see what one does
    Client(Client),
    /// Print what of Postern runs on this machine, and whether it is ready
    Status(Status),
    /// Mint tokens, or inspect one
    #[command(subcommand)]
    Token(Token),
    /// Examine this machine and what runs on it; check configurations without starting anything; plan a fleet
    Doctor(Doctor),
    /// Print the completions of this command line for a shell
    Completions(Completions),
    /// Write the man pages, as packages have them
    #[command(hide = true)]
    ManPages(ManPages),
}

/// Print the completions of this command line for a shell.
///
/// For bash: postern completions bash > ~/.local/share/bash-completion/completions/postern
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// A folder that exists
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

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

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where keys, spent records and the wallet are kept
    #[arg(long, value_name = "DIR", default_value = "postern-data")]
    pub(crate) data: PathBuf,
    /// Where programs connect: an HTTP and SOCKS5 proxy
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8118")]
    pub(crate) client: SocketAddr,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8080")]
    pub(crate) gateway: SocketAddr,
    /// Where the issuer listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8081")]
    pub(crate) issuer: SocketAddr,
    /// Where the live page, /metrics, /livez and /readyz are served
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:9090")]
    pub(crate) admin: SocketAddr,
    /// Run a second gateway in front, through which the agent reaches the first, as two operators would: the one in front knows
    /// who, the other knows where. Both are in one process here, and one issuer signs for both: to try it, not to hide
    #[arg(long)]
    pub(crate) two_hops: bool,
    /// Where the gateway in front listens
    #[arg(long, value_name = "ADDR", value_parser = argument, default_value = "127.0.0.1:8082", requires = "two_hops")]
    pub(crate) first_hop: SocketAddr,
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
    /// Send a trace of every request to this OTLP collector (gRPC), such as Jaeger's http://127.0.0.1:4317
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<String>,
}

/// Examine this machine and every part of Postern on it; or check one configuration or process; or plan a fleet.
///
/// Without an argument it examines the default admin ports of this machine, at gateway.toml, issuer.toml, client.toml
/// and postern*.toml here and in /etc/postern, and at ./postern-data. `postern doctor --plan --help` lists the
/// arguments of a plan.
///
/// Exit code 0 when nothing is refused, 64 when a configuration is, 70 when something on this machine or a link is bad,
/// a process is not ready, nothing answers, or a gateway refuses a target.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Doctor {
    #[command(subcommand)]
    pub(crate) question: Option<Question>,
    /// A gateway's, issuer's or agent's configuration file (TOML), with the environment variables as they are now
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// An mcrouter configuration file: can an `add` of a spent token be admitted twice under its routes?
    #[arg(long, value_name = "FILE")]
    pub(crate) mcrouter_config: Option<PathBuf>,
    /// A twemproxy configuration file (nutcracker.yml), beside the gateway's: can a token be admitted twice behind it?
    #[arg(long, value_name = "FILE")]
    pub(crate) twemproxy_config: Option<PathBuf>,
    /// The admin address of a running gateway, issuer or agent, such as http://127.0.0.1:9090: attempts, losses and
    /// times of each of its links
    #[arg(long, value_name = "URL")]
    pub(crate) links: Option<String>,
    /// The admin address of a running process: prints its /readyz. For health checks where there is no curl
    #[arg(long, value_name = "URL")]
    pub(crate) ready: Option<String>,
    /// The round-trip time to your farthest clients, such as 100ms: with the next, are this machine's buffers large enough?
    #[arg(long, value_name = "SPAN", requires = "bandwidth")]
    pub(crate) rtt: Option<ConfigDuration>,
    /// What one tunnel should reach at that distance, such as 500Mbit
    #[arg(long, value_name = "BANDWIDTH", requires = "rtt", value_parser = bandwidth)]
    pub(crate) bandwidth: Option<f64>,
    /// How many machines a fleet needs for a rate, and what breaks first; see docs/operate/capacity.md
    #[arg(long)]
    pub(crate) plan: bool,
    #[command(flatten)]
    pub(crate) planned: Plan,
}

impl Doctor {
    /// Whether no option selects one examination.
    pub(crate) fn names_nothing(&self) -> bool {
        let Self { question, config, mcrouter_config, twemproxy_config, links, ready, plan, .. } = self;
        let files = config.is_some() || mcrouter_config.is_some() || twemproxy_config.is_some();
        question.is_none() && !files && links.is_none() && ready.is_none() && !plan
    }

    /// The way to the clients, where it is named.
    pub(crate) fn link(&self) -> Option<Link> {
        let (round_trip, bits) = self.rtt.map(ConfigDuration::get).zip(self.bandwidth)?;
        Some(Link { round_trip, bits })
    }
}

/// One question, with arguments of its own.
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

/// What `--plan` plans for.
#[derive(Debug, Args)]
#[command(next_help_heading = PLAN_HEADING)]
pub(crate) struct Plan {
    /// Requests a second, each a tunnel and a token: "10000", "50k", "1M"
    #[arg(long, value_name = "N", requires = "plan", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// The longest time that a spent token is stored: the issuer's rotate_every and redeem_for, and an hour of margin
    #[arg(long, value_name = "SPAN", requires = "plan", default_value = "889h")]
    pub(crate) lifetime: ConfigDuration,
    /// Copies of each record: 1, or 3 for a quorum
    #[arg(long, value_name = "N", requires = "plan", default_value_t = 3)]
    pub(crate) replicas: u32,
    /// Regions: how many equal ones, or the share of each, such as 50,30,20
    #[arg(long, value_name = "N", requires = "plan", default_value = "1")]
    pub(crate) regions: String,
    /// The place of the store of several regions
    #[arg(long, value_enum, requires = "plan", default_value_t = Place::Bound)]
    pub(crate) place: Place,
    /// The round-trip time between two regions
    #[arg(long, value_name = "SPAN", requires = "plan", default_value = "40ms")]
    pub(crate) distance: ConfigDuration,
    /// How long a tunnel is open
    #[arg(long, value_name = "SPAN", requires = "plan", default_value = "30s")]
    pub(crate) tunnel: ConfigDuration,
    /// The bytes of a tunnel, both ways together
    #[arg(long, value_name = "SIZE", requires = "plan", default_value = "64KiB")]
    pub(crate) bytes: Size,
    /// Percent of all tunnels that lead to one and the same address and port
    #[arg(long, value_name = "PERCENT", requires = "plan", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) same_target: u32,
    /// Tokens signed a second; by default as many as are spent
    #[arg(long, value_name = "N", requires = "plan", value_parser = rate)]
    pub(crate) issued: Option<f64>,
    /// Tokens that an agent gets over one connection
    #[arg(long, value_name = "N", requires = "plan", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) batch: u32,
    /// Cores of a machine
    #[arg(long, value_name = "N", requires = "plan", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: u32,
    /// Memory of a machine
    #[arg(long, value_name = "SIZE", requires = "plan", default_value = "64GiB")]
    pub(crate) memory: Size,
    /// The network link of a machine
    #[arg(long, value_name = "BANDWIDTH", requires = "plan", default_value = "10Gbit", value_parser = bandwidth)]
    pub(crate) nic: f64,
    /// Percent of cores and links that may be busy
    #[arg(long, value_name = "PERCENT", requires = "plan", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) busy: u32,
    /// The number of gateways; by default as many as are needed
    #[arg(long, value_name = "N", requires = "plan", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gateways: Option<u32>,
    /// The number of memcached servers, all replicas together
    #[arg(long, value_name = "N", requires = "plan", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) servers: Option<u32>,
    /// The number of issuer machines
    #[arg(long, value_name = "N", requires = "plan", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) issuers: Option<u32>,
    /// transport = "pooled", with this latency of a command; pipelined by default
    #[arg(long, value_name = "SPAN", requires = "plan")]
    pub(crate) pooled: Option<ConfigDuration>,
    /// Print the plan as JSON
    #[arg(long, requires = "plan")]
    pub(crate) json: bool,
}

/// The place of the store of several regions. A token spent in one region must be known in every region that accepts
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// Each region has its own origin and store: a token is good in one region
    Bound,
    /// One store, in the first region
    Owned,
    /// One store, with a replica in each of three regions
    Spread,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Mint tokens: prints one Proxy-Authorization value a line
    Mint(Mint),
    /// Explain the fields of a header value, challenge or token, and what is wrong with it
    Inspect(Inspect),
}

#[derive(Debug, Args)]
pub(crate) struct Mint {
    /// The issuer, such as https://issuer.example
    #[arg(long, value_name = "URL")]
    pub(crate) issuer: String,
    /// Mint for the challenge in this gateway's 407; without it for a challenge that names the issuer and no origin
    #[arg(long, value_name = "URL")]
    pub(crate) gateway: Option<String>,
    /// The account's API key; the environment variable, which the agent reads too, keeps it out of the process list
    #[arg(long, value_name = "KEY", env = "POSTERN_ISSUER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// How many tokens
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Write to this new file, readable by its owner only, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// With --out: append to the file if it exists
    #[arg(long, requires = "out")]
    pub(crate) append: bool,
    /// PEM file with the certificates to trust for issuer and gateway instead of the platform's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate (PEM) by which the issuer knows the account
    #[arg(long, value_name = "FILE", requires = "certificate_key")]
    pub(crate) certificate: Option<PathBuf>,
    /// That certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) certificate_key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The value of Proxy-Authorization or Proxy-Authenticate, a bare token or challenge, or the name of a file with
    /// one a line; read from standard input by default
    pub(crate) value: Option<String>,
    /// A file with one value a line, such as `token mint --out` writes
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,
    /// Fetch the directory of an issuer or mirror, or the challenge of a gateway, from each URL: do they agree? Exit code 0 when
    /// they do, 1 when something differs, 70 when one gives neither
    #[arg(long, value_name = "URL", num_args = 1.., conflicts_with_all = ["value", "file"])]
    pub(crate) compare: Vec<String>,
    /// With --compare: PEM file with the certificates to trust instead of the platform's
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub(crate) ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        [true, false].into_iter().for_each(|shows_plan| command(shows_plan).debug_assert());
    }
}
