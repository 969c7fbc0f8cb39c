//! Many short tunnels, each with one byte there and back.

use crate::percentiles::Percentiles;
use crate::target::Target;
use crate::tunnel::{Opener, Through, echo, print_line};
use anyhow::{Result, anyhow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    through: Through,
    /// How many tunnels
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// How many clients at once; each opens its next tunnel when it has closed the one before
    #[arg(long, default_value_t = 16)]
    clients: usize,
}

/// How long a tunnel took from the client's first packet: to the 200, and to the byte that came back.
#[derive(Clone, Copy)]
struct Times {
    answered: Duration,
    echoed: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    // A proxy may be late in closing: more connections than clients must be served.
    let target = Target::start(arguments.through.target, arguments.clients * 4 + 16)?;
    let opener = Opener::new(&arguments.through, target.address, arguments.count)?;
    arguments.through.begin()?;
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let times = thread::scope(|scope| {
        let start = || scope.spawn(|| client(&opener, &next, arguments.count));
        let clients: Vec<_> = (0..arguments.clients).map(|_| start()).collect();
        let times =
            clients.into_iter().map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?);
        times.collect::<Result<Vec<_>>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    target.wait_until_left()?;
    let times = times.concat();
    let answered = Percentiles::of(times.iter().map(|times| times.answered));
    let echoed = Percentiles::of(times.iter().map(|times| times.echoed));
    let count = times.len();
    print_line(&format!(
        r#"{{"count":{count},"seconds":{seconds:.6},"answered_us":{answered},"echoed_us":{echoed}}}"#
    ))
}

fn client(opener: &Opener, next: &AtomicUsize, count: usize) -> Result<Vec<Times>> {
    let mut times = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok(times);
        }
        let mut tunnel = opener.open(number)?;
        echo(&mut *tunnel.stream)?;
        times.push(Times { answered: tunnel.answered, echoed: tunnel.began.elapsed() });
    }
}
