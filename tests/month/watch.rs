//! Daemons' reports over the month: readiness and counters, read several times a second.

use crate::support::site::Site;
use crate::support::unit::{Readiness, Unit};
use crate::support::users::{Attempt, Got, Users};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interval of looks at each daemon.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Most time from a refusal of its users until a daemon reports why.
const SOON: Duration = Duration::from_secs(2);

/// Readiness over time.
#[derive(Default)]
pub struct Seen(Mutex<BTreeMap<String, Vec<(Duration, Readiness)>>>);

impl Seen {
    /// Looks at every daemon for as long as the future is polled.
    pub async fn keep_looking(self: Arc<Self>, site: Arc<Site>, users: Users) {
        loop {
            for unit in site.units() {
                self.look(unit, &users).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self, unit: &Unit, users: &Users) {
        let readiness = unit.readiness().await;
        self.0.lock().unwrap().entry(unit.name.clone()).or_default().push((users.now(), readiness));
    }

    /// Returns whether one of `units` reported something other than "ready" in the time.
    fn said_something(&self, units: &[&str], from: Duration, until: Duration) -> bool {
        let seen = self.0.lock().unwrap();
        let mut samples = units.iter().filter_map(|unit| seen.get(*unit)).flatten();
        samples.any(|(at, readiness)| (from..=until).contains(at) && !readiness.is_plain())
    }

    /// The times of two seconds and more in which an agent served none of its users, and neither it nor its
    /// gateway reported anything but "ready".
    pub fn silent_refusals(&self, attempts: &[Attempt], agent: &str, gateways: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        for (from, until, first) in refused(attempts, agent) {
            let units: Vec<&str> = gateways.iter().copied().chain([agent]).collect();
            if until - from >= SOON && !self.said_something(&units, from, from + SOON) {
                found.push(format!(
                    "from {:.1} s to {:.1} s users of {agent} were refused, and for the first {SOON:?} {units:?} said \
                     \"ready\": {first}",
                    from.as_secs_f64(),
                    until.as_secs_f64()
                ));
            }
        }
        found
    }
}

/// The periods in which every answer to users of `agent` was a refusal, with the first of them.
fn refused<'a>(attempts: &'a [Attempt], agent: &str) -> Vec<(Duration, Duration, &'a Attempt)> {
    let mut own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.agent == agent).collect();
    own.sort_by_key(|attempt| attempt.ended);
    let mut spans: Vec<(Duration, Duration, &Attempt)> = Vec::new();
    let mut is_open = false;
    for attempt in own {
        match attempt.got {
            Got::Refusal(..) if is_open => spans.last_mut().unwrap().1 = attempt.ended,
            Got::Refusal(..) => spans.push((attempt.ended, attempt.ended, attempt)),
            _ => {}
        }
        is_open = matches!(attempt.got, Got::Refusal(..));
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::windows::Windows;

    fn refusal(second: u64) -> Attempt {
        let at = Duration::from_secs(second);
        Attempt { agent: "agent a".into(), began: at, ended: at, got: Got::Refusal(503, "no".into()) }
    }

    fn seen(said: &[(u64, &str)]) -> Seen {
        let readiness = |body: &str| Readiness { status: Some(200), body: body.to_owned() };
        let samples = said.iter().map(|(second, body)| (Duration::from_secs(*second), readiness(body)));
        Seen(Mutex::new(BTreeMap::from([("gateway 1".to_owned(), samples.collect())])))
    }

    #[test]
    fn refusals_behind_a_plain_ready_are_found() {
        let attempts = [refusal(10), refusal(11), refusal(12)];
        let silent = |said: &[(u64, &str)]| seen(said).silent_refusals(&attempts, "agent a", &["gateway 1"]);
        assert_eq!(silent(&[(10, "ready\n"), (11, "ready\n"), (13, "ready\ndegraded: store\n")]).len(), 1);
        assert!(silent(&[(10, "ready\n"), (11, "ready\ndegraded: store\n")]).is_empty());
        let short = [refusal(10), refusal(11)];
        assert!(seen(&[]).silent_refusals(&short, "agent a", &["gateway 1"]).is_empty());
    }

    #[test]
    fn a_refusal_outside_of_every_fault_is_found() {
        let windows = Windows::default();
        let second = Duration::from_secs(1);
        let opened = windows.open("a fault", ["agent a"], 10 * second, second);
        windows.close(opened, 12 * second);
        assert_eq!(windows.judged(&[refusal(10), refusal(13)]), Ok(2));
        for outside in [refusal(9), refusal(14), Attempt { agent: "agent b".into(), ..refusal(11) }] {
            assert!(windows.judged(&[refusal(10), outside]).is_err());
        }
    }
}
