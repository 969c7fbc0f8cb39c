use super::*;
use postern_token::{ChallengeDigest, TokenKeyId};

fn torn(void: usize) -> Marking {
    Marking { loss: Some(Loss { void, answering: 3 }), ..Marking::default() }
}

/// Returns the seconds at which marks follow, during a time in which each is torn immediately.
async fn changes_within(seconds: u64, void: usize) -> Vec<u64> {
    let (mut marking, mut followed) = (torn(void), Vec::new());
    for second in 0..seconds {
        if marking.may_change() {
            marking.follow();
            followed.push(second);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    followed
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_keeps_losing_records_is_no_reason_for_more_marks_than_a_few() {
    assert_eq!(changes_within(86_400, 0).await, [0, 60, 120]);
}

/// Every second restart of a roll voids tokens, because the mark of the one before is not a minute old.
#[tokio::test(start_paused = true)]
async fn a_roll_of_all_replicas_over_and_over_waits_for_no_mark() {
    let mut marking = Marking::default();
    for second in 0..200 {
        marking.loss = Some(Loss { void: 300 * (second % 20 / 10), answering: 3 });
        let is_precaution = second % 20 < 10;
        if second % 10 == 0 {
            let follows = marking.may_change();
            assert_eq!(follows, !is_precaution || second == 0, "after {second} seconds");
            if follows {
                marking.follow();
            }
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn marks_that_follow_a_void_one_wait_longer_and_longer_and_never_for_long() {
    let followed = changes_within(3_600, 300).await;
    assert_eq!(followed[..16], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 40, 72]);
    assert_eq!(changes_within(73, 1).await, followed[..16], "one void bucket is enough");
    let pauses: Vec<_> = followed.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[16..].iter().all(|pause| (8..=60).contains(pause)), "{pauses:?}");
    let mut marking = torn(300);
    for _ in 0..20 {
        marking.follow();
    }
    assert!(!marking.may_change());
    tokio::time::advance(CALM).await;
    assert!(marking.may_change());
    marking.follow();
    tokio::time::advance(FIRST_PAUSE).await;
    assert!(marking.may_change(), "it was calm for long");
}

/// The records written by a failed attempt stay until the key ends.
#[tokio::test(start_paused = true)]
async fn planting_that_fails_is_tried_less_and_less_often() {
    let (mut marking, mut tries) = (Marking::default(), Vec::new());
    for second in 0..3_600 {
        if marking.tries(true) {
            tries.push(second);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let in_a_minute = tries.iter().filter(|second| **second < 60).count();
    assert!((10..=20).contains(&in_a_minute), "{in_a_minute} in the first minute");
    assert!((60..=80).contains(&tries.len()), "{} in an hour", tries.len());
}

#[tokio::test(start_paused = true)]
async fn the_first_mark_of_a_key_follows_no_other() {
    let id = MarkId::derive("proxy.example", TokenKeyId([1; 32]), ChallengeDigest::of(b"mark"));
    let mut marking = torn(300);
    for (number, may_change) in [(0, true), (1, false)] {
        (marking.incomplete, marking.tried) = (Some(instant()), Some(instant()));
        marking.adopt(number, id);
        assert_eq!((marking.offered, marking.may_change()), (Some((number, id)), may_change));
        assert!(marking.loss.is_none() && marking.incomplete.is_none() && marking.tried.is_none());
    }
    let known: Vec<_> = marking.sentinels.iter().map(|sentinels| sentinels.mark).collect();
    assert_eq!(known, [id], "it is one mark, by whichever number");
}

/// The replica that has the loss may be the one that is away.
#[test]
fn a_loss_stays_while_fewer_replicas_answer_than_when_it_was_seen() {
    let mut marking = torn(0);
    assert!(!marking.heals(2) && marking.loss.is_some());
    assert!(marking.heals(3) && marking.loss.is_none());
}

/// No mark may follow for the rest of the day, but the replica may be back with all records.
#[tokio::test(start_paused = true)]
async fn a_known_loss_is_looked_at_once_a_minute() {
    let (mut marking, mut looks) = (torn(0), Vec::new());
    for second in 0..200 {
        if marking.looks_back() {
            looks.push(second);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(looks, [60, 120, 180]);
    assert!(marking.heals(3) && !marking.looks_back(), "the next loss has a minute of its own");
}

#[test]
fn every_witness_is_read_in_its_turn() {
    let mut marking = Marking::default();
    let rounds = Bucket::all().count() / A_ROUND;
    for round in 0..2 * rounds {
        // An offer other than the next one is found, too: offers in between may have been lost.
        let newer = if round % rounds == 0 { 4..MOST_MARKS } else { 4..5 };
        assert_eq!(marking.newer_offers(3), newer);
        let begin = round % rounds * A_ROUND;
        assert!(marking.due().into_iter().eq(Bucket::all().skip(begin).take(A_ROUND)), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn void_tokens_bring_a_look_at_all_buckets_once_a_second_at_most() {
    let mut marking = Marking::default();
    assert!(!marking.suspects(|| false));
    assert!(marking.suspects(|| true));
    tokio::time::advance(SUSPICIONS - Duration::from_millis(1)).await;
    assert!(!marking.suspects(|| panic!("it would be forgotten")));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(!marking.suspects(|| false));
    assert!(marking.suspects(|| true));
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_counted_once_and_again_when_more_replicas_answer_or_a_token_was_void() {
    let looks =
        |marking: &mut Marking| [marking.looks(3, false), marking.looks(2, true), marking.looks(2, false)];
    let mut marking = Marking::default();
    assert!(marking.looks(3, false) && marking.loss.is_none());
    assert!(marking.is_worse(Loss { void: 0, answering: 2 }) && marking.loss.is_some());
    assert_eq!(looks(&mut marking), [true, true, true], "a mark may follow");
    marking.follow();
    assert_eq!(looks(&mut marking), [true, true, false]);
    assert!(!marking.is_worse(Loss { void: 0, answering: 3 }));
    assert!(marking.is_worse(Loss { void: 1, answering: 3 }));
    assert!(!marking.looks(3, false));
}

#[tokio::test(start_paused = true)]
async fn a_mark_follows_unless_there_are_too_many() {
    assert!(torn(300).may_follow(0) && Marking::default().may_follow(MOST_MARKS - 2));
    assert!(!torn(300).may_follow(MOST_MARKS - 1));
    let last = |mut marking: Marking| {
        marking.offered =
            Some((MOST_MARKS - 1, MarkId::derive("a", TokenKeyId([1; 32]), ChallengeDigest([0; 32]))));
        marking.is_used_up()
    };
    assert!(last(torn(300)) && !last(torn(0)) && !torn(300).is_used_up());
    let mut changed = torn(300);
    changed.follow();
    assert!(!changed.may_follow(1));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_may_have_an_offer_is_begun_after_a_while() {
    let mut marking = Marking::default();
    assert!(marking.begins(false));
    assert!(!marking.begins(true));
    tokio::time::advance(COMPLETE_WITHIN - Duration::from_millis(1)).await;
    assert!(!marking.begins(true));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(marking.begins(true));
    marking.adopt(0, MarkId::derive("proxy.example", TokenKeyId([1; 32]), ChallengeDigest::of(b"mark")));
    assert!(!marking.begins(true), "the next offer is waited for, too");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_answer_is_waited_for_before_a_mark_is_planted_without_it() {
    let (two, all) = ((2, 2, 3), (3, 3, 3));
    let mut marking = Marking::default();
    assert!(!marking.tries(false) && !marking.may_offer(9, two) && marking.may_offer(9, all));
    tokio::time::advance(COMPLETE_WITHIN - Duration::from_millis(1)).await;
    assert!(!marking.tries(false) && !marking.may_offer(9, two));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(marking.may_offer(1, (0, 2, 3)) && marking.tries(false));
    assert!(!marking.tries(true), "it was tried just now");
    assert!(!marking.may_offer(0, all), "no bucket knows it");
}

/// A slow name server takes nothing from the time for which a server that is away is awaited.
#[tokio::test(start_paused = true)]
async fn names_are_waited_for_before_the_servers_are() {
    let mut marking = Marking::default();
    assert!(!marking.reaches(false));
    tokio::time::advance(COMPLETE_WITHIN - Duration::from_millis(1)).await;
    assert!(!marking.reaches(false));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(marking.reaches(false) && !marking.has_waited());
    assert!(marking.reaches(true) && !marking.reaches(false), "the next time is a new one");
}

/// One replica emptied and one away.
#[tokio::test(start_paused = true)]
async fn nothing_is_waited_for_while_tokens_are_void() {
    let mut marking = torn(300);
    assert!(marking.tries(false) && marking.may_offer(9, (2, 2, 3)));
    assert!(!marking.may_offer(9, (1, 2, 3)), "one of those that answer lacks witnesses");
    let mut precaution = torn(0);
    assert!(!precaution.tries(false) && !precaution.may_offer(9, (2, 2, 3)));
}

fn planted(at: u64) -> Sentinels {
    let mark = MarkId::derive("proxy.example", TokenKeyId([1; 32]), ChallengeDigest::of(b"mark"));
    Sentinels { planted: Some(UnixSeconds(at)), ..Sentinels::of(mark) }
}

/// Reading a sentinel makes it young again for the server.
#[test]
fn a_group_is_read_once_at_its_age() {
    let (mut sentinels, mut read) = (planted(1_000), Vec::new());
    for (age, is_due) in [(1, false), (3, true), (3, false), (2, false), (10_000, true), (10_000, false)] {
        let buckets = sentinels.due(UnixSeconds(1_000 + age));
        let group = due(Duration::from_secs(age)).unwrap_or_default();
        let expected = Bucket::all().enumerate().filter(|(at, _)| *at as u32 % GROUPS == group);
        let expected: Vec<_> = expected.map(|(_, bucket)| bucket).filter(|_| is_due).collect();
        assert_eq!(buckets, expected, "at an age of {age} seconds");
        assert!(buckets.iter().all(|bucket| !read.contains(bucket)));
        read.extend(buckets);
    }
    assert!(!read.is_empty());
}

#[test]
fn all_are_read_once_after_a_loss() {
    let mut sentinels = planted(1_000);
    sentinels.read_all();
    assert!(sentinels.due(UnixSeconds(1_000)).into_iter().eq(Bucket::all()));
    assert_eq!(sentinels.due(UnixSeconds(1_000)), []);
}

#[test]
fn groups_come_due_one_after_the_other_and_last_for_three_months() {
    let at = |age: u64| due(Duration::from_secs(age));
    assert_eq!((at(0), at(2), at(3)), (None, None, Some(3)));
    assert!(at(90 * 86_400).unwrap() < GROUPS - 1);
    assert_eq!(at(u64::MAX / 2), Some(GROUPS - 1));
    let ages = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
    assert!(ages.windows(2).all(|pair| at(pair[1]) > at(pair[0])));
}
