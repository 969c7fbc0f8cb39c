//! Counting, reserving and recording of an account's quota. Nothing here reads a clock.

use super::Quota;
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;

/// Usage of one account in one window, at all issuers that share the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// First second of the window.
    pub(crate) window_start: UnixSeconds,
    /// Length of the window in seconds.
    pub(crate) period_seconds: u64,
    /// Tokens counted in the window here, and all that other issuers have reserved.
    pub(crate) used: u64,
}

/// A change of the usage in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) window: Usage,
    /// Tokens to reserve for this issuer, as far as the limit allows.
    pub(crate) reserve: u64,
    /// Tokens that were reserved for this issuer and are not needed.
    pub(crate) give_back: u64,
    pub(crate) limit: u64,
}

/// The result of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The usage in the database, and how many tokens were reserved.
    Done { tokens: u64, reserved: u64 },
    /// The database is as before.
    Undone,
    /// The database has the change, or not: it is never made again, so that the quota has lost these tokens at worst.
    Unsure,
}

impl Usage {
    /// Returns `true` if the window has ended, or is not one of the quota's. A clock that is set back by less than a window
    /// stays in its window, so that setting it forward and back does not grant a quota twice.
    fn has_ended(self, quota: Quota, now: UnixSeconds) -> bool {
        let (window, length) = (quota.window(now), quota.seconds());
        let set_back = window.0.saturating_add(length) < self.window_start.0;
        self.period_seconds != length || self.window_start < window || set_back
    }

    fn is_of_window(&self, other: &Self) -> bool {
        (self.window_start, self.period_seconds) == (other.window_start, other.period_seconds)
    }
}

/// Bounds on the reservation ahead of need, which is 1/50 of the quota. A crash costs an account up to that
/// much, since reserved tokens then count as used; the database is written once per reservation.
const LEAST_RESERVED: u64 = 4;
const MOST_RESERVED: u64 = 512;

/// One account's quota, its usage, and the part that the database already counts as used.
#[derive(Debug)]
pub(crate) struct Meter {
    metered: Mutex<Metered>,
}

#[derive(Debug)]
struct Metered {
    quota: Quota,
    usage: Usage,
    /// `true` once the window's usage has been read from the database. Nothing is counted before.
    is_known: bool,
    /// Time of the latest figure from the database: of a spent quota, other issuers may have given some back since.
    known_at: UnixSeconds,
    /// Tokens of the window that the database counted as used, those reserved here included. No token beyond is signed.
    reserved: u64,
    /// What was left of the reservation in the previous window.
    ended: Option<Change>,
    /// Tokens of requests that wait for the database.
    waiting: u64,
    /// `true` if a token was counted since the last look at the reservation.
    is_active: bool,
}

/// The figures to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// Larger reservations, where tokens are needed now or soon.
    Reserve,
    /// The same, and exact figures of accounts without a request since the last time.
    Settle,
    /// Exact figures: the issuer stops, or an operator looks at them.
    Exact,
}

/// The present window's quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Time until the next window: at least one second.
    pub(crate) retry_after: Duration,
}

/// The reason no token can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCharge {
    Spent(Spent),
    /// The database must be read or written first.
    Unreserved,
}

impl Meter {
    pub(crate) fn new(quota: Quota) -> Self {
        let metered = Metered {
            quota,
            usage: Usage::default(),
            is_known: false,
            known_at: UnixSeconds(0),
            reserved: 0,
            ended: None,
            waiting: 0,
            is_active: false,
        };
        Self { metered: Mutex::new(metered) }
    }

    /// Replaces the quota. Usage counts against the new quota, unless the periods differ.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.metered.lock().quota = quota;
    }

    /// Counts up to `most` tokens before they are signed, as many as the quota has left. Dropping the charge takes them
    /// back.
    pub(crate) fn charge(self: &Arc<Self>, most: u64, now: UnixSeconds) -> Result<Charge, NoCharge> {
        let metered = &mut *self.metered.lock();
        if metered.usage.has_ended(metered.quota, now) {
            metered.begin_window(now);
        }
        let Metered { quota, usage, is_known, known_at, reserved, is_active, .. } = metered;
        let limit = quota.tokens();
        if usage.used >= limit {
            if *known_at < now && usage.used == *reserved && limit > 0 {
                *is_known = false;
                return Err(NoCharge::Unreserved);
            }
            let next = UnixSeconds(quota.window(now).0.saturating_add(quota.seconds()));
            return Err(NoCharge::Spent(Spent { retry_after: now.until(next) }));
        }
        let used = usage.used + most.min(limit - usage.used);
        if !*is_known || used > *reserved {
            return Err(NoCharge::Unreserved);
        }
        let count = used - usage.used;
        usage.used = used;
        *is_active = true;
        Ok(Charge { meter: Some((self.clone(), *usage)), count })
    }

    /// Registers a request that waits for a reservation of this many tokens, until the value is dropped.
    pub(crate) fn wait(&self, tokens: u64) -> Waiting<'_> {
        self.metered.lock().waiting += tokens;
        Waiting { meter: self, tokens }
    }

    /// Returns `true` if it is time to reserve more, so that the next requests need not wait.
    pub(crate) fn is_low(&self) -> bool {
        self.metered.lock().is_low()
    }

    /// Returns the window whose usage must be read from the database; [`Meter::know`] must follow.
    pub(crate) fn unknown(&self) -> Option<Usage> {
        let metered = self.metered.lock();
        (!metered.is_known && metered.usage.period_seconds > 0).then_some(metered.usage)
    }

    /// Accepts the usage of a window as read from the database. Tokens that a crash left reserved count as used.
    pub(crate) fn know(&self, window: Usage, used: u64, now: UnixSeconds) {
        let metered = &mut *self.metered.lock();
        if !metered.is_known && metered.usage.is_of_window(&window) {
            metered.usage.used = used;
            (metered.is_known, metered.reserved, metered.known_at) = (true, used, now);
        }
    }

    /// Returns the changes of the previous and the present window. [`Meter::changed`] must follow for each.
    pub(crate) fn to_change(&self, writing: Writing) -> [Option<Change>; 2] {
        let metered = &mut *self.metered.lock();
        [metered.ended.take(), metered.present_to_change(writing)]
    }

    /// Accepts the result of a change, as of `now`.
    pub(crate) fn changed(&self, change: Change, changed: Changed, now: UnixSeconds) {
        let metered = &mut *self.metered.lock();
        let is_present = metered.is_known && metered.usage.is_of_window(&change.window);
        match changed {
            Changed::Undone if is_present => metered.reserved += change.give_back,
            Changed::Undone if change.give_back > 0 && metered.ended.is_none() => {
                metered.ended = Some(change)
            }
            Changed::Undone | Changed::Unsure => {}
            Changed::Done { tokens, reserved } if is_present => {
                // The rest of the difference is of other issuers.
                let left = metered.reserved.saturating_sub(metered.usage.used) + reserved;
                metered.usage.used = tokens.saturating_sub(left);
                (metered.reserved, metered.known_at) = (tokens, now);
            }
            Changed::Done { .. } => {}
        }
    }

    /// Returns `true` if the database has nothing reserved for this meter, so that it need not stay in memory.
    pub(crate) fn is_settled(&self) -> bool {
        let Metered { usage, is_known, reserved, ended, waiting, .. } = &*self.metered.lock();
        (!is_known || usage.used == *reserved) && ended.is_none() && *waiting == 0
    }

    /// Returns the usage in the present window, and the quota.
    pub(crate) fn standing(&self, now: UnixSeconds) -> (u64, Quota) {
        let Metered { quota, usage, .. } = &*self.metered.lock();
        (if usage.has_ended(*quota, now) { 0 } else { usage.used }, *quota)
    }

    fn take_back(&self, window: &Usage, count: u64) {
        let usage = &mut self.metered.lock().usage;
        if usage.is_of_window(window) {
            usage.used = usage.used.saturating_sub(count);
        }
    }

    #[cfg(test)]
    pub(crate) fn usage(&self) -> Usage {
        self.metered.lock().usage
    }
}

impl Metered {
    fn begin_window(&mut self, now: UnixSeconds) {
        if self.is_known && self.left() > 0 {
            self.ended = Some(self.change(0, self.left()));
        }
        self.usage =
            Usage { window_start: self.quota.window(now), period_seconds: self.quota.seconds(), used: 0 };
        (self.is_known, self.reserved) = (false, 0);
    }

    fn present_to_change(&mut self, writing: Writing) -> Option<Change> {
        if !self.is_known {
            return None;
        }
        let is_needed = self.waiting > 0 || self.is_active;
        if writing == Writing::Settle {
            self.is_active = false;
        }
        match writing {
            // The reservation counts only once the database has it.
            Writing::Reserve | Writing::Settle if is_needed && self.is_low() => {
                let wanted = self.waiting.saturating_add(self.ahead()).saturating_sub(self.left());
                Some(self.change(wanted, 0)).filter(|change| change.reserve > 0)
            }
            Writing::Reserve => None,
            Writing::Settle if is_needed => None,
            // What is given back is not used from now on.
            Writing::Settle | Writing::Exact => {
                let left = self.left();
                self.reserved -= left;
                (left > 0).then(|| self.change(0, left))
            }
        }
    }

    fn change(&self, reserve: u64, give_back: u64) -> Change {
        Change { window: self.usage, reserve, give_back, limit: self.quota.tokens() }
    }

    /// Returns the number of tokens that are reserved and not used.
    fn left(&self) -> u64 {
        self.reserved.saturating_sub(self.usage.used)
    }

    fn ahead(&self) -> u64 {
        (self.quota.tokens() / 50).clamp(LEAST_RESERVED, MOST_RESERVED)
    }

    fn is_low(&self) -> bool {
        let has_more = self.is_known && self.reserved < self.quota.tokens();
        has_more && (self.waiting > self.left() || self.left() <= self.ahead() / 2)
    }
}

/// A waiting request, counted until the value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    meter: &'a Meter,
    tokens: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.meter.metered.lock().waiting -= self.tokens;
    }
}

/// Tokens that are counted but not yet signed.
#[derive(Debug)]
#[must_use = "a charge that is dropped is taken back"]
pub(crate) struct Charge {
    meter: Option<(Arc<Meter>, Usage)>,
    count: u64,
}

impl Charge {
    /// Creates a charge for an open issuer, where nothing is counted.
    pub(crate) const fn free(count: u64) -> Self {
        Self { meter: None, count }
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Splits off one token; `None` if none is left.
    pub(crate) fn split_one(&mut self) -> Option<Self> {
        self.count = self.count.checked_sub(1)?;
        Some(Self { meter: self.meter.clone(), count: 1 })
    }

    /// Makes the charge final: its tokens are signed.
    pub(crate) fn keep(mut self) {
        self.meter = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((meter, window)) = self.meter.take() {
            meter.take_back(&window, self.count);
        }
    }
}

#[cfg(test)]
mod tests;
