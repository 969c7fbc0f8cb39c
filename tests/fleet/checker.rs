//! Judges the file of a run, with no part in making it.

use super::history::{Answer, Line, Outage, Presentation, read};
use std::fmt;
use std::ops::Range;

/// The conclusion that a store's refusals allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Of a token that was refused as spent, some presentation was admitted or lost its answer.
    OneWins,
    /// Three replicas: presentations that began at once may each have got a replica, and then all are refused.
    TiesLose,
}

/// Counts of a history that the spend contract allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub presentations: usize,
    pub opened: usize,
    pub spent: usize,
    pub unavailable: usize,
    pub broken: usize,
    /// Tokens that were never answered 200.
    pub unopened: usize,
    /// Those of them that were refused as spent each time.
    pub tied: usize,
    /// Presentations that touch no outage.
    pub quiet: usize,
}

/// A history that the spend contract does not allow.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Judges a history in which each of `tokens` was presented at least `times` times:
///
/// 1. A token is answered 200 at most once.
/// 2. Every presentation was answered something, and the answers are 200, a replay's, that of a void mark, or 503.
/// 3. A token is refused as spent only when another presentation began before that refusal was certain; with
///    [`Claim::OneWins`] one that was not itself refused so. So a token that was never answered 200 has an answer
///    that left it open, unless it is tied.
/// 4. That of a void mark, a 503, no answer at all, or a tunnel that breaks, comes only during an outage.
pub fn check(text: &str, tokens: Range<usize>, times: usize, claim: Claim) -> Result<Summary, Violation> {
    let lines = read(text).map_err(Violation)?;
    let mut of_token: Vec<Vec<Presentation>> = tokens.clone().map(|_| Vec::new()).collect();
    let mut outages = Vec::new();
    for line in lines {
        match line {
            Line::Outage(outage) => outages.push(outage),
            Line::Presentation(presentation) if tokens.contains(&presentation.token) => {
                of_token[presentation.token - tokens.start].push(presentation);
            }
            Line::Presentation(Presentation { token, .. }) => {
                return Err(Violation(format!("token {token} was not among those to be presented")));
            }
        }
    }
    let mut summary = Summary::default();
    for (token, own) in tokens.zip(&of_token) {
        let violation = |what: String| Violation(format!("token {token} {what}: {own:#?}"));
        if own.len() < times {
            return Err(violation(format!("was answered {} times of {times}", own.len())));
        }
        check_token(own, &outages, claim).map_err(|what| violation(what.to_owned()))?;
        summary.add(own, &outages);
    }
    Ok(summary)
}

fn check_token(own: &[Presentation], outages: &[Outage], claim: Claim) -> Result<(), &'static str> {
    let opened = own.iter().filter(|presentation| presentation.opened()).count();
    if opened > 1 {
        return Err("was answered 200 more than once");
    }
    for (index, presentation) in own.iter().enumerate() {
        let spends = |other: &Presentation| claim == Claim::TiesLose || other.answer != Answer::AlreadySpent;
        let mut others = own.iter().enumerate().filter(|(other, _)| *other != index);
        let mut spent_before = || others.any(|(_, other)| spends(other) && other.start <= presentation.end);
        match presentation.answer {
            Answer::Opened => {}
            Answer::AlreadySpent if spent_before() => {}
            Answer::AlreadySpent => return Err("was refused as spent before anyone could have spent it"),
            Answer::Void | Answer::Unavailable | Answer::Broken | Answer::OpenedAndLost
                if presentation.is_in(outages) => {}
            Answer::Void => return Err("was answered that its mark is void outside any outage"),
            Answer::Unavailable => return Err("was answered 503 outside any outage"),
            Answer::Broken | Answer::OpenedAndLost => return Err("was cut off outside any outage"),
            Answer::Other(_) => return Err("got an answer that is neither 200, nor a replay's, nor 503"),
        }
    }
    Ok(())
}

impl Presentation {
    fn opened(&self) -> bool {
        matches!(self.answer, Answer::Opened | Answer::OpenedAndLost)
    }

    fn is_in(&self, outages: &[Outage]) -> bool {
        outages.iter().any(|outage| self.start <= outage.until && outage.from <= self.end)
    }
}

impl Summary {
    fn add(&mut self, own: &[Presentation], outages: &[Outage]) {
        let count = |wanted: Answer| own.iter().filter(|presentation| presentation.answer == wanted).count();
        let opened = count(Answer::Opened) + count(Answer::OpenedAndLost);
        self.presentations += own.len();
        self.opened += opened;
        self.spent += count(Answer::AlreadySpent);
        self.unavailable += count(Answer::Unavailable);
        self.broken += count(Answer::Broken);
        self.unopened += usize::from(opened == 0);
        self.tied += usize::from(count(Answer::AlreadySpent) == own.len());
        self.quiet += own.iter().filter(|presentation| !presentation.is_in(outages)).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HONEST: &str = "\
0\t0\t0\t9\topened
0\t1\t1\t10\tspent
1\t2\t15\t25\tbroken
1\t3\t31\t35\tspent
2\t0\t21\t29\tunavailable
2\t0\t22\t24\tunavailable
outage\t20\t30\tkilled
";

    #[test]
    fn an_honest_history_is_counted() {
        let expected = Summary {
            presentations: 6,
            opened: 1,
            spent: 2,
            unavailable: 2,
            broken: 1,
            unopened: 2,
            tied: 0,
            quiet: 3,
        };
        assert_eq!(check(HONEST, 0..3, 2, Claim::OneWins), Ok(expected));
        assert_eq!(check(HONEST, 0..3, 2, Claim::TiesLose), Ok(expected));
    }

    #[test]
    fn a_tie_passes_only_where_it_may_happen_and_only_between_those_that_raced() {
        let tie = "0\t0\t5\t9\tspent\n0\t1\t9\t10\tspent\n";
        assert_eq!(check(tie, 0..1, 2, Claim::TiesLose).unwrap().tied, 1);
        assert!(check(tie, 0..1, 2, Claim::OneWins).is_err());
        assert!(check(&tie.replace("\t9\t10", "\t10\t11"), 0..1, 2, Claim::TiesLose).is_err());
    }

    fn caught(text: &str, expected: &str) {
        let violation = check(text, 0..3, 2, Claim::OneWins).unwrap_err();
        assert!(violation.0.contains(expected), "{violation}");
    }

    #[test]
    fn forged_histories_are_caught() {
        let with = |line: &str| format!("{HONEST}{line}\n");
        caught(&with("0\t2\t40\t50\topened"), "token 0 was answered 200 more than once");
        caught(&with("0\t2\t22\t24\topened-and-lost"), "token 0 was answered 200 more than once");
        caught(&with("0\t2\t40\t50\tunavailable"), "token 0 was answered 503 outside any outage");
        caught(&with("0\t2\t40\t50\tbroken"), "token 0 was cut off outside any outage");
        caught(&with("0\t2\t21\t22\tother-502"), "neither 200, nor a replay's, nor 503");
        caught(&with("7\t2\t40\t50\tspent"), "token 7 was not among those");
        let without = |line: &str| HONEST.replace(&format!("{line}\n"), "");
        caught(&without("0\t1\t1\t10\tspent"), "token 0 was answered 1 times of 2");
        caught(&without("outage\t20\t30\tkilled"), "token 1 was cut off outside any outage");
        let instead = |line: &str, forged: &str| HONEST.replace(line, forged);
        caught(&instead("0\t0\t0\t9\topened", "0\t0\t0\t9\tspent"), "before anyone could have spent it");
        caught(&instead("0\t0\t0\t9\topened", "0\t0\t11\t19\topened"), "before anyone could have spent it");
        caught(&instead("0\t0\t0\t9\topened", "0\t0\t11\t21\topened-and-lost"), "before anyone could");
        caught(
            &HONEST.replace("\tunavailable", "\tspent"),
            "token 2 was refused as spent before anyone could",
        );
        caught(&instead("killed\n", "killed"), "cut off");
        caught(&instead("\tbroken", "\tmended"), "is no line of a history");
    }

    #[test]
    fn lines_survive_the_file() {
        let words = "0\t1\t2\t3\topened\n0\t1\t2\t3\topened-and-lost\n0\t1\t2\t3\tspent\n0\t1\t2\t3\tunavailable\n\
                     0\t1\t2\t3\tbroken\n0\t1\t2\t3\tother-407\noutage\t4\t5\tcut\n";
        let lines = read(words).unwrap();
        let again: String = lines.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(again, words);
    }
}
