//! The arguments of `postern doctor`.

use clap::{Args, Subcommand};
use postern_gateway::{Target, TargetError};
use std::path::PathBuf;

/// Examine this machine, every part of Postern on it, and what its configurations need.
///
/// A PATH is the configuration of a gateway, an issuer or an agent (TOML), of mcrouter (JSON) or of twemproxy (YAML), or a folder
/// with some of them; what a file holds decides. Without one, it looks in this folder and in /etc/postern. Would the daemons start, and
/// is what they need there (names, certificates, store, issuer, open files)? Can a router admit a token twice? It starts
/// nothing, writes nothing and needs no privileges. `postern status` says what runs.
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
