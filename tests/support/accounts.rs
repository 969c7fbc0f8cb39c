//! Tokens for the accounts of an issuer, and the accounts' database as `sqlite3` reads it.

use super::daemon::Daemon;
use super::process::{Ended, run};
use postern_token::{ChallengeDigest, DIRECTORY_PATH, Directory, IssuerKey, TokenType, UnixSeconds};
use reqwest::RequestBuilder;
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the tokens that each account has used, in all periods; nothing where there is no database.
pub fn used(keys: &Path) -> BTreeMap<String, i64> {
    let path = keys.join("accounts.sqlite");
    if !path.exists() {
        return BTreeMap::new();
    }
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let mut statement = database.prepare("SELECT account, sum(tokens) FROM usage GROUP BY account").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Runs `postern token mint` for one token with this API key.
pub fn mint(issuer: &Daemon, key: &str) -> Ended {
    run(["token", "mint", "--issuer", &issuer.http(), "--api-key", key])
}

/// A request for a token that the account may send any number of times.
pub async fn token_request(issuer: &Daemon, key: &str) -> RequestBuilder {
    let (client, url) = (reqwest::Client::new(), issuer.http());
    let directory = client.get(format!("{url}{DIRECTORY_PATH}")).send().await.unwrap().bytes().await.unwrap();
    let directory = Directory::parse(&directory).unwrap();
    let token_key = directory.preferred(TokenType::BlindRsa2048, UnixSeconds::now()).unwrap();
    let token_key = IssuerKey::from_spki(&token_key.key_bytes().unwrap()).unwrap();
    let body = token_key.request(ChallengeDigest::of(b"any challenge")).unwrap().0.serialize().to_vec();
    let request = client.post(format!("{url}/token-request"));
    request.header("content-type", "application/private-token-request").bearer_auth(key).body(body)
}
