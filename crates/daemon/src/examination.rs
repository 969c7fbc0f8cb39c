//! Findings of `postern doctor` about this machine and a daemon's dependencies, and the examinations that several daemons share:
//! names, directories and descriptors. Those of certificates are in [`tls`](crate::tls).
//!
//! An examination starts nothing, writes nothing, needs no privileges and ends within [`PATIENCE`]; a lookup may take longer.

#[cfg(unix)]
mod here;

#[cfg(unix)]
pub use here::{
    closed, descriptors, directory, exposed_api_key, has_open, is_exposed, listeners, lock_holder,
    silent_disk, way_in,
};

use postern_net::Lookup;
use serde::Serialize;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit of one examination.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit of a lookup: longer than one while a name server is down.
pub const NAME_PATIENCE: Duration = Duration::from_secs(12);
/// Duration from which an answer is reported as slow, because clients wait for it.
pub const SLOW: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// Subject, in a word: "clock", "store".
    pub what: String,
    /// Observation. If `cost` or `remedy` is absent, this sentence contains it, or there is none. A bad finding has both.
    pub seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Well,
    /// Works, but deserves attention.
    Look,
    /// Does not work, or is not safe.
    Bad,
}

impl Finding {
    /// Creates a finding that a subject is as it should be.
    pub fn well(what: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { verdict: Verdict::Well, what: what.into(), seen: seen.into(), cost: None, remedy: None }
    }

    /// Creates a finding that a subject works, but deserves attention.
    pub fn look(what: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { verdict: Verdict::Look, ..Self::well(what, seen) }
    }

    /// Creates a finding that a subject does not work, or is not safe, with its consequence and remedy.
    pub fn bad(
        what: impl Into<String>,
        seen: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Bad, ..Self::well(what, seen).costs(cost).remedy(remedy) }
    }

    #[must_use]
    pub fn costs(self, cost: impl Into<String>) -> Self {
        Self { cost: Some(cost.into()), ..self }
    }

    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

#[derive(Debug, Default)]
pub struct Examinations(Vec<JoinHandle<Vec<Finding>>>);

impl Examinations {
    /// Begins an examination. `late` is the finding if it exceeds [`PATIENCE`].
    pub fn begin(&mut self, late: Finding, examining: impl Future<Output = Vec<Finding>> + Send + 'static) {
        self.begin_within(PATIENCE, late, examining);
    }

    /// Does the same with another time limit.
    pub fn begin_within(
        &mut self,
        patience: Duration,
        late: Finding,
        examining: impl Future<Output = Vec<Finding>> + Send + 'static,
    ) {
        let examining = async move { timeout(patience, examining).await.unwrap_or_else(|_| vec![late]) };
        self.0.push(tokio::spawn(examining));
    }

    /// Returns all findings, in the order in which the examinations began.
    pub async fn findings(self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for examining in self.0 {
            findings.extend(examining.await.unwrap_or_else(|error| {
                vec![Finding::look("doctor", format!("an examination broke off: {error}"))]
            }));
        }
        findings
    }
}

/// Formats the duration of an answer in microseconds, milliseconds or seconds.
pub fn written(took: Duration) -> String {
    match took.as_secs_f64() {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

/// Begins to look up each of these hosts once by the system's resolver, except literal addresses. `cost` is the consequence of a
/// failed lookup.
pub fn begin_names(
    examinations: &mut Examinations,
    hosts: impl IntoIterator<Item = String>,
    cost: &'static str,
) {
    let mut hosts: Vec<String> = hosts.into_iter().filter(|host| host.parse::<IpAddr>().is_err()).collect();
    hosts.sort();
    hosts.dedup();
    for host in hosts {
        let late = unresolved(&host, &format!("no answer within {} s", NAME_PATIENCE.as_secs()), cost);
        examinations.begin_within(NAME_PATIENCE, late, async move { vec![name(&host, cost).await] });
    }
}

async fn name(host: &str, cost: &str) -> Finding {
    let began = Instant::now();
    let mut families = Lookup::keeping(Duration::ZERO).find(host, 0);
    let found = families.first(|found| Some(found.to_vec())).await;
    let took = began.elapsed();
    let Some(found) = found else { return unresolved(host, &families.error().to_string(), cost) };
    let addresses: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
    let seen = format!("{host} is {}, looked up in {}", addresses.join(", "), written(took));
    if took < SLOW {
        return Finding::well("names", seen);
    }
    Finding::look("names", seen)
        .costs("each new connection to it waits for that")
        .remedy("check the name servers of /etc/resolv.conf, or run a caching resolver on this machine")
}

fn unresolved(host: &str, reason: &str, cost: &str) -> Finding {
    Finding::bad(
        "names",
        format!("{host} is not resolved: {reason}"),
        cost,
        format!("correct the name, or the name servers of /etc/resolv.conf (getent hosts {host} asks them)"),
    )
}

/// Begins to connect to `host` and `port`, the address of `what`. `away` is the finding if the connection fails.
pub fn begin_connection(
    examinations: &mut Examinations,
    host: &str,
    port: u16,
    what: &'static str,
    away: Finding,
) {
    let (host, late) = (host.trim_matches(['[', ']']).to_owned(), away.clone());
    examinations.begin(late, async move {
        let began = Instant::now();
        let found = match Lookup::keeping(Duration::ZERO).connect(&host, port, PATIENCE).await {
            Ok(_) => Finding::well(
                what,
                format!("{host}:{port} takes connections, in {}", written(began.elapsed())),
            ),
            Err(error) => Finding { seen: format!("{}: {error}", away.seen), ..away },
        };
        vec![found]
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn findings_keep_their_order_and_what_hangs_is_late() {
        let mut examinations = Examinations::default();
        let late = Finding::bad("a", "late", "much", "less");
        examinations.begin(late.clone(), std::future::pending());
        examinations.begin(late.clone(), async { vec![Finding::well("b", "here")] });
        assert_eq!(examinations.findings().await, [late, Finding::well("b", "here")]);
    }
}
