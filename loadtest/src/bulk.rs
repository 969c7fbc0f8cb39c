//! Many bytes through few tunnels, which are open before the clock starts.

use crate::target::{Direction, Target, send, take};
use crate::tunnel::{Opener, Through, Tunnel, print_line};
use anyhow::{Context, Result, anyhow};
use std::thread;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    through: Through,
    /// How many MiB, shared out among the tunnels
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
    /// How many tunnels at once
    #[arg(long, default_value_t = 4)]
    tunnels: u64,
    /// Which way
    #[arg(long, value_enum, default_value = "down")]
    direction: Direction,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let tunnels = usize::try_from(arguments.tunnels)?;
    let target = Target::start(arguments.through.target, tunnels + 4)?;
    let opener = Opener::new(&arguments.through, target.address, tunnels)?;
    let open = (0..tunnels).map(|number| opener.open(number).map(|opened| opened.stream));
    let mut open = open.collect::<Result<Vec<_>>>()?;
    let each = (arguments.mebibytes << 20).checked_div(arguments.tunnels).context("no tunnels")?;
    arguments.through.begin()?;
    let began = Instant::now();
    thread::scope(|scope| {
        let transfers = open.iter_mut().map(|stream| {
            let stream = stream.as_mut();
            scope.spawn(move || transfer(stream, arguments.direction, each))
        });
        let transfers: Vec<_> = transfers.collect();
        transfers.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a transfer panicked"))?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    drop(open);
    target.wait_until_left()?;
    print_line(&format!(r#"{{"bytes":{},"seconds":{seconds:.6}}}"#, each * arguments.tunnels))
}

fn transfer(mut stream: &mut dyn Tunnel, direction: Direction, length: u64) -> Result<()> {
    stream.write_all(&direction.request(length))?;
    match direction {
        Direction::Down => take(&mut stream, length)?,
        Direction::Up => {
            send(&mut stream, length)?;
            stream.read_exact(&mut [0])?; // the target has them all
        }
    }
    Ok(())
}
