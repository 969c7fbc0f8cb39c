//! Tokens over the last minutes: issued, spent, held and lost. Each daemon of the process adds the numbers that it has; numbers
//! of the same kind are added up.

use super::section::{Line, Section};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Signed by the issuer.
    Issued,
    /// Recorded as spent by the gateway's store.
    Spent,
    /// Present in the agent's wallet.
    Held,
    /// Gone from the agent without an answer about a target.
    Lost,
}

impl Tokens {
    const ALL: [Self; 4] = [Self::Issued, Self::Spent, Self::Held, Self::Lost];

    /// Returns the label, its meaning, and true if it is a level rather than a count since the start.
    const fn words(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::Issued => ("Issued", "The issuer signed them.", false),
            Self::Spent => {
                ("Spent", "The gateway's store recorded them as spent, whatever became of the tunnel.", false)
            }
            Self::Held => ("Held", "They are in the agent's wallet, unspent.", true),
            Self::Lost => (
                "Lost",
                "They are gone from the agent without an answer about a target: refused, unanswered, abandoned, retired, \
                 superseded or unwritten.",
                false,
            ),
        }
    }
}

/// A daemon's numbers: since the start, or at present for held tokens.
type Source = Box<dyn FnMut() -> Vec<(Tokens, u64)> + Send>;

#[derive(Default)]
pub(super) struct TokenSources(Mutex<State>);

#[derive(Default)]
struct State {
    sources: Vec<Source>,
    /// Totals at the previous call, in the order of [`Tokens::ALL`].
    before: [u64; Tokens::ALL.len()],
}

impl TokenSources {
    pub(super) fn add(&self, source: impl FnMut() -> Vec<(Tokens, u64)> + Send + 'static) {
        self.0.lock().sources.push(Box::new(source));
    }

    /// Returns the known numbers as lines; `None` if there are none. Must be called once a second.
    pub(super) fn section(&self) -> Option<Section> {
        let State { sources, before } = &mut *self.0.lock();
        let known: Vec<_> = sources.iter_mut().flat_map(|source| source()).collect();
        let mut section = Section::new("tokens", "Tokens");
        for tokens in Tokens::ALL {
            let mut numbers =
                known.iter().filter(|(of, _)| *of == tokens).map(|(_, number)| number).peekable();
            if numbers.peek().is_none() {
                continue;
            }
            let total: u64 = numbers.sum();
            let grown = total.saturating_sub(std::mem::replace(&mut before[tokens as usize], total));
            let (label, meaning, is_level) = tokens.words();
            section.lines.push(match is_level {
                true => Line { label, meaning, value: total, total: None },
                false => Line { label, meaning, value: grown, total: Some(total) },
            });
        }
        (!section.lines.is_empty()).then_some(section)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(sources: &TokenSources) -> Vec<(&'static str, u64, Option<u64>)> {
        let section = sources.section();
        section
            .into_iter()
            .flat_map(|section| section.lines)
            .map(|line| (line.label, line.value, line.total))
            .collect()
    }

    #[test]
    fn daemons_of_one_process_count_together_and_show_what_they_know() {
        let sources = TokenSources::default();
        assert!(sources.section().is_none(), "nobody knows anything");
        for spent in [3, 4] {
            let mut total = 0;
            sources.add(move || {
                total += spent;
                vec![(Tokens::Spent, total)]
            });
        }
        assert_eq!(lines(&sources), [("Spent", 7, Some(7))]);
        sources.add(|| vec![(Tokens::Held, 128), (Tokens::Lost, 0)]);
        sources.add(Vec::new);
        assert_eq!(lines(&sources), [("Spent", 7, Some(14)), ("Held", 128, None), ("Lost", 0, Some(0))]);
        assert_eq!(lines(&sources)[0], ("Spent", 7, Some(21)));
    }
}
