//! The life of a request, on one screen:
//!
//! ```text
//! parse -> check -> verify -> spend -> dial -> (tunnel)
//! ```
//!
//! Each stage hands the next one a value that only it can make: [`Presented`], [`Verified`], [`Spent`], [`Dialled`]. A
//! stage that refuses ends the request; `deny` has the answer.

use crate::check;
use crate::deny::Refusal;
use crate::dial::Dialled;
use crate::gateway::Core;
use crate::parse::Presented;
use crate::recorder::CheckTimes;
use crate::resolve::Resolver;
use crate::spend::Spent;
use crate::verify::Verified;
use http::request;
use postern_service::names::CheckResult;
use postern_token::UnixSeconds;
use std::time::Instant;

/// From a request's head to a connection to its target.
pub(crate) async fn run(core: &Core, resolver: &Resolver, head: &request::Parts) -> Result<Dialled, Refusal> {
    let now = UnixSeconds::now();
    let presented = Presented::parse(head, &core.policy, &core.offer, &core.keyring.load(), now)?;
    let spent = admit(core, presented, now).await?;
    Dialled::dial(spent, &core.policy, resolver, core.limits.dial_timeout.get()).await
}

/// The double-spend check, every time measured.
async fn admit(core: &Core, presented: Presented, now: UnixSeconds) -> Result<Spent, Refusal> {
    let started = Instant::now();
    let mut times = CheckTimes::default();
    let result = staged(core, presented, now, &mut times).await;
    core.recorder.checked(
        started,
        times,
        result.as_ref().map_or_else(Refusal::check_result, |_| CheckResult::Admitted),
    );
    result
}

async fn staged(
    core: &Core,
    presented: Presented,
    now: UnixSeconds,
    times: &mut CheckTimes,
) -> Result<Spent, Refusal> {
    let mut lap = Lap::start();
    let replay = check::replay(&core.store, &presented).await;
    times.get = Some(lap.next());
    replay?;
    let verified = Verified::verify(presented);
    times.verify = Some(lap.next());
    let spent = Spent::spend(verified?, &core.store, now).await;
    times.add = Some(lap.next());
    spent
}

/// A stopwatch: one reading of the clock a stage.
struct Lap(Instant);

impl Lap {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn next(&mut self) -> std::time::Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}

impl Refusal {
    /// How a check that ended with this refusal is recorded.
    fn check_result(&self) -> CheckResult {
        match self {
            Self::AlreadySpent => CheckResult::Spent,
            Self::StoreUnknown(_) => CheckResult::Unknown,
            _ => CheckResult::Invalid,
        }
    }
}
