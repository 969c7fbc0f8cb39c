//! `Proxy-Authenticate`: what is read is written and read back, quoted and bare.

use postern_token::header::Challenge;
use postern_token::inspect;

pub fn run(value: &[u8]) {
    if let Ok(challenges) = Challenge::parse_all(value) {
        let quoted = challenges.iter().map(Challenge::format).collect::<Vec<_>>().join(", ");
        for value in [quoted.replace('"', ""), quoted] {
            assert_eq!(Challenge::parse_all(value.as_bytes()).as_ref(), Ok(&challenges));
        }
    }
    if let Ok(text) = std::str::from_utf8(value) {
        match inspect(&format!("Proxy-Authenticate: {text}")) {
            Ok(found) => assert!(!found.to_string().is_empty()),
            Err(error) => assert!(
                error.offset().is_none_or(|at| at <= text.len() + 20) && !error.to_string().is_empty()
            ),
        }
    }
}
