//! The `postern` binary: all daemons and tools.

// These macros panic if the reader of a pipe has gone; `stdio` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "servers")]
mod account;
mod args;
mod catalogue;
mod daemon;
#[cfg(feature = "servers")]
mod doctor;
mod failure;
mod generate;
#[cfg(feature = "servers")]
mod init;
mod join;
mod ports;
mod process;
mod running;
mod status;
mod stdio;
mod token;
#[cfg(feature = "servers")]
mod up;

use args::{Cli, Client, ClientCommand, Command, Token};
use clap::Parser;
use failure::Failure;
use postern_daemon::exit;
use postern_daemon::listen::handed;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    handed::take_over(); // before any thread starts
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::from(exit::STOPPED),
        Err(failure) => {
            stdio::note(format_args!("postern: {}", failure.sentence));
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "servers")]
        Command::Servers(command) => run_servers(*command),
        Command::Client(Client { command: Some(ClientCommand::Join(args)), .. }) => {
            runtime(Some(1))?.block_on(join::join(args))
        }
        Command::Client(Client { command: Some(ClientCommand::Status(args)), .. }) => {
            runtime(Some(1))?.block_on(status::of_agent(&args))
        }
        Command::Client(Client { config: Some(config), .. }) => {
            runtime(None)?.block_on(daemon::client(&config))
        }
        // clap rejects such a command line.
        Command::Client(_) => {
            Err(Failure::usage("name the agent's configuration: postern client --config FILE"))
        }
        Command::Token(Token::Mint(mint)) => runtime(None)?.block_on(token::mint(mint)),
        Command::Token(Token::Inspect(inspect)) if !inspect.compare.is_empty() => {
            runtime(Some(1))?.block_on(token::compare(&inspect))
        }
        Command::Token(Token::Inspect(inspect)) => token::inspect(inspect),
        Command::Completions(completions) => generate::completions(completions.shell),
        Command::ManPages(pages) => generate::man_pages(&pages.directory),
    }
}

#[cfg(feature = "servers")]
fn run_servers(command: args::Servers) -> Result<(), Failure> {
    use args::{Issuer, IssuerCommand, Server, Servers};

    match command {
        Servers::Init(init) => init::run(&init),
        Servers::Up(up) => runtime(None)?.block_on(up::run(up)),
        // The gateway runs its connections on its own threads; this runtime only does maintenance.
        Servers::Gateway(daemon) => runtime(Some(1))?.block_on(daemon::gateway(&daemon)),
        Servers::Issuer(Issuer { command: Some(command), .. }) => match command {
            IssuerCommand::Account(command) => account::run(command),
            IssuerCommand::Key(command) => account::key(command),
            IssuerCommand::Usage(args) => account::usage(args),
            IssuerCommand::Migrate { to, daemon } => account::migrate(to, &daemon.config),
            IssuerCommand::Backup { to, daemon } => account::backup(&to, &daemon.config),
        },
        Servers::Issuer(Issuer { config: Some(config), self_signed, .. }) => {
            runtime(None)?.block_on(daemon::issuer(&Server { config, self_signed }))
        }
        // clap rejects such a command line.
        Servers::Issuer(_) => {
            Err(Failure::usage("name the issuer's configuration: postern issuer --config FILE"))
        }
        Servers::Status(args) => runtime(Some(1))?.block_on(status::of_machine(&args)),
        Servers::Doctor(doctor) => {
            let runtime = runtime(Some(1))?;
            let examined = runtime.block_on(doctor::run(&doctor));
            runtime.shutdown_background(); // the system's resolver may block for up to 30 s
            examined
        }
    }
}

/// Creates a runtime with `threads` workers; by default one per core.
fn runtime(threads: Option<usize>) -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format_args!("cannot start a runtime: {error}")))
}
