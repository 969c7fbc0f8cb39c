//! What a server of the store says of itself, for operators, and whether a mark may be planted there. No verdict hangs on it.

use super::address::{Address, Stream, Tls};
use super::bucket::Bucket;
use super::endpoint::{is_answer, reads};
use super::serial::SerialConnection;
use super::world::random_bytes;
use crate::Unknown;
use postern_lookup::Lookup;
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The most that is read of an answer, in bytes: memcached's settings are a few kilobytes.
const MOST: usize = 64 << 10;

/// A server, or a router before servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// How long reads of records took, the connection apart.
    pub took: Duration,
    /// What it answers to `version`; `None` where it does not. A router answers with its own.
    pub version: Option<String>,
    /// What a memcached answers to `stats` and `stats settings`; `None` behind a router.
    pub memcached: Option<Memory>,
}

/// The state of a memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Whether it drops records when it is full.
    pub evicts: bool,
    /// Records that it has dropped since it was started.
    pub evicted: u64,
    /// Records that it has rejected since it was started, for want of memory.
    pub rejected: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that it may use.
    pub most: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that it takes.
    pub most_connections: u64,
    /// Its clock, in seconds since 1970.
    pub time: u64,
    /// Its process.
    pub pid: u64,
    /// How long it has run, in seconds.
    pub uptime: u64,
}

/// Reads what is at `address`, each step within `patience`.
///
/// # Errors
/// [`Unknown`], as for a command of a client.
pub async fn inspect(address: &Address, tls: Option<&Tls>, patience: Duration) -> Result<Server, Unknown> {
    let lookup = Lookup::keeping(Duration::ZERO);
    let mut connection = SerialConnection::open(address.connect(tls, &lookup, patience), patience).await?;
    let began = Instant::now();
    let answers = connection.exchange(&reads()).await?;
    let took = began.elapsed();
    if !is_answer(&answers) {
        return Err(Unknown::Rejected);
    }
    let mut stream = connection.into_stream();
    let version = ask(&mut stream, "version", "\r\n", patience).await;
    let version = version.and_then(|answer| Some(answer.strip_prefix("VERSION ")?.trim().to_owned()));
    // A router answers for itself, or closes the connection.
    let is_memcached =
        version.as_deref().is_some_and(|version| release(version).is_some_and(|[major, ..]| major > 0));
    let memcached = if is_memcached { memory(&mut stream, patience).await } else { None };
    Ok(Server { took, version, memcached })
}

/// The three numbers of memcached's version; `None` of other programs, such as "mcrouter 36.0.0".
#[must_use]
pub fn release(version: &str) -> Option<[u32; 3]> {
    let mut numbers = version.split(['.', '_', '-']).map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

async fn memory(stream: &mut Stream, patience: Duration) -> Option<Memory> {
    let settings = ask(stream, "stats settings", "END\r\n", patience).await?;
    let state = ask(stream, "stats", "END\r\n", patience).await?;
    let items = ask(stream, "stats items", "END\r\n", patience).await?;
    let (settings, state) = (values(&settings), values(&state));
    let of_class =
        |(name, number): (&&str, &&str)| name.ends_with(":outofmemory").then(|| number.parse().ok());
    let number = |of: &HashMap<&str, &str>, name| of.get(name)?.parse::<u64>().ok();
    Some(Memory {
        evicts: *settings.get("evictions")? != "off",
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

/// Whether what is at the end of a connection says that it drops records when it is full. A router does not. `None` where the
/// connection is of no use afterwards: a router may close one that brings what it does not know.
pub(crate) async fn evicts(connection: &mut SerialConnection, patience: Duration) -> Option<bool> {
    let settings = ask(connection.stream(), "stats settings", "END\r\n", patience).await?;
    Some(values(&settings).get("evictions").is_some_and(|evictions| *evictions != "off"))
}

/// Whether a router keeps records of one bucket on several servers. A memcached numbers what it stores, and `gets` shows the
/// number, so records written one after another are in order on one server, and on several hardly ever. `false` where that
/// cannot be seen: a router refuses `gets`, a server is down, or does not number (`-C`). `None` as for [`evicts`].
pub(crate) async fn parts(connection: &mut SerialConnection, patience: Duration) -> Option<bool> {
    for bucket in Bucket::all().step_by(256) {
        let numbers = numbers(connection.stream(), bucket, patience).await?;
        if numbers.iter().any(|number| *number > 0) && numbers.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some(true);
        }
    }
    Some(false)
}

/// The numbers of eight records that are written to a bucket one after another, and last for a minute; of none where one is not
/// stored.
async fn numbers(stream: &mut Stream, bucket: Bucket, patience: Duration) -> Option<Vec<u64>> {
    let keys: [String; 8] = std::array::from_fn(|_| bucket.record(&random_bytes()).to_string());
    for key in &keys {
        let reply = ask(stream, &format!("add {key} 0 60 7\r\nordered"), "\r\n", patience).await?;
        if reply != "STORED\r\n" {
            return Some(Vec::new());
        }
    }
    let answer = ask(stream, &format!("gets {}", keys.join(" ")), "END\r\n", patience).await?;
    let number = |key: &String| {
        let mut values =
            answer.lines().filter_map(|line| line.strip_prefix("VALUE ")?.strip_prefix(key.as_str()));
        values.next()?.rsplit(' ').next()?.trim_end().parse().ok()
    };
    Some(keys.iter().filter_map(number).collect())
}

/// "STAT name value" a line.
fn values(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("STAT ")?.trim_end().split_once(' ')).collect()
}

/// The answer to a command, up to its `end`; `None` where there is none.
async fn ask(stream: &mut Stream, command: &str, end: &str, patience: Duration) -> Option<String> {
    let asking = async {
        stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            if answer.len() > MOST || stream.read_buf(&mut answer).await.ok()? == 0 {
                return None;
            }
        }
        String::from_utf8(answer).ok()
    };
    timeout(patience, asking).await.ok().flatten()
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
