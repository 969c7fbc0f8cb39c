//! JSON as mcrouter reads its configuration: with `//` and `/* */` comments and trailing commas.

use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use std::collections::BTreeMap;

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

/// Comments and trailing commas, and otherwise JSON.
const MCROUTER: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_loose_object_property_names: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

impl Json {
    /// Reads `text`. Nesting is limited to 512 levels by the parser; mcrouter itself stops at 250.
    ///
    /// # Errors
    /// A sentence with line and column.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST_TEXT {
            return Err(format!("it is longer than {} MiB, the most that is checked", LONGEST_TEXT >> 20));
        }
        let refused =
            |reason: &dyn std::fmt::Display| format!("it is not the JSON that mcrouter reads: {reason}");
        let parsed =
            parse_to_ast(text, &CollectOptions::default(), &MCROUTER).map_err(|error| refused(&error))?;
        let value = parsed.value.ok_or_else(|| refused(&"there is no value on line 1 column 1"))?;
        Self::of(value, text).map_err(|reason| refused(&reason))
    }

    fn of(value: Value<'_>, text: &str) -> Result<Self, String> {
        Ok(match value {
            Value::NullKeyword(_) => Self::Null,
            Value::BooleanLit(literal) => Self::Bool(literal.value),
            Value::NumberLit(literal) => match literal.value.parse::<f64>() {
                Ok(number) if number.is_finite() => Self::Number(number),
                _ => return Err(format!("the number {} is out of range", literal.value)),
            },
            Value::StringLit(literal) => Self::Text(literal.value.into_owned()),
            Value::Array(array) => Self::List(
                array.elements.into_iter().map(|value| Self::of(value, text)).collect::<Result<_, _>>()?,
            ),
            Value::Object(object) => {
                let mut read = Object::new();
                for property in object.properties {
                    let start = property.name.start();
                    let key = match property.name {
                        ObjectPropName::String(literal) => literal.value.into_owned(),
                        ObjectPropName::Word(word) => word.value.to_owned(),
                    };
                    if read.contains_key(&key) {
                        let line = 1 + text[..start].matches('\n').count();
                        return Err(format!(
                            "the key {key:?} stands twice in one object, again on line {line}"
                        ));
                    }
                    read.insert(key, Self::of(property.value, text)?);
                }
                Self::Object(read)
            }
        })
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
            ("{\n/* no end", "comment block on line 2 column 1"),
            ("{\"a\": [1, 2", "line 1 column"),
            ("{,}", "line 1 column"),
            ("[,]", "line 1 column"),
            ("{\"a\": \"", "line 1 column"),
            ("\"\\", "line 1 column"),
            ("", "line 1 column"),
            ("/", "line 1 column"),
            ("{\"a\": 1 \"b\": 2}", "line 1 column"),
            ("{a: 1}", "line 1 column"),
            ("{\"a\": 1,,}", "line 1 column"),
            ("['a']", "line 1 column"),
            ("[01]", "line 1 column"),
            ("[1.]", "line 1 column"),
            ("[+1]", "line 1 column"),
            ("[0x1]", "line 1 column"),
            ("[NaN]", "line 1 column"),
            ("[-]", "line 1 column"),
            ("[tru]", "line 1 column"),
            ("[\"\\x41\"]", "line 1 column"),
            ("[\"\\ud800\"]", "line 1 column"),
            ("[1e999]", "out of range"),
            ("{} {}", "line 1 column"),
        ];
        for (text, part) in cases {
            let error = Json::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert!(Json::parse(&deep).unwrap_err().contains("nesting depth"));
        let long = " ".repeat(LONGEST_TEXT + 1);
        assert!(Json::parse(&long).unwrap_err().contains("longer than 4 MiB"));
    }
}
