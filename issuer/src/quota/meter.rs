//! What is counted of an account's quota, reserved and written. Nothing here reads a clock.

use super::Quota;
use crate::share::{Share, SharesInForce};
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;

/// What an account has used in one window, as the database has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The first second of the window that `used` counts in.
    pub(crate) window_start: UnixSeconds,
    /// The length of that window.
    pub(crate) period_seconds: u64,
    /// Tokens issued in it.
    pub(crate) used: u64,
}

impl Usage {
    /// Whether its window has ended, or is none of the quota's. A clock that was set back by less than a window stays in the window
    /// it was in, so that setting it forward and back does not give a quota twice.
    fn has_ended(self, quota: Quota, now: UnixSeconds) -> bool {
        let (window, length) = (quota.window(now), quota.seconds());
        let set_back = window.0.saturating_add(length) < self.window_start.0;
        self.period_seconds != length || self.window_start < window || set_back
    }

    fn is_of_window(&self, other: &Self) -> bool {
        (self.window_start, self.period_seconds) == (other.window_start, other.period_seconds)
    }
}

/// What is reserved ahead of need: a fiftieth of the quota, within these bounds. A crash costs an account that much, since
/// what was reserved then counts as used; the database is written once for each reservation.
const LEAST_RESERVED: u64 = 4;
const MOST_RESERVED: u64 = 512;

/// One account's quota, what is used of it, and how much of it the database counts as used already.
#[derive(Debug)]
pub(crate) struct Meter {
    metered: Mutex<Metered>,
}

#[derive(Debug)]
struct Metered {
    quota: Quota,
    /// Which part of it this issuer gives.
    shares: SharesInForce,
    usage: Usage,
    /// The database was asked what has been used of the window of `usage`. Before, nothing is counted.
    is_known: bool,
    /// The database counts this many tokens of that window as used, or more. No token beyond is signed.
    reserved: u64,
    /// What the database counts, unless a write of it is under way or has failed.
    recorded: Option<u64>,
    /// The exact figure of the window before, where the database may still have its reservation.
    ended: Option<Usage>,
    /// Tokens of requests that wait for the database.
    waiting: u64,
    /// A token was counted since the reservation was looked at last.
    is_active: bool,
}

/// What the database is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// More, where tokens are needed or soon will be.
    Reserve,
    /// The same, and the exact figure of accounts that have requested nothing since the last time.
    Settle,
    /// The exact figures: the issuer stops.
    Exact,
}

/// The quota of the present window is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    /// How long until the next window begins: one second at least.
    pub(crate) retry_after: Duration,
}

/// Why no token can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCharge {
    /// The quota is used up.
    Spent(Spent),
    /// The database has to be read or written first.
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

    /// Another quota from now on. What was used counts against it, unless its period is another one.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.metered.lock().quota = quota;
    }

    /// Counts up to `most` tokens, as many as this issuer's share of the quota has left, before they are signed. Dropping the charge takes them back.
    pub(crate) fn charge(self: &Arc<Self>, most: u64, now: UnixSeconds) -> Result<Charge, NoCharge> {
        let metered = &mut *self.metered.lock();
        if metered.usage.has_ended(metered.quota, now) {
            metered.begin_window(now);
        }
        let limit = metered.limit();
        let Metered { quota, usage, is_known, reserved, is_active, .. } = metered;
        if usage.used >= limit {
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
        Ok(Charge::of(self, usage.window_start, count))
    }

    /// A request waits for a reservation of this many tokens until the value is dropped.
    pub(crate) fn wait(&self, tokens: u64) -> Waiting<'_> {
        Waiting::begin(self, tokens)
    }

    /// Whether it is time to reserve more, so that the next requests need not wait for it.
    pub(crate) fn is_low(&self) -> bool {
        self.metered.lock().is_low()
    }

    /// The window whose count the database has to be asked for, with nothing used. [`Meter::know`] follows.
    pub(crate) fn unknown(&self) -> Option<Usage> {
        let metered = self.metered.lock();
        (!metered.is_known && metered.usage.period_seconds > 0).then_some(metered.usage)
    }

    /// So much was used of this window before it came into memory. What a crash left reserved counts as used.
    pub(crate) fn know(&self, usage: Usage) {
        let metered = &mut *self.metered.lock();
        if !metered.is_known && metered.usage.is_of_window(&usage) {
            metered.usage.used = usage.used;
            (metered.is_known, metered.reserved, metered.recorded) = (true, usage.used, Some(usage.used));
        }
    }

    /// What the database is to say next, where it says something else: the window before, and the present one.
    /// [`Meter::written`] follows for each once it does.
    pub(crate) fn to_write(&self, writing: Writing) -> [Option<Usage>; 2] {
        let metered = &mut *self.metered.lock();
        [metered.ended, metered.present_to_write(writing)]
    }

    /// The database says this, and does so after a power loss.
    pub(crate) fn written(&self, usage: Usage) {
        let metered = &mut *self.metered.lock();
        if metered.ended == Some(usage) {
            metered.ended = None;
        } else if metered.usage.is_of_window(&usage) {
            metered.reserved = metered.reserved.max(usage.used);
            metered.recorded = Some(usage.used);
        }
    }

    /// Whether the database has all of it, so that it need not stay in memory.
    pub(crate) fn is_settled(&self) -> bool {
        let Metered { usage, is_known, reserved, recorded, ended, waiting, .. } = &*self.metered.lock();
        let is_exact = !is_known || (usage.used == *reserved && *recorded == Some(usage.used));
        is_exact && ended.is_none() && *waiting == 0
    }

    /// What is used of the present window's quota, and what this issuer gives of the quota in it.
    pub(crate) fn standing(&self, now: UnixSeconds) -> (u64, Quota) {
        let metered = &*self.metered.lock();
        let Metered { quota, usage, .. } = metered;
        let (used, start) = match usage.has_ended(*quota, now) {
            true => (0, quota.window(now)),
            false => (usage.used, usage.window_start),
        };
        (used, quota.shared(metered.share_of(start)))
    }

    fn take_back(&self, window: UnixSeconds, count: u64) {
        let usage = &mut self.metered.lock().usage;
        if usage.window_start == window {
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
            // More only once the database says so.
            Writing::Reserve | Writing::Settle if is_needed && self.is_low() => self.more(),
            // Less from now on, whether or not the database can be written.
            Writing::Exact => self.settle(),
            Writing::Settle if !is_needed => self.settle(),
            Writing::Reserve | Writing::Settle => self.reserved,
        };
        if self.recorded == Some(used) {
            return None;
        }
        self.recorded = None; // after a failure either figure may be in place
        Some(Usage { used, ..self.usage })
    }

    fn settle(&mut self) -> u64 {
        self.reserved = self.usage.used;
        self.reserved
    }

    /// What this issuer gives in the present window.
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

    /// A reservation for those who wait, and some tokens ahead.
    fn more(&self) -> u64 {
        let wanted = self.usage.used.saturating_add(self.waiting).saturating_add(self.ahead());
        wanted.min(self.limit()).max(self.reserved)
    }
}

/// A request that waits, counted until the value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    meter: &'a Meter,
    tokens: u64,
}

impl<'a> Waiting<'a> {
    fn begin(meter: &'a Meter, tokens: u64) -> Self {
        meter.metered.lock().waiting += tokens;
        Self { meter, tokens }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.meter.metered.lock().waiting -= self.tokens;
    }
}

/// Tokens, counted but not yet signed.
#[derive(Debug)]
#[must_use = "a charge that is dropped is taken back"]
pub(crate) struct Charge {
    meter: Option<(Arc<Meter>, UnixSeconds)>,
    count: u64,
}

impl Charge {
    fn of(meter: &Arc<Meter>, window: UnixSeconds, count: u64) -> Self {
        Self { meter: Some((meter.clone(), window)), count }
    }

    /// For an issuer that is open: nothing is counted.
    pub(crate) const fn free(count: u64) -> Self {
        Self { meter: None, count }
    }

    /// How many tokens it is for.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// One of its tokens, as a charge of its own; nothing when none is left.
    pub(crate) fn split_one(&mut self) -> Option<Self> {
        self.count = self.count.checked_sub(1)?;
        Some(Self { meter: self.meter.clone(), count: 1 })
    }

    /// The tokens are signed: the charge stands.
    pub(crate) fn keep(mut self) {
        self.meter = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((meter, window)) = self.meter.take() {
            meter.take_back(window, self.count);
        }
    }
}

#[cfg(test)]
mod tests;
