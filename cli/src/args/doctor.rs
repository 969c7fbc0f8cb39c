//! The arguments of `postern doctor`.

use super::quantity::{bandwidth, rate};
use crate::doctor::Link;
use clap::{Args, Subcommand, ValueEnum};
use postern_config::{ConfigDuration, Size};
use postern_gateway::{Target, TargetError};
use serde::Serialize;
use std::path::PathBuf;

/// Above the arguments of a plan.
const PLAN_HEADING: &str = "With --plan";

/// Hides the arguments of a plan, or shows them.
pub(super) fn hide_plan(doctor: clap::Command, hides: bool) -> clap::Command {
    doctor.mut_args(|argument| {
        let is_planned = argument.get_help_heading() == Some(PLAN_HEADING);
        argument.hide(is_planned && hides)
    })
}

/// Examine this machine and every part of Postern on it; or check one configuration or process; or plan a fleet.
///
/// Without an option it examines this machine, the processes at the default admin ports, and gateway.toml, issuer.toml, client.toml
/// and postern*.toml here and in /etc/postern, or in each PATH: would their daemons start, and is what they need there (names,
/// certificates, store, issuer, open files)? It starts nothing, writes nothing and needs no privileges. `postern doctor --plan
/// --help` lists the arguments of a plan.
///
/// Exit code 0 when nothing is refused, 64 when a configuration is, 70 when something on this machine or a link is bad,
/// a process is not ready, nothing answers, or a gateway refuses a target.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Doctor {
    #[command(subcommand)]
    pub(crate) question: Option<Question>,
    /// Configuration files, or folders with some, such as that of `postern init`
    #[arg(value_name = "PATH", conflicts_with_all = ["config", "mcrouter_config", "twemproxy_config", "links", "ready", "plan"])]
    pub(crate) paths: Vec<PathBuf>,
    /// Whether a daemon would start with this configuration file (TOML), by the file and the environment variables alone: nothing is
    /// tried over the network
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
    /// Print JSON: the findings, or the plan
    #[arg(long, conflicts_with_all = ["config", "mcrouter_config", "twemproxy_config", "links", "ready"])]
    pub(crate) json: bool,
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
