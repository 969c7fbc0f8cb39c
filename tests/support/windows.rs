//! Faults and the times in which they excuse a refusal: whatever was refused outside of them could have been avoided.

use super::users::{Attempt, Got, refusals};
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

/// A fault that refuses users whatever their agent does.
#[derive(Clone, Debug)]
pub struct Window {
    /// The fault, for people.
    pub fault: String,
    /// Agents whose users may be refused.
    pub agents: Vec<String>,
    /// Further agents, whose open tunnels may break.
    pub severed: Vec<String>,
    pub from: Duration,
    /// `None` while it lasts.
    pub until: Option<Duration>,
    /// Time after its end in which a refusal still counts as its effect.
    pub grace: Duration,
}

impl Window {
    /// Returns whether the attempt met it.
    fn excuses(&self, attempt: &Attempt) -> bool {
        let until = self.until.map_or(Duration::MAX, |until| until + self.grace);
        let is_severed = matches!(attempt.got, Got::Broken(_)) && self.severed.contains(&attempt.agent);
        let is_hit = self.agents.contains(&attempt.agent) || is_severed;
        is_hit && self.from <= attempt.ended && attempt.began <= until
    }
}

/// The faults of a test, in their order.
#[derive(Default)]
pub struct Windows(Mutex<Vec<Window>>);

/// A window that is open, by its place.
#[derive(Clone, Copy, Debug)]
#[must_use = "a window that is not closed excuses everything after it"]
pub struct Opened(usize);

impl Windows {
    /// A fault begins at `from`, just before it is caused.
    pub fn open<S: Into<String>>(
        &self,
        fault: impl Into<String>,
        agents: impl IntoIterator<Item = S>,
        from: Duration,
        grace: Duration,
    ) -> Opened {
        let agents = agents.into_iter().map(Into::into).collect();
        let mut windows = self.0.lock().unwrap();
        let severed = Vec::new();
        windows.push(Window { fault: fault.into(), agents, severed, from, until: None, grace });
        Opened(windows.len() - 1)
    }

    /// Its cause is gone at `until`.
    pub fn close(&self, opened: Opened, until: Duration) {
        self.0.lock().unwrap()[opened.0].until = Some(until);
    }

    /// It breaks open tunnels of these agents, too.
    pub fn severs(&self, opened: Opened, agents: impl IntoIterator<Item = String>) {
        self.0.lock().unwrap()[opened.0].severed = agents.into_iter().collect();
    }

    pub fn all(&self) -> Vec<Window> {
        self.0.lock().unwrap().clone()
    }

    /// Returns whether an attempt's failure is the effect of some fault.
    pub fn excuse(&self, attempt: &Attempt) -> bool {
        self.0.lock().unwrap().iter().any(|window| window.excuses(attempt))
    }

    /// Returns the number of attempts refused unavoidably; an error if no fault excuses an attempt that was not served.
    pub fn judged(&self, attempts: &[Attempt]) -> Result<usize, String> {
        let failed = attempts.iter().filter(|attempt| attempt.got != Got::Tunnel);
        let (excused, avoidable): (Vec<_>, Vec<_>) = failed.partition(|attempt| self.excuse(attempt));
        if avoidable.is_empty() {
            return Ok(excused.len());
        }
        let what = refusals(&avoidable, attempts.len());
        Err(format!("outside of the times in which a fault excuses it, {what}"))
    }

    /// [`Windows::judged`], or a failure that lists the faults.
    pub fn assert_only_unavoidable(&self, attempts: &[Attempt], context: &str) -> usize {
        self.judged(attempts).unwrap_or_else(|avoidable| panic!("{context}: {avoidable}{}", self.listed()))
    }

    /// The faults, one a line.
    pub fn listed(&self) -> String {
        let mut text = "The faults were:\n".to_owned();
        for Window { fault, agents, from, until, grace, .. } in self.all() {
            let until = until.map_or("the end".to_owned(), |until| format!("{:.2}", until.as_secs_f64()));
            let (from, grace) = (from.as_secs_f64(), grace.as_secs_f64());
            writeln!(text, "  {from:7.2} s to {until} s (+ {grace} s): {fault}, for {}", agents.join(", "))
                .unwrap();
        }
        text
    }
}
