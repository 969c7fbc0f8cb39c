//! Each token's fate, recorded while it happens and judged afterwards.

use std::fmt;
use std::time::Duration;

/// One presentation of one token. Times count from the beginning of the test.
#[derive(Clone, Debug)]
pub struct Record {
    pub token: usize,
    /// Before the connection was opened.
    pub start: Duration,
    /// Time at which the answer, or its absence, was certain.
    pub end: Duration,
    pub answer: Answer,
}

/// The answer to a presentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200, and what was sent came back.
    Opened,
    /// 200, and nothing came back.
    OpenedAndLost,
    /// 407, `details="token already spent"`.
    AlreadySpent,
    /// No answer: refused, reset, closed.
    Broken,
    /// Anything else.
    Other(u16),
}

/// From before a SIGKILL until the gateway was ready again.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub from: Duration,
    pub until: Duration,
}

/// The number of times each answer was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub opened: usize,
    pub spent: usize,
    pub broken: usize,
    /// Tokens that were never answered 200.
    pub unanswered: usize,
}

/// A history that the spend contract does not allow.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Judges a history of `tokens` tokens:
///
/// 1. A token is answered 200 at most once, whatever was killed in between.
/// 2. A token is refused as spent only when another presentation of it began before that refusal was certain.
/// 3. An answer fails to come, or a tunnel breaks, only during an outage.
/// 4. A token that was never answered 200 lost an answer in an outage: something recorded it.
/// 5. There are no other answers.
pub fn judge(records: &[Record], tokens: usize, outages: &[Outage]) -> Result<Summary, Violation> {
    let mut summary = Summary::default();
    for token in 0..tokens {
        let own: Vec<&Record> = records.iter().filter(|record| record.token == token).collect();
        let fail = |what: &str| Err(Violation(format!("token {token} {what}: {own:#?}")));
        let count = |answer: &Answer| own.iter().filter(|record| record.answer == *answer).count();
        let opened = count(&Answer::Opened) + count(&Answer::OpenedAndLost);
        if opened > 1 {
            return fail("was answered 200 more than once");
        }
        for (index, record) in own.iter().enumerate() {
            let in_outage =
                outages.iter().any(|outage| record.start <= outage.until && outage.from <= record.end);
            let another_began =
                || own.iter().enumerate().any(|(other, before)| other != index && before.start <= record.end);
            match record.answer {
                Answer::Opened => {}
                Answer::OpenedAndLost | Answer::Broken if in_outage => {}
                Answer::OpenedAndLost | Answer::Broken => return fail("was cut off outside any outage"),
                Answer::AlreadySpent if another_began() => {}
                Answer::AlreadySpent => {
                    return fail("was refused as spent before anyone could have spent it");
                }
                Answer::Other(_) => return fail("got an answer that is neither 200 nor a replay's"),
            }
        }
        if opened == 0 && count(&Answer::Broken) == 0 {
            return fail("was never answered 200, and no answer was lost");
        }
        summary.opened += opened;
        summary.spent += count(&Answer::AlreadySpent);
        summary.broken += count(&Answer::Broken);
        summary.unanswered += usize::from(opened == 0);
    }
    Ok(summary)
}
