//! Request smuggling: bytes that two readers take for different requests. Each row has what a client or a target sends, what the
//! gateway answers, and what arrives: one request with one meaning, or nothing. No row brings a token further than the gateway, or a
//! byte to another client's tunnel.

mod answers;
mod http1;
mod http2;
mod next_hop;

use crate::support::ISSUER;
use crate::support::client::find;
use postern_testkit::strict::{self, Fault};
use std::net::SocketAddr;

/// Bytes that a target may get.
#[derive(Clone, Copy, Debug)]
enum Got {
    /// One request with this body.
    One(&'static str),
    /// The beginning of one request, or nothing.
    Cut,
    /// The bytes of a tunnel.
    Raw(&'static str),
}
use Got::{Cut, One, Raw};

/// Compares what a target got on its connections, one after the other, with `expected`. Nothing of the gateway's own may be in
/// it.
fn check(seen: &[Vec<u8>], expected: &[Got], target: SocketAddr) -> Result<(), String> {
    let is_cut = seen.is_empty() && matches!(expected, [Cut]);
    let is_expected = |(got, expected): (&Vec<u8>, &Got)| match expected {
        Raw(bytes) => got == filled(bytes, target).as_bytes(),
        Cut => strict::request(got) == Err(Fault::Cut),
        One(body) => strict::request(got).is_ok_and(|message| message.body == body.as_bytes()),
    };
    let has_own = |got: &Vec<u8>| {
        let lower = got.to_ascii_lowercase();
        [&b"privatetoken"[..], b"proxy-auth"].iter().any(|own| find(&lower, own).is_some())
    };
    if seen.iter().any(has_own)
        || !is_cut && seen.len() != expected.len()
        || !seen.iter().zip(expected).all(is_expected)
    {
        let seen: Vec<_> = seen.iter().map(|got| String::from_utf8_lossy(got)).collect();
        return Err(format!("the target got {seen:?}, and not {expected:?}"));
    }
    Ok(())
}

/// All rows, so that one failure does not hide the others.
fn assert_all(rows: impl IntoIterator<Item = (String, Result<(), String>)>) {
    let failed: Vec<_> =
        rows.into_iter().filter_map(|(row, result)| Some(format!("{row}: {}", result.err()?))).collect();
    assert!(failed.is_empty(), "{} rows fail:\n{}", failed.len(), failed.join("\n"));
}

/// An error if they differ.
fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, and not {expected:?}")) }
}

/// A row's text with what is only known when it runs.
fn filled(text: &str, target: SocketAddr) -> String {
    let mut text = text.replace("{target}", &target.to_string());
    while let Some(at) = text.find("{token}") {
        text.replace_range(at..at + "{token}".len(), &ISSUER.authorization());
    }
    text
}
