//! What a look at a machine found, a line each.

use crate::failure::Failure;
use std::fmt::Display;

/// The lines are printed as they are found; this counts them.
#[derive(Default)]
pub(super) struct Findings {
    bad: usize,
    looks: usize,
}

impl Findings {
    pub(super) fn well(&self, what: &str, text: impl Display) {
        line("well", what, text);
    }

    /// It works, and should be looked at.
    pub(super) fn look(&mut self, what: &str, text: impl Display) {
        self.looks += 1;
        line("look", what, text);
    }

    pub(super) fn bad(&mut self, what: &str, text: impl Display) {
        self.bad += 1;
        line("bad", what, text);
    }

    /// The last line; a failure when something is bad.
    pub(super) fn sum(self) -> Result<(), Failure> {
        match (self.bad, self.looks) {
            (0, 0) => println!("All is well."),
            (0, looks) => println!("Nothing is bad; {looks} to look at."),
            (bad, _) => {
                return Err(Failure::runtime(format_args!(
                    "{bad} bad: the lines above give the remedies; postern doctor --help has closer looks"
                )));
            }
        }
        Ok(())
    }
}

fn line(verdict: &str, what: &str, text: impl Display) {
    let text = text.to_string().replace('\n', "; ");
    println!("{verdict:<5} {what:<8} {text}");
}
