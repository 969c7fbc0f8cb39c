//! Sentences put together from those of errors.

/// An error's sentence with its full stop, unless it ends in a question.
#[must_use]
pub fn full_stop(sentence: &impl ToString) -> String {
    let mut sentence = sentence.to_string();
    if !sentence.ends_with('?') {
        sentence.push('.');
    }
    sentence
}
