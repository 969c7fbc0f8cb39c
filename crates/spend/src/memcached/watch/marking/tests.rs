use super::*;
use postern_token::{ChallengeDigest, TokenKeyId};

fn torn(void: usize) -> Marking {
    Marking { loss: Some(Loss { void, answering: 3 }), ..Marking::default() }
}

/// How many marks follow in a day in which each is found torn at once.
async fn changes_in_a_day(void: usize) -> usize {
    let mut marking = torn(void);
    for _ in 0..24 * 60 {
        if marking.may_change() {
            marking.changes.push(instant());
        }
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    marking.changes.len()
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_keeps_losing_records_does_not_use_up_what_agents_accept() {
    assert_eq!(changes_in_a_day(0).await, PRECAUTIONS);
    assert_eq!(changes_in_a_day(300).await, 24 * A_PERIOD);
}

/// What a failed attempt has written stays until the key ends.
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
async fn marks_do_not_follow_one_another_within_a_minute() {
    let mut marking = torn(300);
    assert!(marking.may_change());
    marking.changes.push(instant());
    tokio::time::advance(BETWEEN - Duration::from_secs(1)).await;
    assert!(!marking.may_change());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(marking.may_change());
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
}

#[test]
fn whoever_reads_all_offers_reads_that_records_were_lost() {
    assert!(ALL_OFFERS.contains(&0) && ALL_OFFERS.contains(&PARTED));
}

#[test]
fn every_witness_is_read_in_its_turn() {
    let mut marking = Marking::default();
    let rounds = Bucket::all().count() / A_ROUND;
    for round in 0..2 * rounds {
        // An offer that is not the next one is found, too: others may have been lost.
        let newer = if round % rounds == 0 { 4..ALL_OFFERS.end } else { 4..5 };
        assert_eq!(marking.newer_offers(3), newer);
        let begin = round % rounds * A_ROUND;
        assert!(marking.due().into_iter().eq(Bucket::all().skip(begin).take(A_ROUND)), "round {round}");
    }
}

#[test]
fn every_offer_beside_the_first_is_looked_for_in_its_turn() {
    let mut marking = Marking::default();
    for _ in 0..2 {
        let looked: Vec<_> = (0..32).flat_map(|_| marking.next_offers()).collect();
        assert!(looked.into_iter().eq(1..64));
    }
}

/// One that was read is young again for the server.
#[tokio::test(start_paused = true)]
async fn the_sentinels_of_a_group_are_read_once_at_its_age() {
    let mut marking = Marking { planted: Some(UnixSeconds(1_000)), ..Marking::default() };
    let mut read = Vec::new();
    for (age, is_due) in [(1, false), (3, true), (3, false), (2, false), (10_000, true), (10_000, false)] {
        let buckets = marking.due_sentinels(UnixSeconds(1_000 + age));
        let group = due(Duration::from_secs(age)).unwrap_or_default();
        let expected = Bucket::all().enumerate().filter(|(at, _)| *at as u32 % GROUPS == group);
        let expected: Vec<_> = expected.map(|(_, bucket)| bucket).filter(|_| is_due).collect();
        assert_eq!(buckets, expected, "at an age of {age} seconds");
        assert!(buckets.iter().all(|bucket| !read.contains(bucket)));
        read.extend(buckets);
    }
    assert!(!read.is_empty());
}

#[tokio::test(start_paused = true)]
async fn void_tokens_bring_a_look_at_all_buckets_every_few_seconds_at_most() {
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
        |marking: &mut Marking| [marking.look(3, false), marking.look(2, true), marking.look(2, false)];
    let mut marking = Marking::default();
    assert_eq!(marking.look(3, false), Look::AndCount);
    assert!(marking.is_worse(Loss { void: 0, answering: 2 }));
    assert_eq!(looks(&mut marking), [Look::AndCount, Look::AndCount, Look::Only]);
    marking.changes.push(instant());
    assert_eq!(looks(&mut marking), [Look::AndCount, Look::AndCount, Look::Not]);
    assert!(!marking.is_worse(Loss { void: 0, answering: 3 }));
    assert!(marking.is_worse(Loss { void: 1, answering: 3 }));
    assert_eq!(marking.look(3, false), Look::Not);
}

#[tokio::test(start_paused = true)]
async fn a_mark_follows_unless_the_operator_refuses_after_losses_or_there_are_too_many() {
    let follows = |loss: Option<usize>, number, on_loss| {
        let loss = loss.map(|void| Loss { void, answering: 3 });
        Marking { loss, ..Marking::default() }.may_follow(number, on_loss)
    };
    assert!(follows(Some(300), 0, OnLoss::Warn) && follows(None, MOST_MARKS - 2, OnLoss::Retire));
    assert!(!follows(Some(300), MOST_MARKS - 1, OnLoss::Warn));
    assert!(!follows(Some(1), 0, OnLoss::Refuse) && !follows(None, 0, OnLoss::Refuse));
    assert!(follows(Some(0), 0, OnLoss::Refuse), "a precaution");
    let mut changed = Marking { changes: vec![instant()], ..torn(300) };
    assert!(!changed.may_follow(1, OnLoss::Warn));
}

#[tokio::test(start_paused = true)]
async fn a_key_without_an_offer_waits_since_it_was_first_missed() {
    let mut marking = Marking::default();
    tokio::time::advance(YOUNG).await;
    assert_eq!(marking.begin(&ELSEWHERE), Begin::Later);
    tokio::time::advance(YOUNG - Duration::from_millis(1)).await;
    assert_eq!(marking.begin(&ELSEWHERE), Begin::Later);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(marking.begin(&ELSEWHERE), Begin::Unmarked);
}

/// A key that another process began just now.
const ELSEWHERE: Unoffered = Unoffered {
    is_unclear: false,
    is_unmarked: false,
    must_be_marked: false,
    plants: true,
    is_begun_here: false,
    is_promised: false,
    is_old: false,
};

#[tokio::test(start_paused = true)]
async fn who_begins_a_key_decides_whether_it_has_marks() {
    let here = Unoffered { is_begun_here: true, ..ELSEWHERE };
    for (key, expected) in [
        (here, Begin::Marked),
        (Unoffered { plants: false, ..here }, Begin::Unmarked),
        (Unoffered { is_old: true, ..ELSEWHERE }, Begin::Unmarked),
        (Unoffered { must_be_marked: true, is_old: true, ..ELSEWHERE }, Begin::Marked),
        // There may be an offer, or tokens without a mark are out.
        (Unoffered { is_unclear: true, must_be_marked: true, ..here }, Begin::Later),
        (Unoffered { is_unmarked: true, ..here }, Begin::Later),
    ] {
        assert_eq!(Marking::default().begin(&key), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_was_promised_is_planted_by_whoever_can_once_it_is_late() {
    for is_old in [false, true] {
        let promised = Unoffered { is_promised: true, is_old, ..ELSEWHERE };
        let mut marking = Marking::default();
        assert_eq!(marking.begin(&promised), Begin::Later);
        tokio::time::advance(PROMISED).await;
        assert_eq!(marking.begin(&promised), Begin::TakenOver);
        assert_eq!(marking.begin(&Unoffered { is_unclear: true, ..promised }), Begin::Later);
    }
    let accepts = Unoffered { is_promised: true, plants: false, ..ELSEWHERE };
    let mut marking = Marking::default();
    assert_eq!(marking.begin(&accepts), Begin::Later);
    tokio::time::advance(YOUNG).await;
    assert_eq!(marking.begin(&accepts), Begin::Unmarked, "nobody who plants is left");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_answer_is_waited_for_before_a_mark_is_planted_without_it() {
    let mut marking = Marking::default();
    assert!(!marking.tries(false) && !marking.may_offer(9, false) && marking.may_offer(9, true));
    tokio::time::advance(COMPLETE_WITHIN - Duration::from_millis(1)).await;
    assert!(!marking.tries(false) && !marking.may_offer(9, false));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(marking.may_offer(1, false) && marking.tries(false));
    assert!(!marking.tries(true), "it was tried just now");
    assert!(!marking.may_offer(0, true) && !marking.may_offer(0, false), "no bucket knows it");
}
