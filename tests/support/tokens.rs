//! Tokens as the binary mints them and as the agent keeps them.

use super::process::run;
use super::proxy::{Head, connect, dial};
use super::unit::Unit;
use postern_token::Token;
use postern_token::header::{Presentation, parse_authorization};
use std::net::SocketAddr;
use std::path::Path;

/// Mints with `postern token mint` for the gateway's challenge: values of Proxy-Authorization.
pub fn mint(issuer: &str, gateway: &str, count: usize) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("tokens");
    let count = count.to_string();
    let args = ["token", "mint", "--issuer", issuer, "--gateway", gateway, "--count", &count, "--out"];
    let ended = run(args.iter().map(AsRef::as_ref).chain([out.as_os_str()]));
    ended.assert_stopped();
    let text = std::fs::read_to_string(out).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Presents a token in a CONNECT on a new connection; returns the answer's head.
pub async fn present(gateway: SocketAddr, target: &str, authorization: &str) -> Head {
    let mut stream = dial(gateway).await.unwrap();
    connect(&mut stream, target, Some(authorization)).await.unwrap()
}

/// The token in a value of Proxy-Authorization.
pub fn token_of(authorization: &str) -> Token {
    match parse_authorization(authorization.as_bytes()).unwrap() {
        Presentation::Token(token) => token,
        Presentation::OtherScheme => panic!("{authorization:?} presents no token"),
    }
}

/// The tokens in a wallet file: slots of 512 bytes after a header of the same size, each a checksum, a length, the
/// key's retirement, and the token (`client/src/wallet/format.rs`).
pub fn in_wallet(path: &Path) -> Vec<Token> {
    let bytes = std::fs::read(path).unwrap();
    let slots = bytes.chunks(512).skip(1).filter(|slot| slot.iter().any(|byte| *byte != 0));
    let token = |slot: &[u8]| {
        let length = usize::from(u16::from_le_bytes([slot[4], slot[5]]));
        Token::parse(&slot[16..16 + length]).unwrap()
    };
    slots.map(token).collect()
}

/// Mints for an account: how many came, or the status of the issuer's refusal.
pub fn mint_with(issuer: &Unit, gateway: &Unit, api_key: &str, count: usize) -> Result<usize, u16> {
    let (issuer, gateway) = (format!("http://{}", issuer.address), format!("http://{}", gateway.address));
    let count = count.to_string();
    let args = ["token", "mint", "--issuer", &issuer, "--gateway", &gateway, "--api-key", api_key];
    let ended = run(args.into_iter().chain(["--count", &count]));
    if ended.code == Some(0) {
        return Ok(ended.stdout.lines().count());
    }
    let (_, rest) = ended.stderr.split_once(" answered ").unwrap_or_else(|| panic!("{ended:#?}"));
    Err(rest[..3].parse().unwrap())
}
