//! Code shared by the cross-process tests: the binary under test as processes, raw proxy clients, small targets.

pub mod accounts;
pub mod admin;
pub mod association;
pub mod authorizer;
pub mod collector;
pub mod daemon;
pub mod disk;
pub mod doctor;
pub mod faketime;
pub mod http2;
pub mod jaeger;
pub mod ledger;
pub mod memcached;
pub mod needles;
pub mod pebble;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod relay;
pub mod reload;
pub mod router;
pub mod site;
pub mod target;
pub mod tls;
pub mod tokens;
pub mod udp;
pub mod unit;
pub mod up;
pub mod users;
pub mod windows;

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longer than anything takes that works, on a busy machine: a test that hangs fails.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval for what has no event to wait for.
pub const TICK: Duration = Duration::from_millis(5);

/// Looks again and again until `look` finds something.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looking = async {
        loop {
            let began = Instant::now();
            if let Some(found) = look().await {
                return found;
            }
            // A look at the metrics costs a daemon 10 ms of CPU in a build for development, which other tests want.
            tokio::time::sleep((2 * began.elapsed()).clamp(TICK, 20 * TICK)).await;
        }
    };
    match timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// Fails work that takes longer than [`PATIENCE`].
pub async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Replaces a part of a file that is there once.
pub fn edit(file: &Path, from: &str, to: &str) {
    let text = read(file);
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
    std::fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// Returns the text of a file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
