//! Drives tunnels through a proxy, and is their target as well. It knows nothing of the proxy but its address, so that
//! several can be compared in one run; `loadtest/run compare` starts them, and measures their processes meanwhile.

mod bulk;
mod http2;
mod idle;
mod percentiles;
mod target;
mod tls;
mod tunnel;
mod tunnels;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use std::io::{Write, stdin, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Drives authenticated tunnels through a proxy to a target of its own, and prints a line of JSON.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Many short tunnels: connect, CONNECT, one byte there and back, close
    Tunnels(tunnels::Arguments),
    /// Many bytes through few tunnels
    Bulk(bulk::Arguments),
    /// Tunnels that are opened and then left alone until a line, or the end, comes on standard input
    Idle(idle::Arguments),
}

/// Where tunnels go and with what.
#[derive(Debug, Args)]
struct Through {
    /// The proxy
    #[arg(long, value_name = "ADDR")]
    proxy: SocketAddr,
    /// Where the target listens; a port of the system's choosing by default
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    target: SocketAddr,
    /// The proxy relays each connection to the target by itself: send no CONNECT
    #[arg(long, conflicts_with_all = ["tokens", "authorization", "no_credentials", "http2"])]
    direct: bool,
    /// The proxy speaks TLS, with a certificate for localhost of the authority in this PEM file
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Open the tunnels on this many HTTP/2 connections, in turn, rather than on one of its own each
    #[arg(long, value_name = "CONNECTIONS")]
    http2: Option<usize>,
    /// Close these tunnels by a reset, not by the end of the stream
    #[arg(long, requires = "http2")]
    reset: bool,
    /// The proxy wants no Proxy-Authorization
    #[arg(long, conflicts_with_all = ["tokens", "authorization"])]
    no_credentials: bool,
    /// One Proxy-Authorization value a line, each used for one tunnel
    #[arg(long, value_name = "FILE", conflicts_with = "authorization")]
    tokens: Option<PathBuf>,
    /// Skip this many lines of the tokens: earlier runs used them
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// One Proxy-Authorization value for all tunnels
    #[arg(long, value_name = "VALUE")]
    authorization: Option<String>,
    /// Print "ready" before the work, and begin when a line comes on standard input
    #[arg(long)]
    wait: bool,
}

fn main() -> Result<()> {
    match Arguments::parse().work {
        Work::Tunnels(arguments) => tunnels::run(&arguments),
        Work::Bulk(arguments) => bulk::run(&arguments),
        Work::Idle(arguments) => idle::run(&arguments),
    }
}

impl Through {
    /// Lets the one who measures read his clocks first.
    fn begin(&self) -> Result<()> {
        if self.wait {
            print_line("ready")?;
            ensure!(stdin().read_line(&mut String::new())? > 0, "standard input ended before the work began");
        }
        Ok(())
    }
}

/// Prints a line at once, also into a pipe.
fn print_line(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
