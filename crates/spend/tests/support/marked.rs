//! A gateway whose tokens a mark binds.

use super::{eventually, fresh};
use postern_spend::memcached::{Client, Memcached, Options};
use postern_spend::{Epoch, Spend, SpendStore, Unknown};
use postern_testkit::memcached::Server;
use postern_token::{ChallengeDigest, Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A gateway with marks, and the key that it requests tokens of.
pub struct Gateway {
    pub store: Memcached,
    pub client: Client,
    pub epoch: Epoch,
}

/// A token that was not spent through [`Gateway`] yet.
pub struct Token {
    pub key: SpentKey,
    pub mark: Mark,
}

impl Gateway {
    pub async fn start(options: Options, epoch: Epoch) -> Self {
        let store = Memcached::open(options).unwrap();
        store.offer(&[epoch]);
        let client = super::client(&store).await;
        Self { store, client, epoch }
    }

    pub async fn mark(&self) -> Mark {
        mark_of(&self.store, self.epoch.key).await
    }

    /// The mark that follows this one.
    pub async fn mark_after(&self, mark: Mark) -> Mark {
        eventually("another mark on offer", async || {
            self.store.binding(self.epoch.key).filter(|other| *other != mark)
        })
        .await
    }

    pub async fn spend(&self, token: &Token) -> Result<Spend, Unknown> {
        self.client.spend(&token.key, &self.epoch_of(token), UnixSeconds::now()).await
    }

    /// The epoch of a token, with its mark.
    pub fn epoch_of(&self, token: &Token) -> Epoch {
        marked(self.epoch, token.mark)
    }

    pub fn token(&self, mark: Mark) -> Token {
        Token { key: fresh(&self.epoch), mark }
    }

    pub fn tokens(&self, number: usize, mark: Mark) -> Vec<Token> {
        (0..number).map(|_| self.token(mark)).collect()
    }
}

/// The mark of a key that is offered.
pub async fn mark_of(store: &Memcached, key: TokenKeyId) -> Mark {
    eventually("a mark on offer", async || store.binding(key)).await
}

/// Begins an epoch, and blocks until it has a mark.
pub fn begin(store: &Memcached, epoch: Epoch) -> Epoch {
    store.offer(&[epoch]);
    for _ in 0..10_000 {
        if let Some(mark) = store.binding(epoch.key) {
            return marked(epoch, mark);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no mark on offer");
}

/// The epoch of tokens for a mark.
pub fn marked(epoch: Epoch, mark: Mark) -> Epoch {
    Epoch { mark: Some(id(epoch.key, mark)), ..epoch }
}

/// The id of a mark, as a gateway derives it.
pub fn id(key: TokenKeyId, mark: Mark) -> MarkId {
    MarkId::derive("proxy.example", key, ChallengeDigest::of(mark.as_bytes()))
}

/// Says this to memcached, and returns the lines of its answer up to `END`.
pub fn ask(server: &Server, command: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.take_while(|line| line != "END" && line != "DELETED").collect()
}

/// The names of the records of a server's only mark.
pub struct MarkRecords {
    pub witnesses: Vec<String>,
    pub sentinels: Vec<String>,
}

impl MarkRecords {
    pub async fn of(server: &Server) -> Self {
        eventually("a whole list of records", async || {
            // The crawler skips items that move between the lists of a slab class while it runs.
            let dump = ask(server, "lru_crawler metadump all");
            let mut by_end: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for (name, end) in dump.iter().filter_map(|line| name_and_end(line)) {
                by_end.entry(end).or_default().push(name);
            }
            // The sentinels end later, and other records come in other numbers.
            let mut of_marks = by_end.into_values().filter(|names| names.len() == 1024);
            let (witnesses, sentinels) = (of_marks.next()?, of_marks.next()?);
            Some(Self { witnesses, sentinels })
        })
        .await
    }
}

/// `true` for keys of the first bucket, whose sentinel tells the age of the mark.
pub fn is_in_first_bucket(key: &str) -> bool {
    key.starts_with("|o9J-")
}

/// Deletes the sentinels of a server's only mark, but for the first one.
pub async fn delete_sentinels(server: &Server) {
    for key in MarkRecords::of(server).await.sentinels.iter().filter(|key| !is_in_first_bucket(key)) {
        ask(server, &format!("delete {key}"));
    }
}

/// Of `key=%7Clabel%7C%23%7Cname exp=seconds ...`, for a record in a bucket.
fn name_and_end(line: &str) -> Option<(String, u64)> {
    let (name, rest) = line.strip_prefix("key=%7C")?.split_once(" exp=")?;
    let end = rest.split(' ').next()?.parse().ok()?;
    Some((format!("|{}", name.replace("%7C", "|").replace("%23", "#")), end))
}
