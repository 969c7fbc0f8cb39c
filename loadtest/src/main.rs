//! Drives tunnels through a proxy, and is their target as well. It knows nothing of the proxy but its address, so that
//! several can be compared in one run; `loadtest/run compare` starts them, and measures their processes meanwhile.

mod bulk;
mod http2;
mod idle;
mod target;
mod tls;
mod tunnel;
mod tunnels;

use anyhow::Result;
use clap::{Parser, Subcommand};

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

fn main() -> Result<()> {
    match Arguments::parse().work {
        Work::Tunnels(arguments) => tunnels::run(&arguments),
        Work::Bulk(arguments) => bulk::run(&arguments),
        Work::Idle(arguments) => idle::run(&arguments),
    }
}
