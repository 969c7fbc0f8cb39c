use super::*;
use crate::config::ChallengeConfig;
use crate::keys::offer::KeyTypes;
use postern_token::ChallengeDigest;
use postern_token::header::Challenge;
use postern_token::{DirectoryKey, SigningKey};

const LIFETIMES: Lifetimes =
    Lifetimes { without_not_after: Duration::from_secs(1000), removed: Duration::from_secs(10) };

fn entry(not_before: Option<u64>, not_after: Option<u64>) -> (TokenKeyId, DirectoryKey) {
    let key = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let entry = DirectoryKey::new(
        TokenType::BlindRsa2048,
        key.public_key(),
        not_before.map(UnixSeconds),
        not_after.map(UnixSeconds),
    );
    (key.id(), entry)
}

fn directory(token_keys: Vec<DirectoryKey>) -> Directory {
    Directory {
        issuer_request_uri: "/token-request".into(),
        token_keys,
        batch_limit: None,
        revoked: Vec::new(),
    }
}

#[test]
fn a_key_without_not_after_keeps_its_first_window_over_polls() {
    let (id, key) = entry(None, None);
    let listed = directory(vec![key]);
    let first =
        Keyring::default().updated(&listed, &mut Accepted::public(), LIFETIMES, UnixSeconds(100)).unwrap();
    let second = first.updated(&listed, &mut Accepted::public(), LIFETIMES, UnixSeconds(600)).unwrap();
    assert!(second.find(id, UnixSeconds(1099)).is_ok());
    assert_eq!(second.find(id, UnixSeconds(1100)).err(), Some(KeyRefusal::Retired));
}

#[test]
fn a_key_no_longer_listed_is_good_for_the_grace_and_no_longer() {
    let ((old, old_entry), (new, new_entry)) = (entry(None, Some(5000)), entry(Some(100), Some(9000)));
    let first = Keyring::default()
        .updated(&directory(vec![old_entry]), &mut Accepted::public(), LIFETIMES, UnixSeconds(100))
        .unwrap();
    let second = first
        .updated(&directory(vec![new_entry.clone()]), &mut Accepted::public(), LIFETIMES, UnixSeconds(200))
        .unwrap();
    assert!(second.find(old, UnixSeconds(209)).is_ok());
    assert_eq!(second.find(old, UnixSeconds(210)).err(), Some(KeyRefusal::Retired));
    // Another poll must not prolong the grace.
    let third = second
        .updated(&directory(vec![new_entry.clone()]), &mut Accepted::public(), LIFETIMES, UnixSeconds(208))
        .unwrap();
    assert_eq!(third.find(old, UnixSeconds(210)).err(), Some(KeyRefusal::Retired));
    assert!(third.find(new, UnixSeconds(210)).is_ok());
    // At the end of the grace period the key leaves the keyring.
    let listed = directory(vec![new_entry]);
    let known =
        |now| second.updated(&listed, &mut Accepted::public(), LIFETIMES, UnixSeconds(now)).unwrap().len();
    assert_eq!((known(209), known(210)), (2, 1));
}

/// During a grace period, anyone with a copy of the key could spend.
#[test]
fn a_revoked_key_is_good_no_more_however_long_the_grace_is() {
    let ((old, old_entry), (new, new_entry)) = (entry(None, Some(5000)), entry(Some(100), Some(9000)));
    let update = |ring: &Keyring, directory: &Directory| {
        ring.updated(directory, &mut Accepted::public(), LIFETIMES, UnixSeconds(200))
    };
    let before = update(&Keyring::default(), &directory(vec![old_entry.clone(), new_entry.clone()])).unwrap();
    let revoking = |listed| Directory { revoked: vec![old.to_hex()], ..directory(listed) };
    for listed in [vec![new_entry.clone()], vec![new_entry, old_entry]] {
        let after = update(&before, &revoking(listed)).unwrap();
        assert!(after.find(old, UnixSeconds(200)).is_err() && after.find(new, UnixSeconds(200)).is_ok());
    }
    // Also if no other listed key is usable.
    let after = update(&before, &revoking(Vec::new())).unwrap();
    assert!(after.find(old, UnixSeconds(200)).is_err() && after.find(new, UnixSeconds(200)).is_ok());
}

/// Gateways that notice the removal at different times, or load the key from a file, must use the same expiry.
#[test]
fn a_key_no_longer_listed_keeps_the_expiry_of_its_epoch() {
    let ((old, old_entry), (_, new_entry)) = (entry(None, Some(5000)), entry(Some(100), Some(9000)));
    let (both, one) = (directory(vec![new_entry.clone(), old_entry]), directory(vec![new_entry]));
    let expiry = |ring: &Keyring, now| {
        let epoch = ring.epochs(UnixSeconds(now)).find(|epoch| epoch.key == old);
        epoch.map(|epoch| epoch.expires)
    };
    let listed =
        Keyring::default().updated(&both, &mut Accepted::public(), LIFETIMES, UnixSeconds(100)).unwrap();
    let (early, late) = (
        listed.updated(&one, &mut Accepted::public(), LIFETIMES, UnixSeconds(200)).unwrap(),
        listed.updated(&one, &mut Accepted::public(), LIFETIMES, UnixSeconds(208)).unwrap(),
    );
    let whole = Some(UnixSeconds(5000 + 3600));
    assert_eq!([&listed, &early, &late].map(|ring| expiry(ring, 209)), [whole; 3]);
    assert_eq!(early.find(old, UnixSeconds(210)).err(), Some(KeyRefusal::Retired));
}

/// A key that was removed and is listed again keeps its first window if it has no times, and otherwise has the directory's.
#[test]
fn a_key_that_is_listed_again_has_its_window_back() {
    let ((timeless, first), (dated, second), (_, other)) =
        (entry(None, None), entry(None, Some(5000)), entry(None, Some(5000)));
    let all = directory(vec![first, second, other.clone()]);
    let ring =
        Keyring::default().updated(&all, &mut Accepted::public(), LIFETIMES, UnixSeconds(100)).unwrap();
    let ring =
        ring.updated(&directory(vec![other]), &mut Accepted::public(), LIFETIMES, UnixSeconds(200)).unwrap();
    let ring = ring.updated(&all, &mut Accepted::public(), LIFETIMES, UnixSeconds(205)).unwrap();
    assert!(ring.find(timeless, UnixSeconds(1099)).is_ok());
    assert_eq!(ring.find(timeless, UnixSeconds(1100)).err(), Some(KeyRefusal::Retired));
    assert!(ring.find(dated, UnixSeconds(4999)).is_ok());
}

#[test]
fn one_bad_entry_does_not_take_the_good_ones_with_it() {
    let (id, good) = entry(None, None);
    let bad = DirectoryKey { token_key: "AAAA".into(), ..good.clone() };
    let ring = Keyring::default()
        .updated(&directory(vec![bad.clone(), good]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    assert!(ring.find(id, UnixSeconds(1)).is_ok());
    assert!(
        Keyring::default()
            .updated(&directory(vec![bad]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
            .is_err()
    );
    assert!(
        Keyring::default()
            .updated(&directory(vec![]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
            .is_err()
    );
}

#[test]
fn the_challenge_asks_for_the_newest_key_in_use_and_not_beyond_its_end() {
    let ((_, old), (new_id, new)) = (entry(Some(0), Some(5000)), entry(Some(100), Some(200)));
    let ring = Keyring::default()
        .updated(&directory(vec![old, new.clone()]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let offer = offer();
    let value = ring.challenge(&offer, marked, UnixSeconds(150)).unwrap();
    let read = Challenge::parse_all(value.as_bytes()).unwrap();
    assert_eq!(read[0].token_key, Some(new.key_bytes().unwrap()));
    assert_eq!(read[0].max_age, Some(50));
    assert_eq!(offer.answered(new_id, ChallengeDigest::of(&read[0].bytes)), offer.mark_id(new_id, MARK));
}

#[test]
fn the_challenge_is_not_kept_beyond_the_moment_at_which_a_known_key_takes_over() {
    let ((_, old), (_, new)) = (entry(Some(0), Some(5000)), entry(Some(300), Some(9000)));
    let ring = Keyring::default()
        .updated(&directory(vec![old, new]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let offer = offer();
    let max_age = |now| {
        let value = ring.challenge(&offer, marked, UnixSeconds(now)).unwrap();
        Challenge::parse_all(value.as_bytes()).unwrap()[0].max_age
    };
    assert_eq!((max_age(100), max_age(299), max_age(300)), (Some(200), Some(1), Some(600)));
    assert_eq!(ring.next_change(UnixSeconds(100)), Some(UnixSeconds(300)));
    assert_eq!(ring.next_change(UnixSeconds(300)), Some(UnixSeconds(5000)));
    assert_eq!(ring.next_change(UnixSeconds(9000)), None);
}

/// Another mark may be offered at any time, and a client whose tokens are still accepted has no other way to learn of it.
#[test]
fn a_challenge_with_a_mark_is_not_kept_for_long() {
    let (_, key) = entry(Some(0), Some(5000));
    let ring = Keyring::default()
        .updated(&directory(vec![key]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let marked = |_| Some(Mark::new([2; 16]));
    let value = ring.challenge(&offer(), marked, UnixSeconds(100)).unwrap();
    assert_eq!(Challenge::parse_all(value.as_bytes()).unwrap()[0].max_age, Some(600));
}

#[test]
fn the_outlook_tells_keys_to_come_from_keys_that_have_retired() {
    let ring = |entries| {
        Keyring::default()
            .updated(&directory(entries), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
            .unwrap()
    };
    let two = ring(vec![entry(Some(100), Some(200)).1, entry(Some(300), Some(400)).1]);
    let outlook = |now| two.outlook(UnixSeconds(now));
    assert_eq!(Keyring::default().outlook(UnixSeconds(1)), Outlook::None);
    assert_eq!(outlook(99), Outlook::Upcoming { known: 2, first: UnixSeconds(100) });
    assert_eq!(outlook(150), Outlook::Usable);
    assert_eq!(outlook(250), Outlook::Upcoming { known: 2, first: UnixSeconds(300) });
    assert_eq!(outlook(400), Outlook::Retired { known: 2, last: UnixSeconds(400) });
}

/// An issuer may rotate now, or restore a backup: its key may be older than the withdrawn one.
#[test]
fn a_key_that_was_taken_back_is_not_asked_for_however_new_it_is() {
    let ((_, old), (_, new), (_, next)) =
        (entry(Some(40), Some(5000)), entry(Some(100), Some(5000)), entry(Some(205), Some(5000)));
    let update = |ring: &Keyring, entries, now| {
        ring.updated(&directory(entries), &mut Accepted::public(), LIFETIMES, UnixSeconds(now))
    };
    let before = update(&Keyring::default(), vec![new.clone(), next.clone()], 150).unwrap();
    let after = update(&before, vec![old.clone()], 200).unwrap();
    let asked = |ring: &Keyring, now| {
        let value = ring.challenge(&offer(), marked, UnixSeconds(now)).unwrap();
        Challenge::parse_all(value.as_bytes()).unwrap().remove(0)
    };
    assert_eq!(asked(&before, 200).token_key, Some(new.key_bytes().unwrap()));
    // Neither the newer key nor the upcoming one.
    for now in [200, 206] {
        assert_eq!(asked(&after, now).token_key, Some(old.key_bytes().unwrap()), "at {now}");
        assert_eq!(asked(&after, now).max_age, Some(600));
    }
    let newest = after.view(UnixSeconds(206)).into_iter().filter(|key| key.phase == KeyPhase::Newest);
    assert_eq!(newest.count(), 1);
}

#[test]
fn people_see_every_key_that_has_not_retired_with_its_phase_and_age() {
    let ((timeless, first), (old, second), (new, third), (next, fourth)) = (
        entry(None, Some(500)),
        entry(Some(40), Some(400)),
        entry(Some(100), Some(300)),
        entry(Some(250), Some(600)),
    );
    let ring = Keyring::default().updated(
        &directory(vec![first, second, third, fourth]),
        &mut Accepted::public(),
        LIFETIMES,
        UnixSeconds(1),
    );
    let ring = ring.unwrap();
    let view = |now| {
        let keys = ring.view(UnixSeconds(now)).into_iter();
        let age = |key: &KeyView| key.age.map(|age| age.as_secs());
        let mut keys: Vec<_> =
            keys.map(|key| (key.id, key.phase.as_str(), age(&key), key.retires.0)).collect();
        keys.sort_by_key(|key| key.3);
        keys
    };
    let (older, newest, upcoming) =
        (KeyPhase::Older.as_str(), KeyPhase::Newest.as_str(), KeyPhase::Upcoming.as_str());
    let rest = [(old, older, Some(209), 400), (timeless, older, None, 500), (next, upcoming, Some(0), 600)];
    assert_eq!(view(249), [&[(new, newest, Some(149), 300)], &rest[..]].concat());
    assert_eq!(view(250)[3], (next, newest, Some(0), 600));
    assert_eq!(view(299).len(), 4);
    assert_eq!(view(300).first(), Some(&(old, older, Some(260), 400)));
}

#[test]
fn the_epochs_of_keys_to_come_are_there_and_those_of_retired_ones_are_not() {
    let ((now, first), (next, second)) = (entry(Some(100), Some(300)), entry(Some(200), Some(400)));
    let ring = Keyring::default()
        .updated(&directory(vec![first, second]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let unretired = |at| ring.unretired(UnixSeconds(at)).map(|epoch| epoch.key).collect::<Vec<_>>();
    let good = |at| ring.epochs(UnixSeconds(at)).map(|epoch| epoch.key).collect::<Vec<_>>();
    assert_eq!((unretired(99), good(99)), (vec![next, now], vec![]));
    assert_eq!((unretired(199), good(199)), (vec![next, now], vec![now]));
    assert_eq!((unretired(299), good(299)), (vec![next, now], vec![next, now]));
    assert_eq!((unretired(300), good(300)), (vec![next], vec![next]));
    assert_eq!((unretired(400), good(400)), (vec![], vec![]));
}

fn offer() -> Offer {
    offer_of(TokenTypes::PUBLIC)
}

fn offer_of(types: TokenTypes) -> Offer {
    let config = ChallengeConfig {
        issuer_name: "issuer.example".into(),
        origin: "proxy.example".into(),
        max_age: postern_config::ConfigDuration::hours(1),
    };
    Offer::new(&config, types, KeyTypes::default()).unwrap()
}

/// A private key is skipped until its secret is present, and each type has a separate challenge.
#[test]
fn each_accepted_type_with_a_key_is_offered_in_order_of_preference() {
    let home = tempfile::tempdir().unwrap();
    let (types, private) = (TokenTypes::new(&[5, 2]).unwrap(), TokenType::VoprfRistretto255);
    let secret = SigningKey::generate(private).unwrap();
    let signing = SigningKey::from_secret(private, &secret).unwrap();
    let listed =
        directory(vec![entry(None, None).1, DirectoryKey::new(private, signing.public_key(), None, None)]);
    let read = || Accepted::read(types, Some(home.path()));
    let offered = |ring: &Keyring, types| {
        let value = ring.challenge(&offer_of(types), marked, UnixSeconds(2)).unwrap();
        let challenges = Challenge::parse_all(value.as_bytes()).unwrap();
        let of = |challenge: &Challenge| challenge.token_challenge().unwrap().token_type().code();
        challenges.iter().map(of).collect::<Vec<_>>()
    };

    let mut accepted = read();
    let without = Keyring::default().updated(&listed, &mut accepted, LIFETIMES, UnixSeconds(1)).unwrap();
    assert_eq!((offered(&without, types), accepted.passed_over.is_some()), (vec![2], true));
    let file = home.path().join("1-2-3-00000000.type5");
    std::fs::write(&file, postern_token::key_file::write(private, &secret)).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut accepted = read();
    let ring = without.updated(&listed, &mut accepted, LIFETIMES, UnixSeconds(1)).unwrap();
    assert_eq!((offered(&ring, types), accepted.passed_over), (vec![5, 2], None));
    assert_eq!(offered(&ring, TokenTypes::PUBLIC), [2]);
    assert!(ring.find(signing.id(), UnixSeconds(2)).is_ok());
    let phases: Vec<_> = ring.view(UnixSeconds(2)).iter().map(|key| key.phase).collect();
    assert_eq!(phases, [KeyPhase::Newest, KeyPhase::Newest]);
}

/// The issuer signs only with the newest key: while its secret is missing, other types are requested, if there are any.
#[test]
fn a_type_whose_newest_key_has_no_secret_here_is_left_to_the_others() {
    let home = tempfile::tempdir().unwrap();
    let private = TokenType::VoprfRistretto255;
    let mut listed = vec![entry(None, None).1];
    for (index, (begins, ends)) in [(1, 500), (100, 900)].into_iter().enumerate() {
        let secret = SigningKey::generate(private).unwrap();
        let public = SigningKey::from_secret(private, &secret).unwrap().public_key().to_vec();
        listed.push(DirectoryKey::new(private, &public, Some(UnixSeconds(begins)), Some(UnixSeconds(ends))));
        let file = home.path().join(format!("{index}.type5{}", if index == 0 { "" } else { ".later" }));
        std::fs::write(&file, postern_token::key_file::write(private, &secret)).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let updated = |ring: &Keyring, codes: &[u16]| {
        let mut accepted = Accepted::read(TokenTypes::new(codes).unwrap(), Some(home.path()));
        ring.updated(&directory(listed.clone()), &mut accepted, LIFETIMES, UnixSeconds(50)).unwrap()
    };
    let offered = |ring: &Keyring, codes: &[u16], now| {
        let offer = offer_of(TokenTypes::new(codes).unwrap());
        let value = ring.challenge(&offer, marked, UnixSeconds(now)).unwrap();
        let challenges = Challenge::parse_all(value.as_bytes()).unwrap();
        let of = |challenge: &Challenge| {
            (challenge.token_challenge().unwrap().token_type().code(), challenge.max_age)
        };
        challenges.iter().map(of).collect::<Vec<_>>()
    };

    let ring = updated(&Keyring::default(), &[5, 2]);
    let at = |now| offered(&ring, &[5, 2], now);
    assert_eq!(at(60)[0], (5, Some(40)), "the old key until the new one begins");
    assert_eq!(at(99).len(), 2);
    assert_eq!(at(100).iter().map(|(code, _)| *code).collect::<Vec<_>>(), [2]);
    let alone = updated(&Keyring::default(), &[5]);
    assert_eq!(offered(&alone, &[5], 100)[0].0, 5, "there is nothing else to offer");

    std::fs::rename(home.path().join("1.type5.later"), home.path().join("1.type5")).unwrap();
    let whole = updated(&ring, &[5, 2]);
    assert_eq!(offered(&whole, &[5, 2], 100).iter().map(|(code, _)| *code).collect::<Vec<_>>(), [5, 2]);
}

const MARK: Mark = Mark::new([1; 16]);

fn marked(_: TokenKeyId) -> Option<Mark> {
    Some(MARK)
}

/// A challenge for tokens that cannot be bound would request tokens that no gateway accepts.
#[test]
fn the_newest_key_whose_binding_is_known_is_requested() {
    let ((old, first), (new, second)) = (entry(Some(0), Some(5000)), entry(Some(100), Some(5000)));
    let ring = Keyring::default()
        .updated(&directory(vec![first, second]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let requested = |known: &[TokenKeyId]| {
        let binding = |key| if known.contains(&key) { Some(MARK) } else { None };
        ring.requested(TokenType::BlindRsa2048, binding, UnixSeconds(150))
            .map(|(key, mark)| (key.key.id(), mark))
    };
    assert_eq!(requested(&[old, new]), Some((new, MARK)));
    assert_eq!(requested(&[old]), Some((old, MARK)));
    assert_eq!(requested(&[]), None);
}

/// After a forced rotation the old key's tokens are accepted for a while, and the new key's first mark is not planted yet.
#[test]
fn a_key_that_is_no_longer_listed_is_requested_while_no_other_is_bound() {
    let ((old, first), (new, second)) = (entry(Some(0), Some(5000)), entry(Some(100), Some(5000)));
    let ring = Keyring::default()
        .updated(&directory(vec![first]), &mut Accepted::public(), LIFETIMES, UnixSeconds(1))
        .unwrap();
    let ring =
        ring.updated(&directory(vec![second]), &mut Accepted::public(), LIFETIMES, UnixSeconds(150)).unwrap();
    let requested = |known: &[TokenKeyId]| {
        let binding = |key| if known.contains(&key) { Some(MARK) } else { None };
        ring.requested(TokenType::BlindRsa2048, binding, UnixSeconds(150)).map(|(key, _)| key.key.id())
    };
    assert_eq!(requested(&[old]), Some(old));
    assert_eq!(requested(&[old, new]), Some(new));
}
