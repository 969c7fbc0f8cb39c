//! `Proxy-Authorization`: what is accepted is one token, has one spent key however it is spelled, and `inspect` finds
//! nothing wrong with it; what is refused, it refuses too.

use postern_token::header::{Presentation, format_authorization, parse_authorization};
use postern_token::inspect;

pub fn run(value: &[u8]) {
    let read = parse_authorization(value);
    if let Ok(Presentation::Token(token)) = &read {
        let again = format_authorization(token);
        let Ok(Presentation::Token(same)) = parse_authorization(again.as_bytes()) else {
            panic!("refused what was written: {again}")
        };
        assert_eq!(same.as_bytes(), token.as_bytes());
        assert_eq!(same.spent_key(), token.spent_key());
    }
    // `inspect` trims blanks, so only a value without any at its end means the same to both.
    if let Ok(text) = std::str::from_utf8(value)
        && text.trim() == text
    {
        let inspected = inspect(&format!("Proxy-Authorization: {text}"));
        assert_eq!(inspected.is_ok(), matches!(read, Ok(Presentation::Token(_))));
        match inspected {
            Ok(found) => assert!(!found.to_string().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        let _ = inspect(text).map_err(|error| error.to_string());
    }
}
