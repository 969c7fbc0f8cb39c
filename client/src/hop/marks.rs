//! The challenges of a gateway: for which of them tokens are signed, and which tokens are sent.
//!
//! A gateway puts a mark into its challenge, and another one when its store has lost records (RFC 9577, section 2.1.1.1:
//! a second name in `origin_info`). Tokens of the mark before are still good for what was not lost, so they are sent
//! first. But a challenge is also a name that a hostile gateway could give to one client, and each new one could cost a
//! stock of tokens. So the first new challenges of an hour, with a mark or without, are taken at once, and each further one
//! after a pause that doubles; tokens are signed one at a time until the challenge has lasted. One with a redemption context
//! may be another each time: it is minted for on demand only, and is not counted here.
//!
//! Here are the rules, without I/O and clock.

pub(crate) mod saved;

use crate::wallet::challenge::CurrentChallenge;
use postern_daemon::backoff::Backoff;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use std::time::Duration;

/// New challenges in an hour for which tokens are signed without a pause, beside the first one of each token key.
const WITHOUT_PAUSE: usize = 4;
/// Pauses before further ones. A gateway that tells clients apart gets 370 a day
/// (`new_marks_of_a_hostile_gateway_in_a_day`), and is in the log meanwhile.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(240) };
/// For how long at least a challenge has to be offered before tokens are minted ahead for it, if it is not the first of its
/// token key.
const TRIAL: Duration = Duration::from_secs(600);
/// Changes from one known challenge to another in an hour after which none is signed for marks, and nothing is minted ahead
/// without them: the gateways of a fleet agree on a mark within seconds, and on what is in their files soon after.
const CHANGES_IN_AN_HOUR: usize = 20;
const HOUR: Duration = Duration::from_secs(3600);
/// Tokens of an older mark that are refused in a row before the rest are dropped. With one of three servers lost, a third
/// of them are refused.
const REFUSED_IN_A_ROW: u32 = 5;
/// Marks that are remembered: far more than have tokens.
const KEPT: usize = 64;

/// What one gateway has offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Its name, or names, in marked challenges.
    names: Option<String>,
    /// The challenges for which tokens were signed, oldest first.
    known: Vec<Known>,
    /// One that is offered, and for which none was signed yet.
    pending: Option<Known>,
    current: Option<ChallengeDigest>,
    /// When it changed from one known challenge to another.
    changes: Vec<UnixSeconds>,
    /// By how much a trial lasts longer than [`TRIAL`].
    longer: Duration,
}

/// A challenge, with or without a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    digest: ChallengeDigest,
    key: Option<TokenKeyId>,
    /// When it was first and last offered.
    since: UnixSeconds,
    seen: UnixSeconds,
    /// When it was counted as a new one, if it was.
    counted: Option<UnixSeconds>,
    /// Its tokens are not sent any more.
    is_given_up: bool,
    refused_in_a_row: u32,
    /// One of its tokens opened a tunnel.
    is_proven: bool,
}

/// A challenge that has not lasted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// For how long it has to last.
    pub left: Duration,
    /// One of its tokens was accepted.
    pub is_proven: bool,
}

/// Why no token is signed for a challenge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarksRefused {
    #[error(
        "the gateway {gateway} names another challenge, after {count} new ones within an hour. It may be set up anew \
         again and again, or it tries to tell clients apart by them, or to use up the issuer's quota. No token is signed for \
         it for {} s; one that is known already is taken again at once. Ask the gateway's operator, or use another gateway \
         (gateway.url)", left.as_secs()
    )]
    /// A new challenge too soon after others, from a gateway without marks.
    ChallengeTooSoon {
        /// Its URL.
        gateway: String,
        /// New ones in the last hour.
        count: usize,
        /// Until tokens are signed for another one.
        left: Duration,
    },
    #[error(
        "the gateway {gateway} names another mark, after {count} new ones within an hour. Either it tries to tell clients \
         apart by them, or its store of spent tokens keeps losing records. No token is signed for it for {} s; a mark that \
         is known already is taken again at once. Ask the gateway's operator, or use another gateway (gateway.url)",
        left.as_secs()
    )]
    /// A new mark too soon after others.
    MarkTooSoon {
        /// Its URL.
        gateway: String,
        /// New ones in the last hour.
        count: usize,
        /// Until tokens are signed for another mark.
        left: Duration,
    },
    #[error(
        "the gateway {gateway} changes from one mark to another and back, {changes} times within an hour. Either the \
         gateways behind that address do not share one store of spent tokens, or it tries to tell clients apart. No \
         token is signed until it has stayed with one mark for up to an hour. Ask the gateway's operator, or use another \
         gateway (gateway.url)"
    )]
    /// More changes from one mark to another than gateways of one fleet make.
    Alternating {
        /// Its URL.
        gateway: String,
        /// Changes in the last hour.
        changes: usize,
    },
}

impl MarksRefused {
    /// Until the same challenge is taken, where that is known.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        match self {
            Self::ChallengeTooSoon { left, .. } | Self::MarkTooSoon { left, .. } => Some(*left),
            Self::Alternating { .. } => None,
        }
    }
}

impl Marks {
    /// Lets trials last longer, by a share of ten minutes (0 to 1) that each agent draws: all learn of a loss within seconds, and
    /// would fill their wallets in one second.
    #[must_use]
    pub fn with_longer_trials(mut self, share: f64) -> Self {
        self.longer = TRIAL.mul_f64(share.clamp(0.0, 1.0));
        self
    }

    /// Takes note of the gateway's present challenge.
    ///
    /// # Errors
    /// A sentence about what it holds beside our name and one mark, from a gateway that uses marks.
    pub fn offered(&mut self, challenge: &CurrentChallenge, now: UnixSeconds) -> Result<(), String> {
        if !self.is_used() && !challenge.is_marked {
            if !challenge.has_context {
                self.take_note(challenge, now);
            }
            return Ok(());
        }
        let has_same_names = self.names.as_ref().is_none_or(|names| {
            challenge.names.as_ref().is_some_and(|others| others.eq_ignore_ascii_case(names))
        });
        if challenge.has_context || !has_same_names {
            return Err("its challenge holds more than the gateway's name and one mark, or another name, which could \
                        tell clients apart: a gateway that uses marks has to keep to them"
                .to_owned());
        }
        if self.names.is_none() {
            self.names.clone_from(&challenge.names);
            self.begin_marks();
        }
        self.take_note(challenge, now);
        Ok(())
    }

    /// From now on it uses marks. Of the challenges before, the last one counts like an older mark, of no token key.
    fn begin_marks(&mut self) {
        self.known.extend(self.pending.take());
        for known in &mut self.known {
            known.key = None;
            known.is_given_up = Some(known.digest) != self.current;
        }
    }

    fn take_note(&mut self, challenge: &CurrentChallenge, now: UnixSeconds) {
        let (digest, key) = (challenge.digest, challenge.key);
        for known in &mut self.known {
            // By a clock that was ahead, a pause would last until the clock is there again.
            known.counted = known.counted.map(|counted| counted.min(now));
        }
        let before = self.current.replace(digest);
        match self.known.iter_mut().find(|known| known.digest == digest) {
            Some(known) => {
                known.offered(now);
                known.is_given_up = false;
                if before.is_some_and(|before| before != digest) {
                    self.changes.push(now);
                    self.changes.drain(..self.changes.len().saturating_sub(KEPT));
                }
            }
            None => match &mut self.pending {
                Some(pending) if pending.digest == digest => pending.offered(now),
                pending => *pending = Some(Known::new(digest, key, now)),
            },
        }
    }

    /// Whether a token may be signed for a challenge under a key.
    ///
    /// # Errors
    /// The mark comes too soon after others.
    pub fn may_sign(
        &self,
        gateway: &str,
        digest: ChallengeDigest,
        key: Option<TokenKeyId>,
        now: UnixSeconds,
    ) -> Result<(), MarksRefused> {
        let changes = self.changes_in_an_hour(now);
        if self.is_used() && changes > CHANGES_IN_AN_HOUR {
            return Err(MarksRefused::Alternating { gateway: gateway.to_owned(), changes });
        }
        if !self.is_new(digest) || self.is_first_of(key) {
            return Ok(());
        }
        let ages = self.known.iter().filter_map(|known| Some(known.counted?.until(now)));
        let ages: Vec<_> = ages.filter(|age| *age < HOUR).collect();
        let (count, last) = (ages.len(), ages.into_iter().min().unwrap_or_default());
        let pause = count.checked_sub(WITHOUT_PAUSE).map(|over| PAUSES.pause(over as u32));
        let left = pause.and_then(|pause| pause.checked_sub(last)).filter(|left| !left.is_zero());
        let Some(left) = left else { return Ok(()) };
        let gateway = gateway.to_owned();
        Err(match self.is_used() {
            true => MarksRefused::MarkTooSoon { gateway, count, left },
            false => MarksRefused::ChallengeTooSoon { gateway, count, left },
        })
    }

    /// A token is about to be signed for a challenge, under `key`, which the issuer publishes. True when this is news, to
    /// be saved before.
    ///
    /// # Errors
    /// The mark comes too soon after others.
    pub fn sign(
        &mut self,
        gateway: &str,
        digest: ChallengeDigest,
        key: TokenKeyId,
        now: UnixSeconds,
    ) -> Result<bool, MarksRefused> {
        self.may_sign(gateway, digest, Some(key), now)?;
        if !self.is_new(digest) {
            return Ok(false);
        }
        // The gateway may offer another one already.
        let pending = self.pending.take_if(|pending| pending.digest == digest);
        let mut new = pending.unwrap_or_else(|| Known::new(digest, Some(key), now));
        new.counted = (!self.is_first_of(Some(key))).then_some(now);
        new.key = Some(key);
        self.known.push(new);
        if self.known.len() > KEPT {
            self.forget_one();
        }
        Ok(true)
    }

    /// Whether `digest` is offered and has not lasted yet.
    #[must_use]
    pub fn trial(&self, digest: ChallengeDigest, now: UnixSeconds) -> Option<Trial> {
        let offered = self.find(digest)?;
        if self.changes_in_an_hour(now) > CHANGES_IN_AN_HOUR {
            return Some(Trial { left: HOUR, is_proven: true }); // without marks, for those are refused
        }
        let left = self.trial_lasts().checked_sub(offered.since.until(now)).filter(|left| !left.is_zero())?;
        (self.is_tried(offered) && !self.has_lasted(offered))
            .then_some(Trial { left, is_proven: offered.is_proven })
    }

    /// Whether `digest` may have lasted, which one more look at the gateway's challenge tells.
    #[must_use]
    pub fn is_to_be_confirmed(&self, digest: ChallengeDigest, now: UnixSeconds) -> bool {
        self.find(digest).is_some_and(|offered| {
            self.is_tried(offered)
                && !self.has_lasted(offered)
                && offered.since.until(now) >= self.trial_lasts()
        })
    }

    /// The challenges before the present one whose tokens are still sent, oldest first. Without marks they are not good any
    /// more.
    #[must_use]
    pub fn older(&self) -> Vec<ChallengeDigest> {
        if !self.is_used() {
            return Vec::new();
        }
        let sent = self.known.iter().filter(|known| !known.is_given_up && Some(known.digest) != self.current);
        sent.map(|known| known.digest).collect()
    }

    /// A token for `digest` was accepted.
    pub fn accepted(&mut self, digest: ChallengeDigest) {
        if let Some(known) = self.known.iter_mut().find(|known| known.digest == digest) {
            (known.refused_in_a_row, known.is_proven) = (0, true);
        }
    }

    /// A token for `digest` was refused. True when its other tokens are given up by that.
    pub fn refused(&mut self, digest: ChallengeDigest) -> bool {
        let is_current = self.current == Some(digest);
        let Some(known) = self.known.iter_mut().find(|known| known.digest == digest && !is_current) else {
            return false;
        };
        known.refused_in_a_row += 1;
        known.is_given_up |= known.refused_in_a_row >= REFUSED_IN_A_ROW;
        known.is_given_up
    }

    /// Forgets the oldest challenge whose token key has another one: the first one of a key is not counted.
    fn forget_one(&mut self) {
        let has_another =
            |known: &&Known| self.known.iter().filter(|other| other.key == known.key).count() > 1;
        let oldest = self.known.iter().find(has_another).unwrap_or(&self.known[0]).digest;
        self.known.retain(|known| known.digest != oldest);
    }

    fn is_used(&self) -> bool {
        self.names.is_some()
    }

    fn is_new(&self, digest: ChallengeDigest) -> bool {
        self.known.iter().all(|known| known.digest != digest)
    }

    fn changes_in_an_hour(&self, now: UnixSeconds) -> usize {
        self.changes.iter().filter(|when| when.until(now) < HOUR).count()
    }

    /// A new token key brings a new mark by itself, and only the issuer makes keys. The key of a challenge is the one of the
    /// first signature: a gateway that claims another one later gets nothing by it.
    fn is_first_of(&self, key: Option<TokenKeyId>) -> bool {
        key.is_some() && self.known.iter().all(|known| known.key != key)
    }

    /// Whether a challenge has to last. The first one of a token key does not: there is nothing of that key to compare it with,
    /// and tokens of the key before end with that key.
    fn is_tried(&self, offered: &Known) -> bool {
        match self.is_new(offered.digest) {
            true => !self.known.is_empty() && !self.is_first_of(offered.key),
            false => offered.counted.is_some(),
        }
    }

    fn has_lasted(&self, offered: &Known) -> bool {
        offered.since.until(offered.seen) >= self.trial_lasts()
    }

    fn trial_lasts(&self) -> Duration {
        TRIAL + self.longer
    }

    fn find(&self, digest: ChallengeDigest) -> Option<&Known> {
        self.known.iter().chain(&self.pending).find(|known| known.digest == digest)
    }
}

impl Known {
    fn new(digest: ChallengeDigest, key: Option<TokenKeyId>, now: UnixSeconds) -> Self {
        Self {
            digest,
            key,
            since: now,
            seen: now,
            counted: None,
            is_given_up: false,
            refused_in_a_row: 0,
            is_proven: false,
        }
    }

    /// It is offered at `now`. A time noted by a clock that was ahead would last for too long.
    fn offered(&mut self, now: UnixSeconds) {
        (self.seen, self.since) = (now, self.since.min(now));
    }
}

#[cfg(test)]
mod tests;
