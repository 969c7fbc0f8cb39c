//! The challenges of a gateway: for which of them tokens are signed, and which tokens are sent.
//!
//! A gateway puts a mark into its challenge, and another one when its store has lost records (RFC 9577, section 2.1.1.1: a second
//! name in `origin_info`). Tokens of the previous mark are still valid for records that were not lost, so they are sent first.
//! But a challenge is also an identifier that a hostile gateway could give to one client, and each new one could cost a stock of
//! tokens. So the first new challenges of an hour, with or without a mark, are accepted at once, and each further one after a
//! pause that doubles; tokens are signed one at a time until the challenge has lasted. A challenge with a redemption context may
//! differ each time: tokens for it are minted on demand only, and it is not counted here.
//!
//! These are the rules, without I/O and clock.

pub(crate) mod saved;

use crate::wallet::beside::{digest_in_hex, key_in_hex};
use crate::wallet::challenge::CurrentChallenge;
use postern_daemon::backoff::Backoff;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// New challenges in an hour that are accepted without a pause, in addition to the first one of each token key.
const WITHOUT_PAUSE: usize = 4;
/// Pauses before further ones. A gateway that tells clients apart by new challenges gets 370 a day
/// (`new_marks_of_a_hostile_gateway_in_a_day`), and appears in the log.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(240) };
/// Minimum time that a challenge must be offered before tokens are minted ahead for it, unless it is the first of its token
/// key.
const TRIAL: Duration = Duration::from_secs(600);
/// Changes between known challenges in an hour after which nothing is minted ahead, and tokens for marks are signed with
/// pauses between them. Gateways of a fleet agree on a mark within seconds, and on their files soon after.
const CHANGES_IN_AN_HOUR: usize = 20;
/// Pauses between those tokens, indexed by the changes beyond `CHANGES_IN_AN_HOUR`.
const ALTERNATING: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
const HOUR: Duration = Duration::from_secs(3600);
/// Consecutive refusals of an older mark's tokens after which the rest are dropped. With one of three servers lost, a third
/// of them are refused.
const REFUSED_IN_A_ROW: u32 = 5;
/// Maximum remembered challenges: far more than have tokens.
const KEPT: usize = 64;

/// The challenges that one gateway has offered. What is not in the file begins anew with each run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// The gateway's names in marked challenges; `None` if it uses no marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<String>,
    /// Challenges for which tokens were signed, oldest first.
    known: Vec<KnownChallenge>,
    /// An offered challenge for which no token was signed yet.
    #[serde(skip)]
    pending: Option<KnownChallenge>,
    #[serde(skip)]
    current: Option<ChallengeDigest>,
    /// Times of changes from one known challenge to another.
    #[serde(skip)]
    changes: Vec<UnixSeconds>,
    /// Time of the last token signed while the challenge changed too often.
    #[serde(skip)]
    signed: Option<UnixSeconds>,
    /// This agent's random addition to [`TRIAL`].
    #[serde(skip)]
    longer: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownChallenge {
    #[serde(rename = "challenge", with = "digest_in_hex")]
    digest: ChallengeDigest,
    #[serde(default, with = "key_in_hex")]
    key: Option<TokenKeyId>,
    /// First (`since`) and last (`seen`) time that it was offered.
    since: UnixSeconds,
    seen: UnixSeconds,
    /// Time at which it was counted as a new one.
    counted: Option<UnixSeconds>,
    #[serde(rename = "given_up")]
    is_given_up: bool,
    #[serde(skip)]
    refused_in_a_row: u32,
    /// `true` if one of its tokens has opened a tunnel.
    #[serde(skip)]
    is_proven: bool,
}

/// The trial of a challenge that has not lasted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The remaining time.
    pub left: Duration,
    /// `true` if one of its tokens was accepted.
    pub is_proven: bool,
}

/// The reason why no token is signed for a challenge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}. Ask the gateway's operator, or use another gateway (gateway.url)")]
pub struct MarksRefused {
    sentence: String,
    /// Time until the same challenge is accepted.
    pub left: Duration,
}

impl Marks {
    /// Prolongs trials by a share of ten minutes (0 to 1) that each agent draws: all agents learn of a loss within seconds, and
    /// would otherwise fill their wallets in the same second.
    #[must_use]
    pub fn with_longer_trials(mut self, share: f64) -> Self {
        self.longer = TRIAL.mul_f64(share.clamp(0.0, 1.0));
        self
    }

    /// Records the gateway's present challenge.
    ///
    /// # Errors
    /// A sentence, if a gateway that uses marks sent more than its names and one mark.
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

    /// Starts to treat the gateway as one with marks. Its last challenge counts as an older mark without a token key.
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
            // Corrects for a clock that was ahead: a pause would last until the clock reaches that time again.
            known.counted = known.counted.map(|counted| counted.min(now));
        }
        self.signed = self.signed.map(|signed| signed.min(now));
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
                pending => *pending = Some(KnownChallenge::new(digest, key, now)),
            },
        }
    }

    /// Checks whether a token may be signed for a challenge under a key.
    ///
    /// # Errors
    /// The challenge comes too soon after others.
    pub fn may_sign(
        &self,
        gateway: &str,
        digest: ChallengeDigest,
        key: Option<TokenKeyId>,
        now: UnixSeconds,
    ) -> Result<(), MarksRefused> {
        self.check_changes(gateway, now)?;
        if !self.is_new(digest) || self.is_first_of(key) {
            return Ok(());
        }
        let ages = self.known.iter().filter_map(|known| Some(known.counted?.until(now)));
        let ages: Vec<_> = ages.filter(|age| *age < HOUR).collect();
        let (count, last) = (ages.len(), ages.into_iter().min().unwrap_or_default());
        let pause = count.checked_sub(WITHOUT_PAUSE).map(|over| PAUSES.pause(over as u32));
        let left = pause.and_then(|pause| pause.checked_sub(last)).filter(|left| !left.is_zero());
        let Some(left) = left else { return Ok(()) };
        let seconds = left.as_secs();
        let sentence = match self.is_used() {
            true => format!(
                "the gateway {gateway} names another mark, after {count} new ones within an hour. Either it tries to tell clients \
                 apart by them, or its store of spent tokens keeps losing records. No token is signed for it for {seconds} s; a mark \
                 that is known already is taken again at once"
            ),
            false => format!(
                "the gateway {gateway} names another challenge, after {count} new ones within an hour. It may be set up anew \
                 again and again, or it tries to tell clients apart by them, or to use up the issuer's quota. No token is signed for \
                 it for {seconds} s; one that is known already is taken again at once"
            ),
        };
        Err(MarksRefused { sentence, left })
    }

    /// Fails during a pause between tokens, for a gateway that changes its mark too often.
    fn check_changes(&self, gateway: &str, now: UnixSeconds) -> Result<(), MarksRefused> {
        let changes = self.changes_in_an_hour(now);
        let over = changes.checked_sub(CHANGES_IN_AN_HOUR + 1).filter(|_| self.is_used());
        let Some((over, signed)) = over.zip(self.signed) else { return Ok(()) };
        let pause = ALTERNATING.pause(over as u32);
        let left = pause.checked_sub(signed.until(now)).filter(|left| !left.is_zero());
        left.map_or(Ok(()), |left| {
            let sentence = format!(
                "the gateway {gateway} changes from one mark to another and back, {changes} times within an hour. Either the \
                 gateways behind that address do not share one store of spent tokens, or it tries to tell clients apart. No \
                 token is signed for {} s, and none ahead of need",
                left.as_secs()
            );
            Err(MarksRefused { sentence, left })
        })
    }

    /// Records that a token is about to be signed under `key`, which the issuer publishes. Returns true if the challenge is new
    /// and must be saved first.
    ///
    /// # Errors
    /// The challenge comes too soon after others.
    pub fn sign(
        &mut self,
        gateway: &str,
        digest: ChallengeDigest,
        key: TokenKeyId,
        now: UnixSeconds,
    ) -> Result<bool, MarksRefused> {
        self.may_sign(gateway, digest, Some(key), now)?;
        self.signed = (self.changes_in_an_hour(now) > CHANGES_IN_AN_HOUR).then_some(now);
        if !self.is_new(digest) {
            return Ok(false);
        }
        // The gateway may already offer another challenge.
        let pending = self.pending.take_if(|pending| pending.digest == digest);
        let mut new = pending.unwrap_or_else(|| KnownChallenge::new(digest, Some(key), now));
        new.counted = (!self.is_first_of(Some(key))).then_some(now);
        new.key = Some(key);
        self.known.push(new);
        if self.known.len() > KEPT {
            self.forget_one();
        }
        Ok(true)
    }

    /// Returns the trial of the challenge `digest`, while it lasts.
    #[must_use]
    pub fn trial(&self, digest: ChallengeDigest, now: UnixSeconds) -> Option<Trial> {
        let offered = self.find(digest)?;
        if self.changes_in_an_hour(now) > CHANGES_IN_AN_HOUR {
            return Some(Trial { left: HOUR, is_proven: true });
        }
        let left = self.trial_lasts().checked_sub(offered.since.until(now)).filter(|left| !left.is_zero())?;
        (self.is_tried(offered) && !self.has_lasted(offered))
            .then_some(Trial { left, is_proven: offered.is_proven })
    }

    /// Returns `true` if the trial time of `digest` is over, and one more fetch must show that the gateway still offers it.
    #[must_use]
    pub fn is_to_be_confirmed(&self, digest: ChallengeDigest, now: UnixSeconds) -> bool {
        self.find(digest).is_some_and(|offered| {
            self.is_tried(offered)
                && !self.has_lasted(offered)
                && offered.since.until(now) >= self.trial_lasts()
        })
    }

    /// Returns the earlier challenges whose tokens are still sent, oldest first; none without marks.
    #[must_use]
    pub fn older(&self) -> Vec<ChallengeDigest> {
        if !self.is_used() {
            return Vec::new();
        }
        let sent = self.known.iter().filter(|known| !known.is_given_up && Some(known.digest) != self.current);
        sent.map(|known| known.digest).collect()
    }

    /// Records an accepted token.
    pub fn accepted(&mut self, digest: ChallengeDigest) {
        if let Some(known) = self.known.iter_mut().find(|known| known.digest == digest) {
            (known.refused_in_a_row, known.is_proven) = (0, true);
        }
    }

    /// Records a refused token. Returns true if the other tokens for `digest` are to be dropped.
    pub fn refused(&mut self, digest: ChallengeDigest) -> bool {
        let is_current = self.current == Some(digest);
        let Some(known) = self.known.iter_mut().find(|known| known.digest == digest && !is_current) else {
            return false;
        };
        known.refused_in_a_row += 1;
        known.is_given_up |= known.refused_in_a_row >= REFUSED_IN_A_ROW;
        known.is_given_up
    }

    /// Forgets the oldest challenge whose token key has others, so that each key keeps one.
    fn forget_one(&mut self) {
        let has_another =
            |known: &&KnownChallenge| self.known.iter().filter(|other| other.key == known.key).count() > 1;
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

    /// Returns `true` if a key has no challenge yet. A new key brings a new mark, and only the issuer makes keys. A challenge
    /// keeps the key of its first signature, so a gateway gains nothing by claiming another one later.
    fn is_first_of(&self, key: Option<TokenKeyId>) -> bool {
        key.is_some() && self.known.iter().all(|known| known.key != key)
    }

    /// Returns `true` if a challenge is subject to a trial. The first one of a token key is not: tokens of the previous key end
    /// with that key.
    fn is_tried(&self, offered: &KnownChallenge) -> bool {
        match self.is_new(offered.digest) {
            true => !self.known.is_empty() && !self.is_first_of(offered.key),
            false => offered.counted.is_some(),
        }
    }

    fn has_lasted(&self, offered: &KnownChallenge) -> bool {
        offered.since.until(offered.seen) >= self.trial_lasts()
    }

    fn trial_lasts(&self) -> Duration {
        TRIAL + self.longer
    }

    fn find(&self, digest: ChallengeDigest) -> Option<&KnownChallenge> {
        self.known.iter().chain(&self.pending).find(|known| known.digest == digest)
    }
}

impl KnownChallenge {
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

    /// Records an offer. Corrects a start recorded by a clock that was ahead, which would prolong the trial.
    fn offered(&mut self, now: UnixSeconds) {
        (self.seen, self.since) = (now, self.since.min(now));
    }
}

#[cfg(test)]
mod tests;
