//! Limits that keep a web page or another program from exhausting the account: a target that failed a moment ago costs no further
//! token, and the tokens of a minute are bounded.

use super::connection::Refused;
use crate::settings::TokenSettings;
use parking_lot::Mutex;
use postern_daemon::bucket::Bucket;
use postern_daemon::seldom::Seldom;
use postern_proxy::target::{Target, Transport};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time for which a gateway's answer about a target is repeated, and a retry makes no new attempt.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(5);
/// Maximum remembered targets. The oldest failure is evicted first.
const MOST_TARGETS: usize = 512;
/// Maximum bytes kept of an answer's body.
const MOST_BODY: usize = 2 * 1024;
/// Appended to an answer that is repeated.
const AGAIN: &str = "The agent gives this answer of a few seconds ago again, and has sent no token.\n";

/// Targets that failed a moment ago, in memory only; the oldest failure first.
#[derive(Default)]
pub(crate) struct FailedTargets(Mutex<VecDeque<(Instant, Target, Refused)>>);

impl FailedTargets {
    pub(crate) fn answer(&self, target: &Target, now: Instant) -> Option<Refused> {
        let targets = self.0.lock();
        let (.., refused) = targets.iter().find(|(at, failed, _)| failed == target && is_recent(*at, now))?;
        let body = [&refused.body[..], AGAIN.as_bytes()].concat();
        Some(Refused { body: body.into(), ..refused.clone() })
    }

    pub(crate) fn add(&self, target: &Target, refused: &Refused, now: Instant) {
        let mut targets = self.0.lock();
        targets.retain(|(at, failed, _)| failed != target && is_recent(*at, now));
        if targets.len() >= MOST_TARGETS {
            targets.pop_front();
        }
        let body = refused.body.slice(..refused.body.len().min(MOST_BODY));
        targets.push_back((now, target.clone(), Refused { body, ..refused.clone() }));
    }

    /// Records that the gateway, and not the program, has ended a stream of UDP that was `opened` then. Until [`REMEMBERED`] after that,
    /// no token is sent for the target, whichever front asks and whether a datagram came back: each stream to an unreachable port ends
    /// at its first datagram.
    pub(crate) fn udp_ended(&self, target: &Target, opened: Instant) {
        if is_recent(opened, Instant::now()) {
            self.add(target, &Refused::short_udp(), opened);
        }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < REMEMBERED
}

/// The limit on tokens sent in a minute: the present `[wallet] most_per_minute`, and half of it for UDP. A program that sends a
/// datagram each to many targets, as a scan does, leaves the other half to tunnels.
pub(crate) struct Cap {
    settings: watch::Receiver<TokenSettings>,
    all: Mutex<Bucket>,
    udp: Mutex<Bucket>,
    line: Seldom,
}

impl Cap {
    pub(crate) fn new(settings: watch::Receiver<TokenSettings>) -> Self {
        let line = Seldom::every(Duration::from_secs(60));
        Self { settings, all: Mutex::default(), udp: Mutex::default(), line }
    }

    /// Fails at the limit with the time until a token may be sent, and warns once a minute.
    pub(crate) fn check(&self, transport: Transport, now: Instant) -> Result<(), Duration> {
        self.take(0, transport, now)
    }

    /// Counts a token that is about to be sent, and fails as [`Cap::check`] does.
    pub(crate) fn count(&self, transport: Transport, now: Instant) -> Result<(), Duration> {
        self.take(1, transport, now)
    }

    fn take(&self, tokens: u64, transport: Transport, now: Instant) -> Result<(), Duration> {
        let most = self.settings.borrow().most_per_minute;
        if most == 0 {
            return Ok(());
        }
        let most = f64::from(most);
        let from = |bucket: &Mutex<Bucket>, most: f64, tokens| {
            bucket.lock().take(most / 60.0, most, tokens, now).map(drop)
        };
        // UDP's own share is not charged for a token that is not sent.
        let of_udp = match transport {
            Transport::Udp => {
                from(&self.all, most, 0).and_then(|()| from(&self.udp, (most / 2.0).max(1.0), tokens))
            }
            Transport::Tcp => Ok(()),
        };
        of_udp.and_then(|()| from(&self.all, most, tokens)).inspect_err(|_| {
            if self.line.due(now).is_some() {
                tracing::warn!(
                    "programs on this machine send tokens faster than [wallet] most_per_minute allows ({most}, half of it for UDP), \
                     and are refused (429) until they send fewer: a web page or a program may be opening tunnels without end. If \
                     that is wanted, raise it"
                );
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Transport::{Tcp, Udp};
    use http::{HeaderMap, StatusCode};

    fn target(number: usize) -> Target {
        Target::parse(&format!("name{number}.example:443"), None).unwrap()
    }

    #[test]
    fn a_target_that_failed_is_answered_so_for_seconds_and_few_are_remembered() {
        let (failed, start) = (FailedTargets::default(), Instant::now());
        let refused = Refused::of(StatusCode::BAD_GATEWAY, HeaderMap::new(), vec![b'x'; 60_000].into());
        failed.add(&target(0), &refused, start);
        let again = failed.answer(&target(0), start + REMEMBERED / 2).unwrap();
        assert_eq!((again.status, again.body.len()), (StatusCode::BAD_GATEWAY, MOST_BODY + AGAIN.len()));
        assert!(failed.answer(&target(1), start).is_none());
        assert!(failed.answer(&target(0), start + REMEMBERED).is_none());
        for number in 0..2 * MOST_TARGETS {
            failed.add(&target(number), &refused, start + Duration::from_micros(number as u64));
        }
        let now = start + Duration::from_secs(1);
        assert_eq!(failed.0.lock().len(), MOST_TARGETS);
        assert!(
            failed.answer(&target(0), now).is_none() && failed.answer(&target(MOST_TARGETS), now).is_some()
        );
    }

    #[test]
    fn a_minutes_tokens_may_be_sent_at_once_and_then_as_they_come() {
        let settings = TokenSettings { most_per_minute: 60, ..TokenSettings::default() };
        let (sender, receiver) = watch::channel(settings.clone());
        let (cap, start) = (Cap::new(receiver), Instant::now());
        let sent = |transport, at| (0..100).filter(|_| cap.count(transport, at).is_ok()).count();
        assert_eq!((sent(Udp, start), sent(Tcp, start)), (30, 30), "UDP has half of them");
        assert_eq!(cap.count(Tcp, start), Err(Duration::from_secs(1)));
        let later = start + Duration::from_secs(1);
        assert!(cap.check(Tcp, start).is_err() && (0..9).all(|_| cap.check(Tcp, later).is_ok()));
        assert_eq!(sent(Tcp, start + Duration::from_millis(3_100)), 3);
        sender.send_replace(TokenSettings { most_per_minute: 0, ..settings });
        assert_eq!((sent(Udp, start), sent(Tcp, start)), (100, 100), "no limit");
    }
}
