#[cfg(feature = "servers")]
mod issuer;
#[cfg(feature = "servers")]
mod servers;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
#[cfg(feature = "servers")]
pub(crate) use {
    issuer::{
        AccountCommand, Change, Issuer, IssuerCommand, Joining, KeyCommand, NewAccount, One, Output, Pace,
        Place, UsageArgs, UsageFormat,
    },
    servers::{Doctor, EgressQuestion, Init, Question, Server, Status, Up},
};

/// A forward proxy paid for with anonymous tokens (Privacy Pass, RFC 9577 and 9578).
///
#[cfg_attr(feature = "servers", doc = "`postern up` runs the whole system on this machine: start there.")]
#[cfg_attr(not(feature = "servers"), doc = "This program is the agent alone.")]
#[cfg_attr(
    feature = "servers",
    doc = "\nThe Debian package has the documents in /usr/share/doc/postern: README.md is the first."
)]
#[derive(Debug, Parser)]
#[command(name = "postern", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(feature = "servers")]
    #[command(flatten)]
    Servers(Box<Servers>),
    /// Run the agent: the local proxy that gets tokens and pays with them; or configure one, or see what one does
    Client(Client),
    /// Mint tokens, or inspect one
    #[command(subcommand)]
    Token(Token),
    /// Print the completions of this command line for a shell
    Completions(Completions),
    /// Write the man pages, as packages have them
    #[command(hide = true)]
    ManPages(ManPages),
}

/// The commands that need gateway or issuer.
#[cfg(feature = "servers")]
#[derive(Debug, Subcommand)]
pub(crate) enum Servers {
    /// Run issuer, gateway and agent in one process on loopback, to try the system or to develop against it
    Up(Up),
    /// Write the configurations of a gateway, an issuer and an agent, or of a fleet, that work together on this machine
    Init(Init),
    /// Run a gateway: the proxy that takes a token for each tunnel
    Gateway(Server),
    /// Run an issuer: the server that signs tokens without seeing them; or see and change its accounts and keys
    Issuer(Issuer),
    /// Print what of Postern runs on this machine, and whether it is ready
    Status(Status),
    /// Examine this machine and what runs on it; check configurations without starting anything
    Doctor(Box<Doctor>),
}

/// Run the agent; or configure one with a join string, or see what a running one does.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Client {
    #[command(subcommand)]
    pub(crate) command: Option<ClientCommand>,
    /// The configuration file (TOML); docs/reference/configuration.md has every key
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) config: Option<PathBuf>,
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
    /// Fetch the gateways' challenges and the issuer's keys, and report whether the agent gets tokens: one is minted and given up
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
    /// The account's API key. Other users of this machine can read it here, not in the environment variable, which the agent reads too
    #[arg(long, value_name = "KEY", env = "POSTERN_ISSUER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// A file with the account's API key, or "-" for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Number of tokens
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Write to this new file, readable by its owner only, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
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
    /// one a line, such as `token mint --out` writes; read from standard input by default
    pub(crate) value: Option<String>,
    /// Fetch the directory of an issuer or mirror, or the challenge of a gateway, from each URL: do they agree? Exit code 0 when
    /// they do, 1 when something differs, 70 when one gives neither
    #[arg(long, value_name = "URL", num_args = 1.., conflicts_with = "value")]
    pub(crate) compare: Vec<String>,
    /// With --compare: PEM file with the certificates to trust instead of the platform's
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub(crate) ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
