//! A gateway whose tokens a mark binds.

use super::{eventually, fresh};
use postern_spend::memcached::{Client, Memcached, Options};
use postern_spend::{Binding, Epoch, Marks, Spend, SpendStore, Unknown};
use postern_testkit::memcached::Server;
use postern_token::{ChallengeDigest, Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;

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
    pub async fn start(options: Options, epoch: Epoch, plants: bool) -> Self {
        let store = open(options, plants);
        store.offer(&[epoch]);
        let client = super::client(&store).await;
        Self { store, client, epoch }
    }

    pub async fn mark(&self) -> Mark {
        eventually("a mark on offer", async || match self.store.binding(self.epoch.key) {
            Binding::Offered(mark) => Some(mark),
            _ => None,
        })
        .await
    }

    /// The mark that follows this one.
    pub async fn mark_after(&self, mark: Mark) -> Mark {
        eventually("another mark on offer", async || match self.store.binding(self.epoch.key) {
            Binding::Offered(other) if other != mark => Some(other),
            _ => None,
        })
        .await
    }

    pub async fn spend(&self, token: &Token) -> Result<Spend, Unknown> {
        self.client.spend(&token.key, &self.epoch_of(token), UnixSeconds::now()).await
    }

    /// The epoch of a token, with its mark.
    pub fn epoch_of(&self, token: &Token) -> Epoch {
        Epoch { mark: Some(id(self.epoch.key, token.mark)), ..self.epoch }
    }

    pub fn token(&self, mark: Mark) -> Token {
        Token { key: fresh(&self.epoch), mark }
    }

    pub fn tokens(&self, number: usize, mark: Mark) -> Vec<Token> {
        (0..number).map(|_| self.token(mark)).collect()
    }
}

/// A store with marks.
pub fn open(options: Options, plants: bool) -> Memcached {
    let marks = Some(Marks { id: Arc::new(id), plants });
    Memcached::open(Options { marks, ..options }).unwrap()
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
            // The crawler passes over what moves between the lists of a slab class meanwhile.
            let dump = ask(server, "lru_crawler metadump all");
            let mut found: Vec<_> = dump.iter().filter_map(|line| name_and_end(line)).collect();
            found.sort_by_key(|(_, end)| *end); // the sentinel's is the later one
            let mut names: Vec<_> = found.into_iter().map(|(name, _)| name).collect();
            (names.len() == 2 * 1024).then(|| {
                let sentinels = names.split_off(1024);
                Self { witnesses: names, sentinels }
            })
        })
        .await
    }
}

/// Of `key=%7Clabel%7C%23%7Cname exp=seconds ...`, for a record in a bucket.
fn name_and_end(line: &str) -> Option<(String, u64)> {
    let (name, rest) = line.strip_prefix("key=%7C")?.split_once(" exp=")?;
    let end = rest.split(' ').next()?.parse().ok()?;
    Some((format!("|{}", name.replace("%7C", "|").replace("%23", "#")), end))
}
