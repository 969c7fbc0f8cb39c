//! JSON as mcrouter reads its configuration: with `//` and `/* */` comments and trailing commas.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// The longest text that is read. mcrouter configurations that people write are a thousand times smaller.
pub(crate) const LONGEST_TEXT: usize = 4 << 20;

/// A JSON value. A key that stands twice in one object is an error here: which of the two counts is nothing to guess.
#[derive(Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Object),
}

pub(crate) type Object = BTreeMap<String, Json>;

impl Json {
    /// Reads `text`. Nesting is limited to 127 levels by the parser; mcrouter itself stops at 250.
    ///
    /// # Errors
    /// A sentence with line and column.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST_TEXT {
            return Err(format!("it is longer than {} MiB, the most that is checked", LONGEST_TEXT >> 20));
        }
        let plain = strip(text)?;
        serde_json::from_slice(&plain)
            .map_err(|error| format!("it is not the JSON that mcrouter reads: {error}"))
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// What it is, for a sentence.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a bool",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Replaces comments and trailing commas by spaces, so that lines and columns stay what they are.
fn strip(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    let mut before = b'['; // the last byte that is neither space nor comment
    let mut comma = None; // a comma after a value, after which nothing has come yet
    while at < bytes.len() {
        let end = match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => end_of_string(&bytes, at),
            (b'/', Some(b'/')) => blank(&mut bytes, at, b"\n").unwrap_or(text.len()),
            (b'/', Some(b'*')) => {
                let line = text[..at].lines().count();
                blank(&mut bytes, at, b"*/")
                    .ok_or(format!("the comment that begins in line {line} has no end"))?
            }
            _ => at + 1,
        };
        let byte = bytes[at];
        if !byte.is_ascii_whitespace() {
            match comma.take() {
                Some(comma) if matches!(byte, b'}' | b']') => bytes[comma] = b' ',
                _ => {}
            }
            if byte == b',' && !matches!(before, b'[' | b'{' | b',') {
                comma = Some(at);
            }
            before = byte;
        }
        at = end;
    }
    Ok(bytes)
}

/// Where the string that begins at `at` is over.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// Blanks the comment from `at` up to and with `mark`, except line ends, and returns its end. `None`: there is no
/// `mark`; the rest is blank then.
fn blank(bytes: &mut [u8], at: usize, mark: &[u8]) -> Option<usize> {
    let found = bytes[at + 2..].windows(mark.len()).position(|window| window == mark);
    let end = found.map_or(bytes.len(), |found| at + 2 + found + mark.len());
    for byte in &mut bytes[at..end] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
    found.map(|_| end)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "only small numbers mean anything to us")]
    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "only small numbers mean anything to us")]
    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut object = Object::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands twice in one object")));
            }
            object.insert(key, value);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_passed_over() {
        let text = "{ // a \" quote\n\"a\": [1, 2, /* three, */ ], \"b\": \"// no /* comment */ ,]\", /**/ }";
        let read = Json::parse(text).unwrap();
        let object = read.object().unwrap();
        assert_eq!(object["a"], Json::List(vec![Json::Number(1.0), Json::Number(2.0)]));
        assert_eq!(object["b"].text(), Some("// no /* comment */ ,]"));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_place() {
        let cases = [
            ("{\n\"a\": 1, \"a\": 2}", "\"a\" stands twice"),
            ("{ /* no end", "line 1 has no end"),
            ("{\"a\": [1, 2", "line 1 column"),
            ("{,}", "line 1 column"),
            ("[,]", "line 1 column"),
            ("{\"a\": \"", "line 1 column"),
            ("\"\\", "line 1 column"),
            ("", "line 1 column"),
            ("/", "line 1 column"),
        ];
        for (text, part) in cases {
            let error = Json::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert!(Json::parse(&deep).unwrap_err().contains("recursion limit"));
        let long = " ".repeat(LONGEST_TEXT + 1);
        assert!(Json::parse(&long).unwrap_err().contains("longer than 4 MiB"));
    }
}
