//! Parts of error messages, and the `Retry-After` of a server's refusal.

use http::HeaderMap;
use http::header::RETRY_AFTER;
use std::time::Duration;

/// Ends an error's sentence with a full stop, unless it is a question.
#[must_use]
pub fn full_stop(sentence: &impl ToString) -> String {
    let mut sentence = sentence.to_string();
    if !sentence.ends_with('?') {
        sentence.push('.');
    }
    sentence
}

/// Parses `Retry-After` in seconds. `None` for a date: our own backoff applies then.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_no_full_stop_behind_its_mark() {
        assert_eq!(full_stop(&"it is down"), "it is down.");
        assert_eq!(full_stop(&"is it running?"), "is it running?");
    }
}
