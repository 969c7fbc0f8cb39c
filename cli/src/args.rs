//! The command line.

use clap::{Args, Parser, Subcommand};
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run issuer, gateway and agent in one process on loopback, to try the system or to develop against it
    Up(Up),
    /// Run a gateway: the proxy that takes a token for each tunnel
    Gateway(Daemon),
    /// Run an issuer: the server that signs tokens without seeing them
    Issuer(Daemon),
    /// Run the agent: the local proxy that gets tokens and pays with them
    Client(Daemon),
    /// Get tokens, or look into one
    #[command(subcommand)]
    Token(Token),
    /// Check configurations without starting anything, or what runs
    #[command(arg_required_else_help = true)]
    Doctor(Doctor),
}

/// A daemon that reads a configuration file.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The configuration file (TOML); docs/configuration.md has every key
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where keys, spent records and the wallet are kept
    #[arg(long, value_name = "DIR", default_value = "postern-data")]
    pub(crate) data: PathBuf,
    /// Where programs connect: an HTTP and SOCKS5 proxy
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8118")]
    pub(crate) client: SocketAddr,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) gateway: SocketAddr,
    /// Where the issuer listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    pub(crate) issuer: SocketAddr,
    /// Where the live page, /metrics, /livez and /readyz are served
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    pub(crate) admin: SocketAddr,
    /// Let tunnels reach any address and port: by default private addresses and ports other than 80 and 443 are refused
    #[arg(long)]
    pub(crate) open_egress: bool,
    /// Send a trace of every request to this OTLP collector (gRPC), such as Jaeger's http://127.0.0.1:4317
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<String>,
}

/// Check configurations without starting anything, or a process that runs.
///
/// Exit code 0 when nothing is refused, 64 when a configuration is, 70 when a link is bad, a process is not ready, or
/// nothing answers.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A gateway's configuration file (TOML), with the environment variables as they are now
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// An mcrouter configuration file: can an `add` of a spent token be admitted twice under its routes?
    #[arg(long, value_name = "FILE")]
    pub(crate) mcrouter_config: Option<PathBuf>,
    /// The admin address of a running gateway, issuer or agent, such as http://127.0.0.1:9090: attempts, losses and
    /// times of each of its links
    #[arg(long, value_name = "URL")]
    pub(crate) links: Option<String>,
    /// The admin address of a running process: prints its /readyz. For health checks where there is no curl
    #[arg(long, value_name = "URL")]
    pub(crate) ready: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Get tokens from an issuer, one Proxy-Authorization value a line
    Mint(Mint),
    /// Say field by field what a header value, challenge or token holds, and what is wrong with it
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
    /// The account's API key; the environment variable keeps it out of the process list
    #[arg(long, value_name = "KEY", env = "POSTERN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// How many tokens
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Write to this new file, readable by its owner only, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// PEM file with the certificates to trust for issuer and gateway instead of the platform's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The value of Proxy-Authorization or Proxy-Authenticate, or a bare token or challenge; read from standard input
    /// when it is left out
    pub(crate) value: Option<String>,
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
