use super::*;
use std::collections::HashMap;

const DAY: u64 = 86_400;

fn meter(quota: &str) -> Arc<Meter> {
    Arc::new(Meter::new(quota.parse().unwrap()))
}

/// A simulated database: the usage by window and period.
#[derive(Default)]
struct Database(HashMap<(u64, u64), u64>);

impl Database {
    fn used(&mut self, window: Usage) -> &mut u64 {
        self.0.entry((window.window_start.0, window.period_seconds)).or_default()
    }

    fn make(&mut self, Change { window, reserve, give_back, limit }: Change) -> Changed {
        let tokens = self.used(window);
        let reserved = reserve.min(limit.saturating_sub(*tokens));
        *tokens = *tokens + reserved - give_back;
        Changed::Done { tokens: *tokens, reserved }
    }

    /// Reads and writes what a meter needs. Returns the change of the present window.
    fn write(&mut self, meter: &Meter, writing: Writing, now: UnixSeconds) -> Option<Change> {
        meter.unknown().into_iter().for_each(|window| meter.know(window, *self.used(window), now));
        let [ended, present] = meter.to_change(writing);
        for change in ended.into_iter().chain(present) {
            meter.changed(change, self.make(change), now);
        }
        present
    }

    /// Charges one token, and writes as needed.
    fn charge(&mut self, meter: &Arc<Meter>, now: UnixSeconds) -> Result<Charge, Spent> {
        loop {
            match meter.charge(1, now) {
                Ok(charge) => return Ok(charge),
                Err(NoCharge::Spent(spent)) => return Err(spent),
                Err(NoCharge::Unreserved) => {
                    let _waiting = meter.wait(1);
                    self.write(meter, Writing::Reserve, now);
                }
            }
        }
    }
}

fn window() -> Usage {
    Usage { window_start: UnixSeconds(0), period_seconds: DAY, used: 0 }
}

#[test]
fn a_quota_is_a_number_and_a_period() {
    for (text, written) in [("10000/1d", "10000/1d"), ("50 / 60s", "50/1m"), ("0/1h", "0/1h")] {
        assert_eq!(text.parse::<Quota>().unwrap().to_string(), written);
    }
    for text in
        ["", "10", "10/", "/1d", "-1/1d", "1.5/1d", "10/1", "10/0s", "10/500ms", "99999999999999999999/1d"]
    {
        assert!(text.parse::<Quota>().is_err(), "{text:?}");
    }
}

#[test]
fn windows_are_aligned_and_a_spent_one_says_when_the_next_begins() {
    let mut database = Database::default();
    let meter = meter("2/1d");
    let noon = UnixSeconds(10 * DAY + DAY / 2);
    database.charge(&meter, noon).unwrap().keep();
    database.charge(&meter, noon).unwrap().keep();
    assert_eq!(database.charge(&meter, noon).unwrap_err().retry_after, Duration::from_secs(DAY / 2));
    let last = UnixSeconds(11 * DAY - 1);
    assert_eq!(database.charge(&meter, last).unwrap_err().retry_after, Duration::from_secs(1));
    database.charge(&meter, UnixSeconds(11 * DAY)).unwrap().keep();
    assert_eq!(meter.usage().used, 1);
}

#[test]
fn a_dropped_charge_is_taken_back_but_not_from_another_window() {
    let mut database = Database::default();
    let meter = meter("1/1d");
    drop(database.charge(&meter, UnixSeconds(0)).unwrap());
    let old = database.charge(&meter, UnixSeconds(1)).unwrap();
    database.charge(&meter, UnixSeconds(DAY)).unwrap().keep();
    drop(old);
    assert!(database.charge(&meter, UnixSeconds(DAY)).is_err());
}

#[test]
fn a_clock_set_back_a_little_gives_nothing_twice_and_one_set_back_far_starts_again() {
    let mut database = Database::default();
    let meter = meter("1/1h");
    database.charge(&meter, UnixSeconds(7_200)).unwrap().keep();
    assert!(database.charge(&meter, UnixSeconds(7_199)).is_err());
    database.charge(&meter, UnixSeconds(10)).unwrap().keep();
    assert_eq!(meter.usage().window_start, UnixSeconds(0));
}

#[test]
fn another_period_in_the_configuration_starts_a_new_count() {
    let mut database = Database::default();
    let meter = meter("9/1h");
    (0..9).for_each(|_| database.charge(&meter, UnixSeconds(5)).unwrap().keep());
    meter.set_quota("10/1d".parse().unwrap());
    database.charge(&meter, UnixSeconds(5)).unwrap().keep();
    assert_eq!(meter.usage().used, 1);
}

#[test]
fn a_dropped_charge_is_not_taken_back_from_a_window_of_another_length() {
    let mut database = Database::default();
    let meter = meter("2/1h");
    let old = database.charge(&meter, UnixSeconds(5)).unwrap();
    meter.set_quota("1/1d".parse().unwrap());
    database.charge(&meter, UnixSeconds(5)).unwrap().keep();
    drop(old);
    assert!(database.charge(&meter, UnixSeconds(5)).is_err(), "both windows begin at 0");
}

#[test]
fn another_quota_counts_what_was_used_and_what_is_taken_back() {
    let mut database = Database::default();
    let meter = meter("2/1d");
    database.charge(&meter, UnixSeconds(0)).unwrap().keep();
    let open = database.charge(&meter, UnixSeconds(1)).unwrap();
    meter.set_quota("1/1d".parse().unwrap());
    assert!(database.charge(&meter, UnixSeconds(2)).is_err());
    meter.set_quota("3/1d".parse().unwrap());
    drop(open);
    assert_eq!(meter.usage().used, 1);
    database.charge(&meter, UnixSeconds(3)).unwrap().keep();
    database.charge(&meter, UnixSeconds(4)).unwrap().keep();
    assert!(database.charge(&meter, UnixSeconds(5)).is_err());
}

#[test]
fn nothing_is_signed_beyond_what_the_database_counts_as_used() {
    let (meter, mut database, now) = (meter("300/1d"), Database::default(), UnixSeconds(0));
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    assert_eq!(meter.to_change(Writing::Reserve), [None, None], "nothing is reserved of what is not known");
    meter.know(meter.unknown().unwrap(), 0, now);
    let waiting = [meter.wait(1), meter.wait(1)];
    let first = meter.to_change(Writing::Reserve)[1].unwrap();
    assert_eq!(first.reserve, 2 + 6, "for two who wait, and a fiftieth");
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved, "it is not written yet");
    meter.changed(first, database.make(first), now);
    drop(waiting);
    for _ in 0..8 {
        assert!(meter.charge(1, now).map(Charge::keep).is_ok());
    }
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    // A late write does not apply to the next window.
    let late = meter.to_change(Writing::Reserve)[1].unwrap();
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
    meter.changed(late, database.make(late), now);
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
}

#[test]
fn what_a_crash_left_reserved_counts_as_used() {
    let (meter, mut database, now) = (meter("300/1d"), Database::default(), UnixSeconds(0));
    *database.used(window()) = 8;
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    database.write(&meter, Writing::Exact, now);
    assert_eq!((meter.usage().used, meter.is_settled()), (8, true));
    database.charge(&meter, now).unwrap().keep();
    assert_eq!((meter.usage().used, meter.is_settled()), (9, false));
}

#[test]
fn what_is_left_of_a_window_that_has_ended_is_given_back() {
    let (meter, mut database) = (meter("300/1d"), Database::default());
    database.charge(&meter, UnixSeconds(0)).unwrap().keep();
    database.charge(&meter, UnixSeconds(1)).unwrap().keep();
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
    assert!(!meter.is_settled());
    let [ended, None] = meter.to_change(Writing::Reserve) else { panic!("the next window is not known") };
    meter.changed(ended.unwrap(), Changed::Undone, UnixSeconds(DAY));
    assert!(!meter.is_settled(), "it is tried again");
    database.write(&meter, Writing::Reserve, UnixSeconds(DAY));
    assert_eq!(*database.used(window()), 2);
}

#[test]
fn a_reservation_is_renewed_before_it_ends_and_never_exceeds_the_quota() {
    let (meter, mut database, now) = (meter("300/1d"), Database::default(), UnixSeconds(0));
    let mut writes = 0;
    for _ in 0..300 {
        database.charge(&meter, now).unwrap().keep();
        if meter.is_low() {
            writes += 1;
            database.write(&meter, Writing::Reserve, now).unwrap();
            let reserved = *database.used(window());
            assert!(reserved <= 300 && reserved <= meter.usage().used + 9, "{reserved}");
        }
    }
    assert!((50..=100).contains(&writes), "{writes}");
    assert!(database.charge(&meter, now).is_err() && !meter.is_low());
}

#[test]
fn what_is_not_needed_is_given_back_after_a_while_and_at_a_stop() {
    let (meter, mut database, now) = (meter("1000/1d"), Database::default(), UnixSeconds(0));
    database.charge(&meter, now).unwrap().keep();
    assert_eq!(database.write(&meter, Writing::Settle, now), None, "it has just requested a token");
    assert_eq!(database.write(&meter, Writing::Settle, now).unwrap().give_back, 20);
    assert_eq!((*database.used(window()), meter.is_settled()), (1, true));
    assert_eq!(database.write(&meter, Writing::Settle, now), None, "nothing has changed");
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    database.charge(&meter, now).unwrap().keep();
    database.write(&meter, Writing::Exact, now).unwrap();
    assert_eq!(*database.used(window()), 2);
}

#[test]
fn a_change_is_made_again_only_if_it_was_not_made() {
    let (meter, mut database, now) = (meter("1000/1d"), Database::default(), UnixSeconds(0));
    database.charge(&meter, now).unwrap().keep();
    let give_back = meter.to_change(Writing::Exact)[1].unwrap();
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved, "it may be given back by now");
    meter.changed(give_back, Changed::Undone, now);
    meter.charge(1, now).unwrap().keep();
    // The database has done it, and its answer is lost.
    let give_back = meter.to_change(Writing::Exact)[1].unwrap();
    database.make(give_back);
    meter.changed(give_back, Changed::Unsure, now);
    assert_eq!(meter.to_change(Writing::Exact), [None, None]);
    let _waiting = meter.wait(1);
    let reserve = meter.to_change(Writing::Reserve)[1].unwrap();
    database.make(reserve);
    meter.changed(reserve, Changed::Unsure, now);
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved, "these tokens are lost");
    database.charge(&meter, now).unwrap().keep();
    database.write(&meter, Writing::Exact, now);
    assert_eq!(*database.used(window()), 3 + reserve.reserve);
}

/// Two meters of one account take from one quota, in any order, with answers that are lost.
#[test]
fn several_issuers_never_give_more_than_the_quota() {
    for seed in 1..500_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (meters, mut database) = ([meter("60/1d"), meter("60/1d")], Database::default());
        let (mut given, mut is_exact) = (0, true);
        for second in 0..400 {
            let (meter, now) = (&meters[next(2) as usize], UnixSeconds(second));
            let waiting = meter.wait(1 + next(3));
            match meter.charge(1 + next(3), now) {
                Ok(charge) if next(4) > 0 => {
                    given += charge.count();
                    charge.keep();
                }
                _ => {}
            }
            let writing = [Writing::Reserve, Writing::Settle, Writing::Exact][next(3) as usize];
            if next(10) == 0 && meter.unknown().is_none() {
                for change in meter.to_change(writing).into_iter().flatten() {
                    is_exact = false;
                    if next(2) == 0 {
                        database.make(change);
                    }
                    meter.changed(change, Changed::Unsure, now);
                }
            } else {
                database.write(meter, writing, now);
            }
            drop(waiting);
            assert!(given <= *database.used(window()) && *database.used(window()) <= 60, "seed {seed}");
        }
        for meter in &meters {
            database.write(meter, Writing::Exact, UnixSeconds(400));
        }
        if is_exact {
            assert_eq!(*database.used(window()), given, "seed {seed}");
        }
    }
}

#[test]
fn a_spent_quota_is_looked_at_again_since_others_give_back() {
    let (one, other, mut database) = (meter("4/1d"), meter("4/1d"), Database::default());
    database.charge(&other, UnixSeconds(0)).unwrap().keep();
    assert!(database.charge(&one, UnixSeconds(0)).is_err(), "the other issuer has reserved all of it");
    database.write(&other, Writing::Exact, UnixSeconds(0));
    assert!(database.charge(&one, UnixSeconds(0)).is_err(), "it was looked at in this second");
    database.charge(&one, UnixSeconds(1)).unwrap().keep();
}

#[test]
fn a_batch_gets_what_the_quota_has_left_and_one_reservation_serves_all_of_it() {
    let (meter, mut database) = (meter("250/1d"), Database::default());
    let noon = UnixSeconds(10 * DAY + DAY / 2);
    let mut batch = |most| loop {
        match meter.charge(most, noon) {
            Err(NoCharge::Unreserved) => {
                let _waiting = meter.wait(most);
                database.write(&meter, Writing::Reserve, noon);
                assert!(meter.charge(most, noon).is_ok(), "one write is enough"); // and the charge is dropped
            }
            charged => return charged,
        }
    };
    let mut first = batch(100).unwrap();
    assert_eq!((first.count(), meter.usage().used), (100, 100));
    let ones: Vec<Charge> = std::iter::from_fn(|| first.split_one()).take(30).collect();
    assert_eq!((first.count(), ones.len()), (70, 30));
    first.keep();
    assert_eq!(meter.usage().used, 100);
    drop(ones);
    assert_eq!(meter.usage().used, 70, "what was not signed is not used");
    batch(100).unwrap().keep();
    let last = batch(100).unwrap();
    assert_eq!(last.count(), 80);
    last.keep();
    assert!(matches!(batch(100), Err(NoCharge::Spent(_))));
}
