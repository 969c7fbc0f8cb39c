//! Looking for what must be nowhere, in every form in which a program is likely to write it.

use memchr::memmem;
use postern_token::encode_base64url;
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// Number of a secret's bytes that give it away.
const WINDOW: usize = 16;

/// Data to look for: texts (names, addresses) and secrets (bytes, of which no 16 in a row may show).
#[derive(Default)]
pub struct Needles {
    /// Description and bytes; compared with the haystack in lower case.
    texts: Vec<(String, Vec<u8>)>,
    /// The same, compared as they are.
    encoded: Vec<(String, Vec<u8>)>,
    windows: HashMap<[u8; WINDOW], String>,
    /// True if a window begins with these three bytes. Few places in a haystack do, and only those are looked up in the map.
    begins: Vec<bool>,
}

impl Needles {
    /// A text: as it is, in hex and in base64 of both alphabets, at any alignment.
    pub fn text(&mut self, what: &str, text: &str) {
        let lower = text.to_lowercase();
        self.texts.push((format!("{what} in hex"), hex::encode(&lower).into_bytes()));
        self.texts.push((what.to_owned(), lower.into_bytes()));
        for base64url in base64_middles(text.as_bytes()) {
            let base64 = base64url.replace('-', "+").replace('_', "/");
            self.encoded.push((format!("{what} in base64url"), base64url.into_bytes()));
            self.encoded.push((format!("{what} in base64"), base64.into_bytes()));
        }
    }

    /// An address: as text, as its four bytes, as a number in hex and decimal, and inside an IPv6 address.
    pub fn address(&mut self, what: &str, address: Ipv4Addr) {
        self.text(what, &address.to_string());
        let octets = address.octets();
        self.encoded.push((format!("{what} as bytes"), octets.to_vec()));
        self.texts.push((format!("{what} in hex digits"), hex::encode(octets).into_bytes()));
        self.texts.push((format!("{what} as a number"), u32::from(address).to_string().into_bytes()));
        let mapped = format!(
            "{:x}:{:x}",
            u16::from_be_bytes([octets[0], octets[1]]),
            u16::from_be_bytes([octets[2], octets[3]])
        );
        self.texts.push((format!("{what} in IPv6"), mapped.into_bytes()));
    }

    /// A port, as it stands after an address.
    pub fn port(&mut self, what: &str, port: u16) {
        self.texts.push((what.to_owned(), format!(":{port}").into_bytes()));
    }

    /// Bytes: any 16 in a row, raw, in hex, in base64 of both alphabets, or as a list of decimal numbers.
    pub fn secret(&mut self, what: &str, bytes: &[u8]) {
        self.begins.resize(1 << 24, false);
        for window in bytes.windows(WINDOW) {
            self.begins[beginning(window)] = true;
            self.windows.insert(window.try_into().unwrap(), what.to_owned());
        }
    }

    /// Returns the needles in `haystack`, each with the byte where it begins.
    pub fn search(&self, haystack: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let lower = haystack.to_ascii_lowercase();
        for (all, needles) in [(&lower[..], &self.texts), (haystack, &self.encoded)] {
            for (what, needle) in needles {
                if let Some(at) = memmem::find(all, needle) {
                    found.push(format!("{what} at byte {at}"));
                }
            }
        }
        let mut windows = |at: usize, bytes: &[u8], form: &str| {
            for window in
                bytes.windows(WINDOW).filter(|window| self.begins.get(beginning(window)) == Some(&true))
            {
                if let Some(what) = self.windows.get(window) {
                    found.push(format!("{what}, {form} at byte {at}"));
                    return;
                }
            }
        };
        windows(0, haystack, "raw");
        for at in 0..haystack.len() {
            if let Some(bytes) = haystack.get(at..at + 2 * WINDOW).and_then(|digits| hex::decode(digits).ok())
            {
                windows(at, &bytes, "in hex");
            }
            if let Some(bytes) = haystack.get(at..at + 24).and_then(decode_base64) {
                windows(at, &bytes, "in base64");
            }
        }
        for (at, numbers) in decimal_lists(haystack) {
            windows(at, &numbers, "in decimal");
        }
        found
    }
}

/// The first three bytes, as one number.
fn beginning(window: &[u8]) -> usize {
    usize::from(window[0]) << 16 | usize::from(window[1]) << 8 | usize::from(window[2])
}

/// The characters that any base64 text with `bytes` inside has, for each of the three alignments.
fn base64_middles(bytes: &[u8]) -> Vec<String> {
    let middle = |before: usize| {
        let padded: Vec<u8> = std::iter::repeat_n(0, before).chain(bytes.iter().copied()).collect();
        let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        encode_base64url(&padded)[first..last].to_owned()
    };
    (0..3).map(middle).collect()
}

/// 24 characters of either alphabet, 18 bytes.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(18);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for character in four {
            let value = match character {
                b'A'..=b'Z' => character - b'A',
                b'a'..=b'z' => character - b'a' + 26,
                b'0'..=b'9' => character - b'0' + 52,
                b'-' | b'+' => 62,
                b'_' | b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    Some(bytes)
}

/// Runs of numbers below 256 with commas between them, as `Debug` writes bytes, and where each begins.
fn decimal_lists(haystack: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (mut lists, mut list, mut began, mut at) = (Vec::new(), Vec::new(), 0, 0);
    while at < haystack.len() {
        let digits = haystack[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&haystack[at..at + digits]).ok().and_then(|text| text.parse().ok());
        if list.is_empty() {
            began = at;
        }
        if let Some(number) = number {
            list.push(number);
        }
        let rest = &haystack[at + digits..];
        let comma = if rest.starts_with(b", ") { 2 } else { usize::from(rest.starts_with(b",")) };
        if number.is_none() || comma == 0 {
            lists.push((began, std::mem::take(&mut list)));
        }
        at += (digits + comma).max(1);
    }
    lists.push((began, list));
    lists.retain(|(_, list)| list.len() >= WINDOW);
    lists
}
