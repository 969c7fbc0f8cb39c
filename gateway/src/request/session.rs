//! The life of a request, on one screen:
//!
//! ```text
//! parse -> check -> verify -> spend -> dial -> (tunnel)
//! ```
//!
//! Each stage hands the next one a value that only it can make: [`Presented`], [`Verified`], [`Spent`], [`Dialled`]. A
//! stage that refuses ends the request; `deny` has the answer.

use crate::config::Limits;
use crate::observe::recorder::Checking;
use crate::observe::timeline::{Stage, Timeline};
use crate::request::check::Check;
use crate::request::deny::Refusal;
use crate::request::dial::Dialled;
use crate::request::parse::Presented;
use crate::request::spend::Spent;
use crate::request::verify::Verified;
use crate::state::Worker;
use http::request;
use postern_spend::ExchangeLog;
use postern_token::{KeyRefusal, UnixSeconds};

/// From a request's head to a connection to its target, within the `limits` of its connection.
pub(crate) async fn run(
    worker: &Worker,
    head: &request::Parts,
    limits: &Limits,
    timeline: &mut Timeline,
) -> Result<Dialled, Refusal> {
    let (core, now) = (&worker.core, UnixSeconds::now());
    let policy = core.settings.policy.load_full();
    let presented = timeline.time(Stage::Parse, || {
        Presented::parse(head, &policy, &core.offer, &core.keyring.load(), || worker.serving(), now)
    });
    if let Err(Refusal::Key(KeyRefusal::Unknown)) = &presented {
        core.unknown_key.notify_one(); // the issuer may have published it just now
    }
    let presented = presented?;
    let spent = double_spend_check(worker, presented, now, timeline).await?;
    let dialling = Dialled::dial(spent, &policy, &worker.resolver, limits.dial_timeout.get());
    timeline.wait(Stage::Dial, dialling).await
}

/// The double-spend check, recorded however it ends.
async fn double_spend_check(
    worker: &Worker,
    presented: Presented,
    now: UnixSeconds,
    timeline: &mut Timeline,
) -> Result<Spent, Refusal> {
    let mut checking = Checking::begin(&worker.core.recorder, timeline);
    let result = check_verify_spend(worker, presented, now, checking.timeline()).await;
    checking.end(result.as_ref().err());
    result
}

async fn check_verify_spend(
    worker: &Worker,
    presented: Presented,
    now: UnixSeconds,
    timeline: &mut Timeline,
) -> Result<Spent, Refusal> {
    let check = Check::new(&worker.store, &presented);
    let (checked, verified) = check.run_with(worker.core.check_timing, || Verified::verify(presented)).await;
    if let Some(verified) = &verified {
        timeline.set(Stage::Verify, verified.times);
    }
    if let Some(checked) = checked {
        timeline.set(Stage::Check, checked.times);
        timeline.check_log = checked.log;
        checked.result?;
    }
    let verified = verified.ok_or(Refusal::AlreadySpent)?.value?;
    let mut log = ExchangeLog::default();
    let spent = timeline.wait(Stage::Spend, Spent::spend(verified, &worker.store, now, &mut log)).await;
    timeline.spend_log = log;
    spent
}
