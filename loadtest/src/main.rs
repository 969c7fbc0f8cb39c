//! Drives tunnels through a proxy, and serves as their target. The proxy's address is all that is configured here, so several
//! proxies can be compared in one run. `loadtest/run compare` starts the proxies, and measures their processes during the run.

mod http2;
mod target;
mod tls;
mod tunnel;
mod udp;

use anyhow::{Context, Result, anyhow};
use clap::{Parser, Subcommand};
use std::fmt;
use std::io::stdin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use target::{Direction, send, take};
use tunnel::{Opener, Through, Tunnel, echo, print_line};

/// Number of idle tunnels that are opened concurrently.
const OPENERS: usize = 8;

/// Drives authenticated tunnels through a proxy to its own target, and prints a line of JSON.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Many short tunnels: connect, CONNECT, one byte there and back, close
    Tunnels {
        #[command(flatten)]
        through: Through,
        /// Number of tunnels
        #[arg(long, default_value_t = 10_000)]
        count: usize,
        /// Clients at once; each opens its next tunnel when it has closed the one before
        #[arg(long, default_value_t = 16)]
        clients: usize,
    },
    /// Many bytes through few tunnels
    Bulk {
        #[command(flatten)]
        through: Through,
        /// MiB, shared out among the tunnels
        #[arg(long, default_value_t = 1024)]
        mebibytes: u64,
        /// Number of tunnels at once
        #[arg(long, default_value_t = 4)]
        tunnels: usize,
        /// Direction of the bytes
        #[arg(long, value_enum, default_value = "down")]
        direction: Direction,
    },
    /// Datagrams in bursts through few UDP tunnels
    Datagrams {
        #[command(flatten)]
        through: Through,
        /// Datagrams, shared out among the tunnels
        #[arg(long, default_value_t = 100_000)]
        count: usize,
        /// Bytes of a datagram
        #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u16).range(5..))]
        size: u16,
        /// Datagrams of a burst; the next one is sent when it has arrived
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
        burst: u16,
        /// Number of tunnels at once
        #[arg(long, default_value_t = 4)]
        tunnels: usize,
        /// Direction of the datagrams
        #[arg(long, value_enum, default_value = "down")]
        direction: Direction,
    },
    /// Tunnels that are opened and then left alone until a line, or the end, comes on standard input
    Idle {
        #[command(flatten)]
        through: Through,
        /// Number of tunnels
        #[arg(long, default_value_t = 1000)]
        count: usize,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().work {
        Work::Tunnels { through, count, clients } => short(&through, count, clients),
        Work::Bulk { through, mebibytes, tunnels, direction } => {
            bulk(&through, mebibytes, tunnels, direction)
        }
        Work::Datagrams { through, count, size, burst, tunnels, direction } => {
            datagrams(&through, tunnels, direction, (count, size.into(), burst.into()))
        }
        Work::Idle { through, count } => idle(&through, count),
    }
}

/// Time from the client's first packet: to the 200, and to the echoed byte.
#[derive(Clone, Copy)]
struct Times {
    answered: Duration,
    echoed: Duration,
}

/// Opens many short tunnels, each with one byte in either direction.
fn short(through: &Through, count: usize, clients: usize) -> Result<()> {
    // A proxy may close late, so the target serves more connections than there are clients.
    let target = through.target(clients * 4 + 16, false)?;
    let opener = Opener::new(through, target.address, count)?;
    through.begin()?;
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let times = on_threads(0..clients, |_| client(&opener, &next, count))?;
    let seconds = began.elapsed().as_secs_f64();
    target.wait_until_left()?;
    opener.wait_until_ended()?;
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

/// Transfers many bytes through few tunnels, which are open before the clock starts.
fn bulk(through: &Through, mebibytes: u64, tunnels: usize, direction: Direction) -> Result<()> {
    let target = through.target(tunnels + 4, false)?;
    let opener = Opener::new(through, target.address, tunnels)?;
    let open = (0..tunnels).map(|number| opener.open(number).map(|opened| opened.stream));
    let mut open = open.collect::<Result<Vec<_>>>()?;
    let each = (mebibytes << 20).checked_div(tunnels as u64).context("no tunnels")?;
    through.begin()?;
    let began = Instant::now();
    on_threads(&mut open, |stream| transfer(stream.as_mut(), direction, each))?;
    let seconds = began.elapsed().as_secs_f64();
    drop(open);
    target.wait_until_left()?;
    print_line(&format!(r#"{{"bytes":{},"seconds":{seconds:.6}}}"#, each * tunnels as u64))
}

fn transfer(mut stream: &mut dyn Tunnel, direction: Direction, length: u64) -> Result<()> {
    stream.write_all(&direction.request(length))?;
    match direction {
        Direction::Down => take(&mut stream, length)?,
        Direction::Up => {
            send(&mut stream, length)?;
            stream.read_exact(&mut [0])?; // the target has received all bytes
        }
    }
    Ok(())
}

/// Sends datagrams through few tunnels, which are open before the clock starts.
fn datagrams(
    through: &Through,
    tunnels: usize,
    direction: Direction,
    (count, size, burst): (usize, usize, usize),
) -> Result<()> {
    let target = through.target(0, false)?;
    let opener = Opener::new(through, target.address, tunnels)?;
    let mut open = (0..tunnels).map(|number| opener.open_udp(number)).collect::<Result<Vec<_>>>()?;
    let each = count.checked_div(tunnels).context("no tunnels")?;
    through.begin()?;
    let began = Instant::now();
    let tallies = on_threads(&mut open, |tunnel| udp::transfer(tunnel, direction, (each, size, burst)))?;
    let seconds = began.elapsed().as_secs_f64();
    let sent = tallies.iter().map(|tally| tally.sent).sum::<usize>();
    let delivered = tallies.iter().map(|tally| tally.delivered).sum::<usize>();
    print_line(&format!(r#"{{"sent":{sent},"delivered":{delivered},"seconds":{seconds:.6}}}"#))
}

/// Opens tunnels that stay open and idle until a line arrives on standard input.
fn idle(through: &Through, count: usize) -> Result<()> {
    let target = through.target(OPENERS, true)?;
    let opener = Opener::new(through, target.address, count)?;
    through.begin()?;
    let open_one = |number| -> Result<Box<dyn Tunnel>> {
        let mut stream = opener.open(number)?.stream;
        echo(&mut *stream)?; // an idle tunnel only counts if it works
        Ok(stream)
    };
    let share = |first: usize| (first..count).step_by(OPENERS).map(open_one).collect::<Result<Vec<_>>>();
    let open = on_threads(0..OPENERS, share)?;
    print_line(&format!(r#"{{"open":{}}}"#, open.iter().map(Vec::len).sum::<usize>()))?;
    stdin().read_line(&mut String::new())?;
    drop(open);
    target.wait_until_left()
}

/// Does the work for each item on its own thread.
fn on_threads<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    })
}

/// Percentiles of a set of times, by sorting: runs are short enough to keep every value.
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

/// Returns the percentile by nearest rank; zero if there are no values.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    rank.checked_sub(1).map_or(Duration::ZERO, |index| sorted[index])
}

/// Formats JSON, in microseconds.
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
