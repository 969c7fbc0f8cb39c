//! The 40 ms, reproduced: one command after the other on one connection, in the shapes that stall and those that do
//! not. `docs/how-it-works/latency.md` explains them and has the results.
//!
//!     cargo bench --profile release -p postern-spend --bench stall [-- [--plot] [NAME...]]
//!
//! NAME takes only the shapes whose name contains it. `--plot` draws `docs/images/double-spend-latency.svg`.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

#[path = "stall/plot.rs"]
mod plot;
mod rig;
#[path = "stall/shapes.rs"]
mod shapes;

use hdrhistogram::Histogram;
use rig::Server;
use shapes::{SHAPES, Shape};
use std::time::{Duration, Instant};

/// Taken in turns, so that what else the machine does meets all of them alike.
const ROUNDS: usize = 10;
/// Commands at the beginning of a turn that are not counted: the first ones on a connection, or after a pause, do not
/// stall, since the peer's kernel acknowledges at once until it has seen that the connection is interactive.
const WARM_UP: usize = 20;
const COMMANDS: usize = 40;
/// After this number of stalls the warm-up is over.
const STALLS: usize = 3;
const STALL: Duration = Duration::from_millis(20);

/// One row of the table.
pub(crate) struct Row {
    pub(crate) shape: &'static Shape,
    /// Nanoseconds a command.
    pub(crate) latencies: Histogram<u64>,
}

fn main() {
    if !rig::asked_for() {
        return;
    }
    let (options, names): (Vec<_>, Vec<_>) =
        rig::arguments().into_iter().partition(|argument| argument.starts_with("--"));
    rig::take_first_core();
    let server = Server::start();
    let chosen = |shape: &&Shape| names.is_empty() || names.iter().any(|name| shape.name.contains(name));
    let runtime = rig::runtime();
    let mut rows: Vec<Row> =
        SHAPES.iter().filter(chosen).map(|shape| Row { shape, latencies: rig::histogram() }).collect();
    let mut connections: Vec<_> =
        rows.iter().map(|row| runtime.block_on((row.shape.connect)(&server))).collect();
    for _ in 0..ROUNDS {
        for (row, connection) in rows.iter_mut().zip(&mut connections) {
            runtime.block_on(async {
                let mut stalls = 0;
                for _ in 0..WARM_UP {
                    let since = Instant::now();
                    connection.command().await;
                    stalls += usize::from(since.elapsed() > STALL);
                    if stalls == STALLS {
                        break;
                    }
                }
                for _ in 0..COMMANDS {
                    let since = Instant::now();
                    connection.command().await;
                    rig::record(&mut row.latencies, since);
                }
            });
        }
    }
    print(&rows);
    println!("load after: {}", rig::load());
    if options.iter().any(|option| option == "--plot") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/double-spend-latency.svg");
        std::fs::write(path, plot::svg(&rows)).unwrap();
    }
}

fn print(rows: &[Row]) {
    println!("\n| one connection, {} commands | sends | p50 µs | p99 µs | max µs |", ROUNDS * COMMANDS);
    println!("|---|---|---|---|---|");
    for Row { shape, latencies } in rows {
        let micros = |nanoseconds: u64| nanoseconds as f64 / 1_000.0;
        let [median, late, latest] = [
            micros(latencies.value_at_quantile(0.5)),
            micros(latencies.value_at_quantile(0.99)),
            micros(latencies.max()),
        ];
        println!("| {} | {} | {median:.1} | {late:.1} | {latest:.1} |", shape.name, shape.sends);
    }
    println!();
}
