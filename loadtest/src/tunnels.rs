//! Many short tunnels, each with one byte there and back.

use crate::target::Target;
use crate::tunnel::{Opener, Through, echo, print_line};
use anyhow::{Result, anyhow};
use std::fmt;
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

/// Of a set of times, by sorting: runs are short enough to keep every value.
#[derive(Debug, PartialEq, Eq)]
struct Percentiles {
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl Percentiles {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut sorted: Vec<_> = times.collect();
        sorted.sort_unstable();
        Self { p50: rank(&sorted, 50), p99: rank(&sorted, 99), max: rank(&sorted, 100) }
    }
}

/// The smallest value that is not less than this percentage of all (nearest rank); zero where there are none.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    rank.checked_sub(1).map_or(Duration::ZERO, |index| sorted[index])
}

/// As JSON, in microseconds.
impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, r#"{{"p50":{:.1},"p99":{:.1},"max":{:.1}}}"#, us(self.p50), us(self.p99), us(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_first_hundred_numbers_in_any_order() {
        let us = Duration::from_micros;
        let percentiles = Percentiles::of((1..=100).rev().map(us));
        assert_eq!(percentiles, Percentiles { p50: us(50), p99: us(99), max: us(100) });
        assert_eq!(percentiles.to_string(), r#"{"p50":50.0,"p99":99.0,"max":100.0}"#);
    }

    #[test]
    fn of_one_and_of_none() {
        let us = Duration::from_micros;
        assert_eq!(Percentiles::of([us(7)].into_iter()), Percentiles { p50: us(7), p99: us(7), max: us(7) });
        assert_eq!(Percentiles::of([].into_iter()).to_string(), r#"{"p50":0.0,"p99":0.0,"max":0.0}"#);
    }
}
