use super::saved::SavedMarks;
use super::*;
use crate::wallet::challenge::tests::named;
use postern_token::Mark;

const GATEWAY: &str = "proxy.example";
const KEY: u8 = 1;

fn marked(number: u8, key: u8) -> CurrentChallenge {
    let second = Mark::new([number; 16]).second_name(GATEWAY);
    named(None, &[GATEWAY, &second], key)
}

fn at(seconds: u64) -> UnixSeconds {
    UnixSeconds(1_000_000 + seconds)
}

/// Offers a mark, and requests a signature for it.
fn minted(marks: &mut Marks, number: u8, key: u8, seconds: u64) -> Result<bool, MarksRefused> {
    let challenge = marked(number, key);
    marks.offered(&challenge, at(seconds)).unwrap();
    marks.sign(GATEWAY, challenge.digest, challenge.key.unwrap(), at(seconds))
}

#[test]
fn four_new_marks_an_hour_are_minted_for_at_once_and_further_ones_after_pauses_that_grow() {
    let mut marks = Marks::default();
    assert_eq!(minted(&mut marks, 0, KEY, 0), Ok(true), "the first one is not new");
    for number in 1..=4 {
        assert_eq!(minted(&mut marks, number, KEY, 100), Ok(true));
    }
    let mut now = 100;
    for (number, pause) in (5..).zip([1, 2, 4, 8, 16, 32, 64, 128, 240, 240]) {
        now += pause;
        let refused = minted(&mut marks, number, KEY, now - 1).unwrap_err();
        let counted = format!("the gateway {GATEWAY} names another mark, after {} new ones", number - 1);
        assert_eq!(refused.left, Duration::from_secs(1));
        for sentence in
            [&counted, "tell clients apart", "losing records", "for 1 s", "Ask the gateway's operator"]
        {
            assert!(refused.to_string().contains(sentence), "{refused}");
        }
        assert_eq!(minted(&mut marks, 2, KEY, now - 1), Ok(false), "known before");
        assert_eq!(minted(&mut marks, number, KEY, now), Ok(true));
    }
    for number in 101..=104 {
        assert_eq!(minted(&mut marks, number, KEY, now + 3600), Ok(true), "an hour later");
    }
    assert!(minted(&mut marks, 105, KEY, now + 3600).is_err());
}

/// A gateway that names another mark after each signature, with one key and with two.
#[test]
fn new_marks_of_a_hostile_gateway_in_a_day() {
    for keys in [1, 2] {
        let (mut marks, mut taken) = (Marks::default(), 0_u32);
        let challenge = |number: u32| {
            let mark: [u8; 16] = std::array::from_fn(|index| number.to_be_bytes()[index % 4]);
            named(None, &[GATEWAY, &Mark::new(mark).second_name(GATEWAY)], KEY + (number % keys) as u8)
        };
        let mut next = challenge(taken);
        for second in 0..86_400 {
            marks.offered(&next, at(second)).unwrap();
            while marks.sign(GATEWAY, next.digest, next.key.unwrap(), at(second)).is_ok() {
                taken += 1;
                next = challenge(taken);
            }
        }
        assert_eq!(taken - keys, 370, "beside the first of each key");
        assert_eq!(marks.known.len(), KEPT);
        assert!(marks.trial(next.digest, at(86_400)).is_some(), "none is minted ahead for");
    }
}

#[test]
fn challenges_without_marks_are_bounded_too() {
    let mut marks = Marks::default();
    let plain = |number: u8, key| named(None, &[&format!("proxy-{number}.example")], key);
    let mint = |marks: &mut Marks, number: u8, seconds: u64| {
        let challenge = plain(number, KEY);
        marks.offered(&challenge, at(seconds)).unwrap();
        marks.sign(GATEWAY, challenge.digest, challenge.key.unwrap(), at(seconds))
    };
    assert_eq!(mint(&mut marks, 0, 0), Ok(true));
    assert_eq!(marks.trial(plain(0, KEY).digest, at(0)), None, "there is nothing to compare the first with");
    // A key that is only claimed makes no later challenge the first of its key.
    marks.offered(&plain(0, 99), at(0)).unwrap();
    for number in 1..=4 {
        assert_eq!(mint(&mut marks, number, 100 * u64::from(number)), Ok(true));
        assert!(marks.trial(plain(number, KEY).digest, at(500)).is_some());
    }
    assert_eq!(mint(&mut marks, 5, 500), Ok(true));
    let refused = mint(&mut marks, 6, 500).unwrap_err();
    assert_eq!(refused.left, Duration::from_secs(2));
    let counted = format!("the gateway {GATEWAY} names another challenge, after 5 new ones");
    for sentence in
        [&counted, "tell clients apart", "the issuer's quota", "for 2 s", "Ask the gateway's operator"]
    {
        assert!(refused.to_string().contains(sentence), "{refused}");
    }
    assert_eq!(mint(&mut marks, 0, 700), Ok(false), "known before");
    assert_eq!(marks.older(), [], "tokens of a challenge that is replaced are kept, and not sent");
    // Each change between known challenges could cost a stock of tokens.
    let known = [plain(1, KEY), plain(0, KEY)];
    for challenge in known.iter().cycle().take(CHANGES_IN_AN_HOUR) {
        marks.offered(challenge, at(800)).unwrap();
    }
    let trial = Some(Trial { left: HOUR, is_proven: true });
    assert_eq!(marks.trial(plain(0, KEY).digest, at(800)), trial);
    assert_eq!(marks.trial(plain(0, KEY).digest, at(800 + 3600)), None);
}

#[test]
fn a_token_key_brings_one_mark_for_nothing() {
    let mut marks = Marks::default();
    for key in 1..=20 {
        assert_eq!(minted(&mut marks, key, key, 0), Ok(true));
    }
    for number in 21..=24 {
        assert_eq!(minted(&mut marks, number, 20, 0), Ok(true));
    }
    assert!(minted(&mut marks, 25, 20, 0).is_err());
    // The issuer's key counts, and not the one that the challenge claims.
    let claimed = marked(26, 99);
    marks.offered(&claimed, at(0)).unwrap();
    let real = marked(26, 20).key.unwrap();
    assert!(marks.sign(GATEWAY, claimed.digest, real, at(0)).is_err());
}

#[test]
fn a_token_key_is_no_new_one_however_many_marks_came_since() {
    let mut marks = Marks::default();
    minted(&mut marks, 0, KEY, 0).unwrap();
    for number in 1..=2 * KEPT as u8 {
        assert_eq!(minted(&mut marks, number, 2, 3_600 * u64::from(number)), Ok(true));
    }
    assert_eq!(marks.known.len(), KEPT);
    let now = 3_600 * 1_000;
    assert_eq!(minted(&mut marks, 200, KEY, now), Ok(true));
    assert!(marks.trial(marked(200, KEY).digest, at(now)).is_some(), "it is counted");
}

/// Gateways without a shared store cost their users time, but no tokens beyond need.
#[test]
fn a_gateway_that_alternates_gets_tokens_after_pauses_that_grow_to_a_minute() {
    let alternating = |changes: u64| {
        let mut marks = Marks::default();
        for number in 0..=1 {
            minted(&mut marks, number, KEY, 0).unwrap();
        }
        for change in 0..changes {
            marks.offered(&marked((change % 2) as u8, KEY), at(change)).unwrap();
        }
        (marks, ((changes + 1) % 2) as u8)
    };
    for (changes, pause) in [(20, 0), (21, 1), (22, 2), (23, 4), (24, 8), (27, 60), (64, 60)] {
        let (mut marks, last) = alternating(changes);
        assert_eq!(minted(&mut marks, last, KEY, changes), Ok(false), "after {changes}");
        let next = (0..100).find(|second| minted(&mut marks, last, KEY, changes + second).is_ok());
        assert_eq!(next, Some(pause), "after {changes}");
    }
    let (mut marks, last) = alternating(30);
    let trial = marks.trial(marked(last, KEY).digest, at(30));
    assert_eq!(trial, Some(Trial { left: HOUR, is_proven: true }), "nothing is minted ahead");
    minted(&mut marks, last, KEY, 30).unwrap();
    let refused = minted(&mut marks, last, KEY, 40).unwrap_err();
    assert_eq!(refused.left.as_secs(), 50);
    for sentence in
        ["30 times within an hour", "do not share one store", "for 50 s", "Ask the gateway's operator"]
    {
        assert!(refused.to_string().contains(sentence), "{refused}");
    }
    let signed = (40..3_600).filter(|second| minted(&mut marks, (second % 2) as u8, KEY, *second).is_ok());
    assert_eq!(signed.count(), 59, "one a minute, as long as it goes on");
    assert_eq!(marks.trial(marked(1, KEY).digest, at(3_599 + 3_600)), None, "it has stayed");
}

#[test]
fn a_mark_is_on_trial_until_it_was_offered_for_ten_minutes() {
    let mut marks = Marks::default();
    let (first, second) = (marked(0, KEY), marked(1, KEY));
    minted(&mut marks, 0, KEY, 0).unwrap();
    assert_eq!(marks.trial(first.digest, at(0)), None, "there is nothing to compare the first with");
    marks.offered(&second, at(100)).unwrap();
    let left = |seconds| Duration::from_secs(seconds);
    assert_eq!(marks.trial(second.digest, at(100)), Some(Trial { left: left(600), is_proven: false }));
    marks.sign(GATEWAY, second.digest, second.key.unwrap(), at(100)).unwrap();
    marks.accepted(second.digest);
    assert_eq!(marks.trial(second.digest, at(699)), Some(Trial { left: left(1), is_proven: true }));
    assert!(!marks.is_to_be_confirmed(second.digest, at(699)));
    assert_eq!(marks.trial(second.digest, at(700)), None);
    assert!(marks.is_to_be_confirmed(second.digest, at(700)), "seen once, ten minutes ago");
    marks.offered(&second, at(700)).unwrap();
    assert!(!marks.is_to_be_confirmed(second.digest, at(700)));
    let third = marked(2, KEY);
    marks.offered(&third, at(800)).unwrap();
    assert!(marks.trial(third.digest, at(800)).is_some());
}

/// All agents learn of a loss within seconds.
#[test]
fn trials_end_at_different_times() {
    for (share, seconds) in [(0.0, 600), (0.5, 900), (1.0, 1200)] {
        let mut marks = Marks::default().with_longer_trials(share);
        minted(&mut marks, 0, KEY, 0).unwrap();
        minted(&mut marks, 1, KEY, 100).unwrap();
        let second = marked(1, KEY);
        let left = marks.trial(second.digest, at(100)).unwrap().left;
        assert_eq!(left, Duration::from_secs(seconds));
        let end = 100 + seconds;
        assert!(!marks.is_to_be_confirmed(second.digest, at(end - 1)));
        assert!(marks.is_to_be_confirmed(second.digest, at(end)));
        marks.offered(&second, at(end)).unwrap();
        assert!(!marks.is_to_be_confirmed(second.digest, at(end)), "it has lasted");
        assert_eq!(marks.trial(second.digest, at(end - 1)), None);
    }
}

#[test]
fn the_first_mark_of_a_token_key_is_not_on_trial() {
    let mut marks = Marks::default();
    minted(&mut marks, 0, KEY, 0).unwrap();
    let first = marked(1, 2);
    marks.offered(&first, at(800)).unwrap();
    assert_eq!(marks.trial(first.digest, at(800)), None);
    assert_eq!(marks.sign(GATEWAY, first.digest, first.key.unwrap(), at(800)), Ok(true));
    assert_eq!(marks.trial(first.digest, at(800)), None);
    assert!(!marks.is_to_be_confirmed(first.digest, at(1400)));
    // The second mark of one key is on trial, whatever key the challenge claims.
    let claimed = marked(2, 3);
    marks.offered(&claimed, at(900)).unwrap();
    assert!(marks.sign(GATEWAY, claimed.digest, first.key.unwrap(), at(900)).is_ok());
    assert!(marks.trial(claimed.digest, at(900)).is_some());
}

#[test]
fn a_pause_that_began_by_a_clock_ahead_ends_in_time() {
    let mut marks = Marks::default();
    for number in 0..=5 {
        minted(&mut marks, number, KEY, 1_000_000 + 100 * u64::from(number)).unwrap();
    }
    assert!(minted(&mut marks, 6, KEY, 100).is_err());
    assert_eq!(minted(&mut marks, 6, KEY, 102), Ok(true));
}

#[test]
fn a_trial_that_began_by_a_clock_ahead_ends_in_time() {
    let mut marks = Marks::default();
    minted(&mut marks, 0, KEY, 0).unwrap();
    minted(&mut marks, 1, KEY, 1_000_000).unwrap();
    let second = marked(1, KEY);
    marks.offered(&second, at(100)).unwrap();
    marks.offered(&second, at(700)).unwrap();
    assert!(
        marks.trial(second.digest, at(700)).is_none() && !marks.is_to_be_confirmed(second.digest, at(700))
    );
}

#[test]
fn tokens_of_older_marks_are_sent_first_until_five_in_a_row_are_refused() {
    let mut marks = Marks::default();
    let plain = named(None, &[GATEWAY], KEY);
    marks.offered(&plain, at(0)).unwrap();
    assert_eq!(marks.older(), []);
    for number in 0..3 {
        minted(&mut marks, number, KEY, 1).unwrap();
    }
    let [first, second] = [0, 1].map(|number| marked(number, KEY).digest);
    assert_eq!(marks.older(), [plain.digest, first, second]);
    let mut refused = |times| (0..times).map(|_| marks.refused(first)).collect::<Vec<_>>();
    assert_eq!(refused(4), [false; 4]);
    marks.accepted(first);
    let mut refused = |times| (0..times).map(|_| marks.refused(first)).collect::<Vec<_>>();
    assert_eq!(refused(5), [false, false, false, false, true]);
    assert_eq!(marks.older(), [plain.digest, second]);
    assert!((0..9).all(|_| !marks.refused(marked(2, KEY).digest)), "the present one is not given up");
    minted(&mut marks, 0, KEY, 2).unwrap();
    assert_eq!(marks.older(), [plain.digest, second, marked(2, KEY).digest], "offered again");
}

#[test]
fn once_a_gateway_uses_marks_nothing_but_its_name_and_one_mark_is_taken() {
    let mut marks = Marks::default();
    let context = Some([7; 32]);
    let tagged = named(None, &[GATEWAY, "second.example"], KEY);
    for before in [&named(context, &[GATEWAY], KEY), &tagged, &named(None, &[], KEY)] {
        assert_eq!(marks.offered(before, at(0)), Ok(()), "a gateway that uses no marks");
    }
    minted(&mut marks, 0, KEY, 0).unwrap();
    let mark = Mark::new([3; 16]);
    let (ours, other) = (mark.second_name(GATEWAY), mark.second_name("other.example"));
    for refused in [
        named(context, &[GATEWAY], KEY),
        named(context, &[GATEWAY, &ours], KEY),
        named(None, &[], KEY),
        named(None, &[GATEWAY, "tag.proxy.example"], KEY),
        named(None, &[GATEWAY, &ours, "third.example"], KEY),
        named(None, &[GATEWAY, &other], KEY),
        named(None, &["other.example", &other], KEY),
        named(None, &["other.example"], KEY),
        tagged,
    ] {
        assert!(marks.offered(&refused, at(0)).is_err(), "{refused:?}");
    }
    assert_eq!(marks.offered(&named(None, &[GATEWAY], KEY), at(0)), Ok(()), "our name");
    assert_eq!(marks.offered(&named(None, &[GATEWAY, &ours], KEY), at(0)), Ok(()), "our name and one mark");
}

#[test]
fn a_fleet_with_several_names_keeps_to_those() {
    let mut marks = Marks::default();
    let mark = Mark::new([3; 16]).second_name(GATEWAY);
    for names in [&[GATEWAY, "second.example", &mark][..], &[GATEWAY, "second.example"]] {
        assert_eq!(marks.offered(&named(None, names, KEY), at(0)), Ok(()), "{names:?}");
    }
    for names in [&[GATEWAY, &mark][..], &[GATEWAY], &[GATEWAY, "you.example", &mark]] {
        assert!(marks.offered(&named(None, names, KEY), at(0)).is_err(), "{names:?}");
    }
}

#[tokio::test]
async fn counts_and_marks_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let wallet = directory.path().join("wallet");
    let (mut saved, mut ledger) = SavedMarks::read(&wallet);
    let marks = ledger.entry(GATEWAY.to_owned()).or_default();
    for number in 0..=4 {
        minted(marks, number, KEY, 10).unwrap();
    }
    saved.save(&ledger).await;
    let text = std::fs::read_to_string(directory.path().join("wallet.marks")).unwrap();
    for (number, part) in
        [(1, "\"names\": \"proxy.example\""), (5, "\"given_up\": false"), (5, "\"challenge\": \"")]
    {
        assert_eq!(text.matches(part).count(), number, "{part} in {text}");
    }
    let (_, mut again) = SavedMarks::read(&wallet);
    let marks = again.get_mut(GATEWAY).unwrap();
    assert!(minted(marks, 5, KEY, 10).is_err());
    assert_eq!(minted(marks, 3, KEY, 10), Ok(false));
    assert_eq!(marks.older().len(), 4);
    // An unreadable file does not prevent a start.
    std::fs::write(directory.path().join("wallet.marks"), "{").unwrap();
    assert!(SavedMarks::read(&wallet).1.is_empty());
}
