//! The arguments of `postern client`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Run the agent; or configure one with a join string, or see what a running one does.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Client {
    #[command(subcommand)]
    command: Option<ClientCommand>,
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
}

/// What `postern client` is to do.
pub(crate) enum ClientTask {
    Run(PathBuf),
    Command(ClientCommand),
}

impl Client {
    /// Nothing where there is neither a command nor a configuration, which clap refuses.
    pub(crate) fn task(self) -> Option<ClientTask> {
        let Self { command, config } = self;
        command.map(ClientTask::Command).or_else(|| config.map(ClientTask::Run))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Write an agent's configuration from the join string that the issuer's operator gave you
    Join(JoinArgs),
    /// Print what a running agent does: its gateways, its tokens, and what it mints next
    Status(AgentStatus),
}

/// Write an agent's configuration from a join string: gateways, issuer, API key and the certificates to trust.
///
/// A join string holds the account's API key: it is a secret. Give it by standard input or as a file, because other users of this
/// machine see the command line of every process. Nothing is sent anywhere without --check.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// A file with the join string, "-" for standard input, or the join string itself
    #[arg(value_name = "STRING|-|FILE")]
    pub(crate) join: String,
    /// The configuration to write
    #[arg(long, value_name = "FILE", default_value = "client.toml")]
    pub(crate) config: PathBuf,
    /// Where the API key, the certificates and the wallet are kept
    #[arg(long, value_name = "DIR", default_value = "postern-client")]
    pub(crate) data: PathBuf,
    /// Replace a configuration that is there. Tokens in the wallet are kept
    #[arg(long)]
    pub(crate) force: bool,
    /// Fetch the gateways' challenges and the issuer's keys, and say whether the agent would get tokens: one is minted and given up
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AgentStatus {
    /// The running agent's configuration file, with the environment variables as they are now
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
