use super::*;
use crate::share::Shares;
use arc_swap::ArcSwap;

const DAY: u64 = 86_400;

fn meter(quota: &str) -> Arc<Meter> {
    Arc::new(Meter::new(quota.parse().unwrap(), SharesInForce::default()))
}

/// Reads and writes a simulated database, in which new windows have no usage.
fn write(meter: &Meter, writing: Writing) -> Option<Usage> {
    meter.unknown().into_iter().for_each(|nothing| meter.know(nothing));
    let [ended, present] = meter.to_write(writing);
    ended.into_iter().chain(present).for_each(|usage| meter.written(usage));
    present
}

/// Charges one token, with a simulated database that is written as needed.
fn charge(meter: &Arc<Meter>, now: UnixSeconds) -> Result<Charge, Spent> {
    loop {
        match meter.charge(1, now) {
            Ok(charge) => return Ok(charge),
            Err(NoCharge::Spent(spent)) => return Err(spent),
            Err(NoCharge::Unreserved) => {
                let _waiting = meter.wait(1);
                write(meter, Writing::Reserve);
            }
        }
    }
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
    let meter = meter("2/1d");
    let noon = UnixSeconds(10 * DAY + DAY / 2);
    charge(&meter, noon).unwrap().keep();
    charge(&meter, noon).unwrap().keep();
    assert_eq!(charge(&meter, noon).unwrap_err().retry_after, Duration::from_secs(DAY / 2));
    let last = UnixSeconds(11 * DAY - 1);
    assert_eq!(charge(&meter, last).unwrap_err().retry_after, Duration::from_secs(1));
    charge(&meter, UnixSeconds(11 * DAY)).unwrap().keep();
    assert_eq!(meter.usage().used, 1);
}

#[test]
fn a_dropped_charge_is_taken_back_but_not_from_another_window() {
    let meter = meter("1/1d");
    drop(charge(&meter, UnixSeconds(0)).unwrap());
    let old = charge(&meter, UnixSeconds(1)).unwrap();
    charge(&meter, UnixSeconds(DAY)).unwrap().keep();
    drop(old);
    assert!(charge(&meter, UnixSeconds(DAY)).is_err());
}

#[test]
fn a_clock_set_back_a_little_gives_nothing_twice_and_one_set_back_far_starts_again() {
    let meter = meter("1/1h");
    charge(&meter, UnixSeconds(7_200)).unwrap().keep();
    assert!(charge(&meter, UnixSeconds(7_199)).is_err());
    charge(&meter, UnixSeconds(10)).unwrap().keep();
    assert_eq!(meter.usage().window_start, UnixSeconds(0));
}

#[test]
fn another_period_in_the_configuration_starts_a_new_count() {
    let meter = meter("9/1h");
    (0..9).for_each(|_| charge(&meter, UnixSeconds(5)).unwrap().keep());
    meter.set_quota("10/1d".parse().unwrap());
    charge(&meter, UnixSeconds(5)).unwrap().keep();
    assert_eq!(meter.usage().used, 1);
}

#[test]
fn a_dropped_charge_is_not_taken_back_from_a_window_of_another_length() {
    let meter = meter("2/1h");
    let old = charge(&meter, UnixSeconds(5)).unwrap();
    meter.set_quota("1/1d".parse().unwrap());
    charge(&meter, UnixSeconds(5)).unwrap().keep();
    drop(old);
    assert!(charge(&meter, UnixSeconds(5)).is_err(), "both windows begin at 0");
}

#[test]
fn another_quota_counts_what_was_used_and_what_is_taken_back() {
    let meter = meter("2/1d");
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    let open = charge(&meter, UnixSeconds(1)).unwrap();
    meter.set_quota("1/1d".parse().unwrap());
    assert!(charge(&meter, UnixSeconds(2)).is_err());
    meter.set_quota("3/1d".parse().unwrap());
    drop(open);
    assert_eq!(meter.usage().used, 1);
    charge(&meter, UnixSeconds(3)).unwrap().keep();
    charge(&meter, UnixSeconds(4)).unwrap().keep();
    assert!(charge(&meter, UnixSeconds(5)).is_err());
}

#[test]
fn nothing_is_signed_beyond_what_the_database_counts_as_used() {
    let meter = meter("300/1d");
    let now = UnixSeconds(0);
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    let window = meter.unknown().unwrap();
    assert_eq!(meter.to_write(Writing::Reserve), [None, None], "nothing is reserved of what is not known");
    meter.know(window);
    let waiting = [meter.wait(1), meter.wait(1)];
    let first = meter.to_write(Writing::Reserve)[1].unwrap();
    assert_eq!(first.used, 2 + 6, "for two who wait, and a fiftieth");
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved, "it is not written yet");
    meter.written(first);
    drop(waiting);
    for _ in 0..8 {
        assert!(meter.charge(1, now).map(Charge::keep).is_ok());
    }
    assert_eq!(meter.charge(1, now).unwrap_err(), NoCharge::Unreserved);
    // A late write does not apply to the next window.
    let late = meter.to_write(Writing::Reserve)[1].unwrap();
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
    meter.written(late);
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
}

#[test]
fn what_a_crash_left_reserved_counts_as_used() {
    let meter = meter("300/1d");
    assert_eq!(meter.charge(1, UnixSeconds(0)).unwrap_err(), NoCharge::Unreserved);
    meter.know(Usage { used: 8, ..meter.unknown().unwrap() });
    assert_eq!(meter.usage().used, 8);
    assert!(meter.is_settled());
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    assert_eq!((meter.usage().used, meter.is_settled()), (9, false));
}

#[test]
fn a_window_that_has_ended_is_written_with_its_exact_figure() {
    let meter = meter("300/1d");
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    charge(&meter, UnixSeconds(1)).unwrap().keep();
    assert_eq!(meter.charge(1, UnixSeconds(DAY)).unwrap_err(), NoCharge::Unreserved);
    let ended = Usage { window_start: UnixSeconds(0), period_seconds: DAY, used: 2 };
    assert_eq!(meter.to_write(Writing::Reserve), [Some(ended), None]);
    assert!(!meter.is_settled());
    meter.written(ended);
    assert_eq!(meter.to_write(Writing::Reserve), [None, None]);
    assert!(meter.is_settled());
}

#[test]
fn a_reservation_is_renewed_before_it_ends_and_never_exceeds_the_quota() {
    let meter = meter("300/1d");
    let mut writes = 0;
    for _ in 0..300 {
        charge(&meter, UnixSeconds(0)).unwrap().keep();
        if meter.is_low() {
            writes += 1;
            let usage = write(&meter, Writing::Reserve).unwrap();
            assert!(usage.used <= 300 && usage.used <= meter.usage().used + 6);
        }
    }
    assert!((50..=100).contains(&writes), "{writes}");
    assert!(charge(&meter, UnixSeconds(0)).is_err() && !meter.is_low());
}

#[test]
fn the_figure_is_exact_where_nothing_was_requested_for_a_while_and_after_a_stop() {
    let meter = meter("1000/1d");
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    assert_eq!(write(&meter, Writing::Settle), None, "it has just requested a token, and 21 are reserved");
    assert_eq!(write(&meter, Writing::Settle).unwrap().used, 1);
    assert!(meter.is_settled());
    assert_eq!(write(&meter, Writing::Settle), None, "nothing has changed");
    assert_eq!(meter.charge(1, UnixSeconds(0)).unwrap_err(), NoCharge::Unreserved);
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    assert_eq!(write(&meter, Writing::Exact).unwrap().used, 2);
}

#[test]
fn a_figure_that_failed_to_be_written_is_written_again() {
    let meter = meter("1000/1d");
    charge(&meter, UnixSeconds(0)).unwrap().keep();
    let exact = meter.to_write(Writing::Exact);
    assert_eq!(exact[1].unwrap().used, 1);
    assert!(!meter.is_settled());
    assert_eq!(meter.to_write(Writing::Exact), exact);
}

#[test]
fn a_batch_gets_what_the_quota_has_left_and_one_reservation_serves_all_of_it() {
    let meter = meter("250/1d");
    let noon = UnixSeconds(10 * DAY + DAY / 2);
    let batch = |most| loop {
        match meter.charge(most, noon) {
            Err(NoCharge::Unreserved) => {
                let _waiting = meter.wait(most);
                write(&meter, Writing::Reserve);
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

#[test]
fn a_quota_that_this_issuer_has_no_share_of_is_told_from_a_spent_one() {
    let joins = Shares::default().to_add("1/2".parse().unwrap(), true, UnixSeconds(10 * DAY + 1));
    let shares = ArcSwap::from_pointee(Shares::new(joins));
    let meter = Arc::new(Meter::new("2/1d".parse().unwrap(), Arc::new(shares)));
    assert!(charge(&meter, UnixSeconds(10 * DAY + 2)).unwrap_err().is_without_share);
    charge(&meter, UnixSeconds(11 * DAY)).unwrap().keep();
    assert!(!charge(&meter, UnixSeconds(11 * DAY)).unwrap_err().is_without_share);
}
