//! Marks: random names that bind a challenge, and so each token for it, to one memory of spent tokens.
//!
//! A gateway that lost its records must refuse every token that may have been among them. It therefore puts a random mark into
//! its challenges, as a second name in `origin_info` (RFC 9577, section 2.1.1.1): `proxy.example,m-<mark>.proxy.example`. A token
//! carries the digest of its challenge, and is accepted only where the mark is known.

use crate::challenge::TokenChallenge;
use crate::ids::{ChallengeDigest, TokenKeyId, sha256};
use std::fmt;
use std::net::IpAddr;

/// Length of a mark in characters.
const LEN: usize = 26;
/// Lower-case base32 (RFC 4648, section 6), which is valid in host names.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Random name of one memory of spent tokens: 128 bits, written as 26 characters of lower-case base32 without padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark([u8; 16]);

impl Mark {
    /// Creates a mark from 16 bytes, which must be random.
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// Parses the 26 characters; `None` unless they are the canonical form of a mark.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bits: u128 = 0;
        for (index, character) in text.bytes().enumerate() {
            let value = ALPHABET.iter().position(|known| *known == character)? as u128;
            // The last character holds three bits.
            bits = if index + 1 == LEN { (bits << 3) | (value >> 2) } else { (bits << 5) | value };
        }
        let mark = Self(bits.to_be_bytes());
        (mark.to_string() == text).then_some(mark)
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the name that carries the mark in a challenge of `origin`: one label below `origin`, or below `invalid` if
    /// `origin` is an IP address (RFC 6761, section 6.4).
    pub fn second_name(&self, origin: &str) -> String {
        let parent = if is_address(origin) { "invalid" } else { origin };
        format!("m-{self}.{parent}")
    }

    /// Returns the mark of a challenge whose only names are `origin` and one mark of `origin`; `None` for any other challenge.
    pub fn of_challenge(challenge: &TokenChallenge, origin: &str) -> Option<Self> {
        let [first, second] = challenge.origin_info() else { return None };
        let mark = Self::parse(second.strip_prefix("m-")?.get(..LEN)?)?;
        (first.eq_ignore_ascii_case(origin) && *second == mark.second_name(first)).then_some(mark)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from_be_bytes(self.0);
        (0..LEN).try_for_each(|index| {
            let end = 128 - 5 * (index as i32 + 1);
            let value = if end >= 0 { bits >> end } else { bits << -end };
            write!(f, "{}", char::from(ALPHABET[(value & 31) as usize]))
        })
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({self})")
    }
}

/// Key of a mark in a store: `SHA-256("postern mark v1 " || names || 0 || token_key_id || challenge_digest)`, 32 bytes.
///
/// `names` are the gateway's own, so a token for another gateway's challenge is accepted by that gateway only, even if both share
/// the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkId([u8; 32]);

impl MarkId {
    /// Derives the id of the mark in tokens of `key` for this challenge.
    pub fn derive(names: &str, key: TokenKeyId, challenge: ChallengeDigest) -> Self {
        let input = [&b"postern mark v1 "[..], names.as_bytes(), &[0], &key.0, &challenge.0].concat();
        Self(sha256(&input))
    }

    /// Derives the id for deployments in which this number of replicas decides about each token, so that a fleet of one and a
    /// fleet of three share no mark.
    pub fn arranged(&self, replicas: u8) -> Self {
        let mut input = [replicas; 56];
        input[..23].copy_from_slice(b"postern arrangement v1 ");
        input[24..].copy_from_slice(&self.0);
        Self(sha256(&input))
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for MarkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkId(…)")
    }
}

/// Returns `true` if a name is a literal IP address, with or without a port.
fn is_address(name: &str) -> bool {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    name.starts_with('[') || [name, host].iter().any(|text| text.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenType;

    fn challenge(origins: &[&str]) -> TokenChallenge {
        TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, origins).unwrap()
    }

    #[test]
    fn a_mark_is_read_back_from_its_challenge() {
        let mark = Mark::new([7; 16]);
        // As in RFC 4648, section 10, in lower case.
        assert_eq!(Mark::new(*b"foobarfoobarfoob").to_string(), "mzxw6ytbojtg633cmfzgm33pmi");
        assert_eq!(mark.to_string().len(), LEN);
        for origin in
            ["proxy.example", "proxy.example:8443", "192.0.2.1", "192.0.2.1:8080", "[2001:db8::1]:8080"]
        {
            let name = mark.second_name(origin);
            assert_eq!(Mark::of_challenge(&challenge(&[origin, &name]), origin), Some(mark), "{name}");
        }
        assert_eq!(mark.second_name("192.0.2.1:8080"), format!("m-{mark}.invalid"));
        assert_eq!(mark.second_name("proxy.example:8443"), format!("m-{mark}.proxy.example:8443"));
    }

    #[test]
    fn nothing_else_is_a_mark() {
        let name = Mark::new([7; 16]).second_name("proxy.example");
        let longer = format!("{name}x");
        for origins in [
            vec!["proxy.example"],
            vec![&name, "proxy.example"],
            vec!["other.example", &name],
            vec!["proxy.example", &name, &name],
            vec!["proxy.example", &longer],
            vec!["proxy.example", "m-short.proxy.example"],
        ] {
            assert_eq!(Mark::of_challenge(&challenge(&origins), "proxy.example"), None, "{origins:?}");
        }
        assert_eq!(Mark::parse(&"A".repeat(LEN)), None);
        assert_eq!(Mark::parse(&"1".repeat(LEN)), None);
        assert_eq!(Mark::parse("mzxw6ytbojtg633cmfzgm33pmj"), None, "bits beyond the last");
        assert_eq!(Mark::parse(""), None);
    }

    #[test]
    fn an_id_depends_on_names_key_and_challenge() {
        let id =
            |names, key, digest| MarkId::derive(names, TokenKeyId([key; 32]), ChallengeDigest([digest; 32]));
        let one = id("proxy.example", 1, 2);
        assert_eq!(one, id("proxy.example", 1, 2));
        assert!(
            [id("proxy.example2", 1, 2), id("proxy.example", 2, 2), id("proxy.example", 1, 3)]
                .iter()
                .all(|other| *other != one)
        );
        assert_eq!(one.arranged(1), id("proxy.example", 1, 2).arranged(1));
        assert!(one.arranged(1) != one.arranged(3) && one.arranged(1) != one);
        assert_ne!(one.arranged(3), id("proxy.example", 1, 3).arranged(3));
    }
}
