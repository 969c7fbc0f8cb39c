//! Inspection of a store's server, for operators, and checks whether a mark may be planted there. No verdict depends on it.

use super::address::{Address, Stream, Tls};
use super::bucket::Bucket;
use super::endpoint::{Unfit, is_answer, reads};
use super::serial::{self, SerialConnection};
use super::world::random_bytes;
use crate::Unknown;
use postern_net::Lookup;
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The longest answer that is read, in bytes: memcached's settings are a few kilobytes.
const MOST: usize = 64 << 10;

/// A server, or a router in front of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Duration of some reads of records, without connecting.
    pub took: Duration,
    /// The answer to `version`; `None` if there is none. A router returns its own version.
    pub version: Option<String>,
    /// The state of a memcached, from `stats`, `stats settings` and `stats items`; `None` behind a router.
    pub memcached: Option<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `true` if it evicts records when it is full.
    pub evicts: bool,
    pub evicted: u64,
    /// Records rejected for lack of memory since it started.
    pub rejected: u64,
    pub used: u64,
    pub most: u64,
    pub connections: u64,
    pub most_connections: u64,
    /// Its clock, in seconds since 1970.
    pub time: u64,
    pub pid: u64,
    /// Its uptime, in seconds.
    pub uptime: u64,
}

/// Inspects the server at `address`. Each step may take `patience`.
pub async fn inspect(address: &Address, tls: Option<&Tls>, patience: Duration) -> Result<Server, Unknown> {
    let lookup = Lookup::keeping(Duration::ZERO);
    let connection = SerialConnection::open(address.connect(tls, &lookup, patience), patience).await?;
    inspect_over(connection, patience).await
}

pub(super) async fn inspect_over(
    mut connection: SerialConnection,
    patience: Duration,
) -> Result<Server, Unknown> {
    let began = Instant::now();
    let answers = connection.exchange(&reads()).await?;
    let took = began.elapsed();
    if !is_answer(&answers) {
        return Err(Unknown::Rejected);
    }
    let mut stream = connection.stream;
    let version = ask(&mut stream, "version", "\r\n", patience).await;
    let version = version.and_then(|answer| Some(answer.strip_prefix("VERSION ")?.trim().to_owned()));
    // A router answers for itself, or closes the connection.
    let is_memcached =
        version.as_deref().is_some_and(|version| release(version).is_some_and(|[major, ..]| major > 0));
    let memcached = if is_memcached { memory(&mut stream, patience).await } else { None };
    Ok(Server { took, version, memcached })
}

/// Parses the three numbers of memcached's version; `None` for other programs, such as "mcrouter 36.0.0".
#[must_use]
pub fn release(version: &str) -> Option<[u32; 3]> {
    let mut numbers = version.split(['.', '_', '-']).map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// Returns the settings of a memcached; `None` if there is no answer, as from a router that closes the connection.
pub(crate) async fn settings(stream: &mut Stream, patience: Duration) -> Option<String> {
    ask(stream, "stats settings", "END\r\n", patience).await
}

/// Returns `true` if a memcached with these settings evicts records when it is full. `None` for a router, which lacks the
/// setting, and for memcached's own proxy, which is one.
pub(crate) fn evicts(settings: &str) -> Option<bool> {
    let settings = values(settings);
    let evictions = settings.get("evictions")?;
    (settings.get("proxy_enabled") != Some(&"yes")).then_some(*evictions != "off")
}

async fn memory(stream: &mut Stream, patience: Duration) -> Option<Memory> {
    let settings = settings(stream, patience).await?;
    let evicts = evicts(&settings)?;
    let state = ask(stream, "stats", "END\r\n", patience).await?;
    let items = ask(stream, "stats items", "END\r\n", patience).await?;
    let (settings, state) = (values(&settings), values(&state));
    let of_class =
        |(name, number): (&&str, &&str)| name.ends_with(":outofmemory").then(|| number.parse().ok());
    let number = |of: &HashMap<&str, &str>, name| of.get(name)?.parse::<u64>().ok();
    Some(Memory {
        evicts,
        evicted: number(&state, "evictions")?,
        rejected: values(&items).iter().filter_map(of_class).flatten().fold(0, u64::saturating_add),
        used: number(&state, "bytes")?,
        most: number(&state, "limit_maxbytes")?,
        connections: number(&state, "curr_connections")?,
        most_connections: number(&settings, "maxconns")?,
        time: number(&state, "time")?,
        pid: number(&state, "pid")?,
        uptime: number(&state, "uptime")?,
    })
}

/// Returns `Ok` if a router is seen to keep each bucket on one server. A memcached without `-C` numbers the records that it
/// stores, and `gets` returns the number, so records written one after another are in order on one server, and on several hardly
/// ever. `None` if no record is stored.
pub(crate) async fn buckets(stream: &mut Stream, patience: Duration) -> Option<Result<(), Unfit>> {
    let mut evidence = None;
    'buckets: for bucket in Bucket::all().step_by(256) {
        let keys: [String; RECORDS] = std::array::from_fn(|_| bucket.record(&random_bytes()).to_string());
        for key in &keys {
            let reply = ask(stream, &format!("add {key} 0 60 7\r\nordered"), "\r\n", patience).await;
            match reply.as_deref() {
                Some("STORED\r\n") => {}
                Some(_) => continue 'buckets, // its server is down or full
                None => return evidence,
            }
        }
        let answer = ask_until(stream, &format!("gets {}", keys.join(" ")), is_end_or_error, patience).await;
        let Some(answer) = answer else { return evidence.or(Some(Err(Unfit::Hides))) };
        let number = |key: &String| {
            let mut values =
                answer.lines().filter_map(|line| line.strip_prefix("VALUE ")?.strip_prefix(key.as_str()));
            values.next()?.rsplit(' ').next()?.trim_end().parse().ok()
        };
        let numbers: Vec<u64> = keys.iter().filter_map(number).collect();
        if numbers.len() < RECORDS || numbers[0] == 0 {
            evidence = evidence.or(Some(Err(Unfit::Hides)));
        } else if numbers.is_sorted_by(|a, b| a < b) {
            evidence = Some(Ok(()));
        } else {
            return Some(Err(Unfit::Parts));
        }
    }
    evidence
}

/// Number of records written to a bucket as evidence. They last for a minute.
const RECORDS: usize = 8;

/// `true` if an answer to `gets` is complete, or is an error.
fn is_end_or_error(answer: &[u8]) -> bool {
    answer.ends_with(b"END\r\n")
        || answer.ends_with(b"\r\n")
            && ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"]
                .iter()
                .any(|error| answer.starts_with(error.as_bytes()))
}

/// Parses lines of "STAT name value".
fn values(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("STAT ")?.trim_end().split_once(' ')).collect()
}

/// Returns the answer to a command, up to its `end`; `None` if there is none.
async fn ask(stream: &mut Stream, command: &str, end: &str, patience: Duration) -> Option<String> {
    ask_until(stream, command, |answer| answer.ends_with(end.as_bytes()), patience).await
}

async fn ask_until(
    stream: &mut Stream,
    command: &str,
    is_whole: impl Fn(&[u8]) -> bool,
    patience: Duration,
) -> Option<String> {
    let command = format!("{command}\r\n");
    timeout(patience, serial::ask(stream, command.as_bytes(), MOST, is_whole)).await.ok()?.ok()
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.version, self.memcached) {
            (Some(version), Some(_)) => write!(f, "memcached {version}"),
            (Some(version), None) if version.starts_with("mcrouter") => f.write_str(version),
            (Some(version), None) => write!(f, "a router that answers version {version:?}"),
            (None, _) => f.write_str("a server that answers no version"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_of_memcached_is_a_router() {
        let settings = |more: &str| format!("STAT maxconns 1024\r\n{more}END\r\n");
        for (more, expected) in [
            ("STAT evictions off\r\n", Some(false)),
            ("STAT evictions on\r\nSTAT proxy_enabled no\r\n", Some(true)),
            ("STAT evictions on\r\nSTAT proxy_enabled yes\r\n", None),
            ("", None),
        ] {
            assert_eq!(evicts(&settings(more)), expected, "{more}");
        }
    }

    #[test]
    fn versions_are_read_of_memcached_alone() {
        for (text, expected) in [
            ("1.6.18", Some([1, 6, 18])),
            ("1.4.33_1_g3d2a", Some([1, 4, 33])),
            ("0.5.0", Some([0, 5, 0])),
            ("mcrouter 36.0.0", None),
            ("1.6", None),
            ("", None),
        ] {
            assert_eq!(release(text), expected, "{text}");
        }
    }
}
