//! Sentences of errors, and what a server's refusal adds to them.

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

/// Quotes what a server wrote, to stand behind its status. Empty where it wrote nothing.
pub(crate) fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": \"{text}\"") }
}

/// Reads the seconds of a `Retry-After`. A date is ignored; our own backoff applies then.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
