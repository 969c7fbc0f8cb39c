//! Counting, reserving and recording of an account's quota. Nothing here reads a clock.

use super::Quota;
use crate::share::{Share, SharesInForce};
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;

/// Usage of one account in one window, as in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// First second of the window.
    pub(crate) window_start: UnixSeconds,
    /// Length of the window in seconds.
    pub(crate) period_seconds: u64,
    /// Tokens counted in the window.
    pub(crate) used: u64,
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

/// Bounds on the reservation ahead of need, which is 1/50 of this issuer's part of the quota. A crash costs an account up to that
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
    shares: SharesInForce,
    usage: Usage,
    /// `true` once the window's usage has been read from the database. Nothing is counted before.
    is_known: bool,
    /// Tokens of the window that the database counts as used, at least. No token beyond this number is signed.
    reserved: u64,
    /// Figure in the database; `None` while a write is in progress, or after a failed one.
    recorded: Option<u64>,
    /// Exact figure of the previous window, if the database may still have its reservation.
    ended: Option<Usage>,
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
    /// `true` if this issuer's share of the quota is no token in this window.
    pub(crate) is_without_share: bool,
}

/// The reason no token can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCharge {
    Spent(Spent),
    /// The database must be read or written first.
    Unreserved,
}

impl Meter {
    pub(crate) fn new(quota: Quota, shares: SharesInForce) -> Self {
        let metered = Metered {
            quota,
            shares,
            usage: Usage::default(),
            is_known: false,
            reserved: 0,
            recorded: None,
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

    /// Counts up to `most` tokens before they are signed, as many as this issuer's share of the quota has left. Dropping the
    /// charge takes them back.
    pub(crate) fn charge(self: &Arc<Self>, most: u64, now: UnixSeconds) -> Result<Charge, NoCharge> {
        let metered = &mut *self.metered.lock();
        if metered.usage.has_ended(metered.quota, now) {
            metered.begin_window(now);
        }
        let limit = metered.limit();
        let Metered { quota, usage, is_known, reserved, is_active, .. } = metered;
        if usage.used >= limit {
            let next = UnixSeconds(quota.window(now).0.saturating_add(quota.seconds()));
            let is_without_share = limit == 0 && quota.tokens() > 0;
            return Err(NoCharge::Spent(Spent { retry_after: now.until(next), is_without_share }));
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

    /// Returns the window, with no usage, that must be read from the database; [`Meter::know`] must follow.
    pub(crate) fn unknown(&self) -> Option<Usage> {
        let metered = self.metered.lock();
        (!metered.is_known && metered.usage.period_seconds > 0).then_some(metered.usage)
    }

    /// Accepts the usage of a window as read from the database. Tokens that a crash left reserved count as used.
    pub(crate) fn know(&self, usage: Usage) {
        let metered = &mut *self.metered.lock();
        if !metered.is_known && metered.usage.is_of_window(&usage) {
            metered.usage.used = usage.used;
            (metered.is_known, metered.reserved, metered.recorded) = (true, usage.used, Some(usage.used));
        }
    }

    /// Returns the figures of the previous and the present window that the database lacks. [`Meter::written`] must follow for
    /// each, once it is written.
    pub(crate) fn to_write(&self, writing: Writing) -> [Option<Usage>; 2] {
        let metered = &mut *self.metered.lock();
        [metered.ended, metered.present_to_write(writing)]
    }

    /// Records that the database has this figure, also after a power loss.
    pub(crate) fn written(&self, usage: Usage) {
        let metered = &mut *self.metered.lock();
        if metered.ended == Some(usage) {
            metered.ended = None;
        } else if metered.usage.is_of_window(&usage) {
            metered.reserved = metered.reserved.max(usage.used);
            metered.recorded = Some(usage.used);
        }
    }

    /// Returns `true` if the database has the exact figures, so that the meter need not stay in memory.
    pub(crate) fn is_settled(&self) -> bool {
        let Metered { usage, is_known, reserved, recorded, ended, waiting, .. } = &*self.metered.lock();
        let is_exact = !is_known || (usage.used == *reserved && *recorded == Some(usage.used));
        is_exact && ended.is_none() && *waiting == 0
    }

    /// Returns the usage in the present window, and this issuer's part of the quota in it.
    pub(crate) fn standing(&self, now: UnixSeconds) -> (u64, Quota) {
        let metered = &*self.metered.lock();
        let Metered { quota, usage, .. } = metered;
        let (used, start) = match usage.has_ended(*quota, now) {
            true => (0, quota.window(now)),
            false => (usage.used, usage.window_start),
        };
        (used, quota.shared(metered.share_of(start)))
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
        if self.is_known && self.recorded != Some(self.usage.used) {
            self.ended = Some(self.usage);
        }
        self.usage =
            Usage { window_start: self.quota.window(now), period_seconds: self.quota.seconds(), used: 0 };
        (self.is_known, self.reserved, self.recorded) = (false, 0, None);
    }

    fn present_to_write(&mut self, writing: Writing) -> Option<Usage> {
        if !self.is_known {
            return None;
        }
        let is_needed = self.waiting > 0 || self.is_active;
        if writing == Writing::Settle {
            self.is_active = false;
        }
        let used = match writing {
            // The larger figure counts only once the database has it.
            Writing::Reserve | Writing::Settle if is_needed && self.is_low() => self.more(),
            // The smaller figure counts at once, even if the write fails.
            Writing::Exact => self.settle(),
            Writing::Settle if !is_needed => self.settle(),
            Writing::Reserve | Writing::Settle => self.reserved,
        };
        if self.recorded == Some(used) {
            return None;
        }
        self.recorded = None; // after a failure, either figure may be in the database
        Some(Usage { used, ..self.usage })
    }

    fn settle(&mut self) -> u64 {
        self.reserved = self.usage.used;
        self.reserved
    }

    /// Returns this issuer's part of the quota in the present window.
    fn limit(&self) -> u64 {
        self.share_of(self.usage.window_start).of(self.quota.tokens())
    }

    fn share_of(&self, window: UnixSeconds) -> Share {
        self.shares.load().of_period(window)
    }

    fn ahead(&self) -> u64 {
        (self.limit() / 50).clamp(LEAST_RESERVED, MOST_RESERVED)
    }

    fn is_low(&self) -> bool {
        let left = self.reserved.saturating_sub(self.usage.used);
        self.is_known && self.reserved < self.limit() && (self.waiting > left || left <= self.ahead() / 2)
    }

    /// Returns a reservation for the waiting requests, and some tokens ahead.
    fn more(&self) -> u64 {
        let wanted = self.usage.used.saturating_add(self.waiting).saturating_add(self.ahead());
        wanted.min(self.limit()).max(self.reserved)
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
