//! A month in minutes: keys that live for seconds, and everything that happens to an installation in a month:
//! rotations, restarts and kills of each daemon, outages of the store and of the issuer, a store that forgets all records,
//! full disks, reloads with good and with bad files, a forced rotation. Tokens are bound to the memory that records them,
//! and agents follow its marks. Users, who ask for UDP in every fourth request, see only the refusals that had to be; readiness agrees with what they
//! get; and every token is accounted for: issued = spent + held + lost.
//!
//! One number, which is printed, decides the events and their order. The default is fixed.
//!
//! POSTERN_MONTH_SEED      another number, for another month
//! POSTERN_MONTH_SECONDS   length of the run (102); every kind of event comes once in about 100 s
//!
//! Full disks are small file systems that the test mounts, so they need root; otherwise they are left out with a
//! message.

mod events;
mod life;
mod schedule;
mod tokens;
mod watch;

use life::Month;
use schedule::Schedule;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_month_in_minutes_refuses_only_what_it_must_and_loses_no_token_unaccounted() {
    let schedule = Schedule::of_the_environment();
    println!("{schedule}");
    let mut month = Month::begun(&schedule).await;
    for event in &schedule.events {
        month.live_through(event).await;
    }
    month.end().await;
}
