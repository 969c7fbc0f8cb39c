//! What is counted of a quota before it is certain: it is taken back when the value is dropped.

use super::Meter;
use postern_token::UnixSeconds;
use std::sync::Arc;

/// A request that waits, counted until the value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    meter: &'a Meter,
    tokens: u64,
}

impl<'a> Waiting<'a> {
    pub(super) fn begin(meter: &'a Meter, tokens: u64) -> Self {
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
    pub(super) fn of(meter: &Arc<Meter>, window: UnixSeconds, count: u64) -> Self {
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
