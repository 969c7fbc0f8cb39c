//! The key in use at a time, and identifiers that do not show their contents.

use postern_token::header::{Presentation, parse_authorization};
use postern_token::*;
use std::sync::Arc;

fn key() -> Arc<VerifyingKey> {
    let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    Arc::new(VerifyingKey::from_spki(signing.public_key()).unwrap())
}

fn trusted(key: &Arc<VerifyingKey>, not_before: u64, not_after: u64) -> TrustedKey {
    let window = Window { not_before: UnixSeconds(not_before), not_after: UnixSeconds(not_after) };
    TrustedKey::new(Arc::clone(key), window)
}

#[test]
fn a_key_is_good_from_its_first_second_to_the_one_before_its_last() {
    let key = key();
    let set = KeySet::new([trusted(&key, 100, 200)]);
    let find = |now| set.find(key.id(), UnixSeconds(now)).map(|found| found.key.id());
    assert_eq!(find(99), Err(KeyRefusal::NotYet));
    assert_eq!(find(100), Ok(key.id()));
    assert_eq!(find(199), Ok(key.id()));
    assert_eq!(find(200), Err(KeyRefusal::Retired));
    assert_eq!(find(u64::MAX), Err(KeyRefusal::Retired));
    assert_eq!(set.find(TokenKeyId([0; 32]), UnixSeconds(150)).err(), Some(KeyRefusal::Unknown));
    for now in [0, 99, 100, 199, 200, u64::MAX] {
        let window = set.iter().next().unwrap().window;
        assert_eq!(window.contains(UnixSeconds(now)), find(now).is_ok(), "{now}");
        assert_eq!(set.newest(UnixSeconds(now)).is_some(), find(now).is_ok(), "{now}");
    }
}

#[test]
fn of_overlapping_keys_the_newest_in_use_is_asked_for_and_both_are_accepted() {
    let (old, new) = (key(), key());
    let set = KeySet::new([trusted(&old, 0, 200), trusted(&new, 100, 300)]);
    let newest = |now| set.newest(UnixSeconds(now)).map(|found| found.key.id());
    assert_eq!(newest(99), Some(old.id()));
    assert_eq!(newest(100), Some(new.id()));
    assert_eq!(newest(299), Some(new.id()));
    assert_eq!(newest(300), None);
    assert!(set.find(old.id(), UnixSeconds(150)).is_ok() && set.find(new.id(), UnixSeconds(150)).is_ok());
}

#[test]
fn of_two_windows_for_one_key_the_first_counts() {
    let key = key();
    let set = KeySet::new([trusted(&key, 0, 100), trusted(&key, 0, 200)]);
    assert_eq!(set.iter().count(), 1);
    assert_eq!(set.find(key.id(), UnixSeconds(100)).err(), Some(KeyRefusal::Retired));
    assert!(KeySet::default().is_empty());
    assert!(KeySet::new([trusted(&key, 0, 1)]).find(key.id(), UnixSeconds(0)).is_ok());
    let always = TrustedKey::new(Arc::clone(&key), Window::ALWAYS);
    assert!(KeySet::new([always]).find(key.id(), UnixSeconds(u64::MAX - 1)).is_ok());
}

#[test]
fn a_directory_offers_the_first_key_in_use() {
    let entry = |before: Option<u64>, after: Option<u64>| {
        DirectoryKey::new(
            TokenType::BlindRsa2048,
            &crate::known::spki(),
            before.map(UnixSeconds),
            after.map(UnixSeconds),
        )
    };
    let directory = Directory {
        issuer_request_uri: "/issue".to_owned(),
        token_keys: vec![
            DirectoryKey { token_type: 1, ..entry(None, None) },
            entry(Some(100), None),
            entry(None, Some(50)),
            entry(Some(10), Some(100)),
        ],
        batch_limit: None,
        revoked: Vec::new(),
    };
    let preferred = |now| {
        let found = directory.preferred(TokenType::BlindRsa2048, UnixSeconds(now))?;
        directory.token_keys.iter().position(|key| key == found)
    };
    assert_eq!(preferred(0), Some(2));
    assert_eq!(preferred(49), Some(2));
    assert_eq!(preferred(50), Some(3));
    assert_eq!(preferred(99), Some(3));
    assert_eq!(preferred(100), Some(1));
    assert_eq!(Directory::parse(&directory.serialize()).unwrap(), directory);
    assert_eq!(directory.token_keys[0].key_bytes().unwrap(), crate::known::spki());

    let foreign = br#"{"issuer-request-uri":"https://i.example/r","x":1,"token-keys":[{"token-type":2,"token-key":"AA","y":{}}]}"#;
    assert_eq!(Directory::parse(foreign).unwrap().token_keys[0].key_bytes().unwrap(), [0]);
    let error = Directory::parse(b"{\"token-keys\":[]}").unwrap_err().to_string();
    assert_eq!(
        error,
        "not an issuer directory (RFC 9578, section 4): missing field `issuer-request-uri` at line 1 column 17"
    );
}

#[test]
fn keys_are_read_in_their_one_spelling() {
    let spki = crate::known::spki();
    assert!(VerifyingKey::from_spki(&spki).is_ok() && IssuerKey::from_spki(&spki).is_ok());
    for at in (0..81).chain(spki.len() - 5..spki.len()) {
        let mut other = spki.clone();
        other[at] ^= 1;
        assert!(
            VerifyingKey::from_spki(&other).is_err() && IssuerKey::from_spki(&other).is_err(),
            "byte {at}"
        );
    }
    let rsa_encryption =
        [&hex::decode("30820122300d06092a864886f70d01010105000382010f00").unwrap(), &spki[72..]].concat();
    assert_eq!(VerifyingKey::from_spki(&rsa_encryption).err(), Some(KeyError::RsaEncryption));
    assert_eq!(VerifyingKey::from_spki(&[&spki[..], &[0]].concat()).err(), Some(KeyError::NotAType2Key));
}

/// Whatever is printed with `{:?}`: no eight bytes of the contents in hex, in base64url or as a list of numbers.
#[test]
fn debug_shows_nothing_that_could_link_a_token_to_anyone() {
    let bytes = crate::known::token_bytes();
    let token = Token::parse(&bytes).unwrap();
    let issuer = IssuerKey::from_spki(&crate::known::spki()).unwrap();
    let (request, pending) = issuer.request(token.challenge_digest()).unwrap();
    let request_bytes = request.serialize();
    let response = TokenResponse::parse(TokenType::BlindRsa2048, &[0xA7; 256]).unwrap();
    let input =
        TokenInput::new(token.token_type(), token.nonce(), token.challenge_digest(), token.token_key_id());
    let value = header::format_authorization(&token);
    let presented = parse_authorization(value.as_bytes()).unwrap();
    assert!(matches!(presented, Presentation::Token(_)));
    let inspected = inspect(&value).unwrap();
    let refused = inspect(&format!("{value};")).unwrap_err();
    let spent = token.spent_key();
    let secret: [&[u8]; 5] =
        [&bytes[2..34], &bytes[98..], &request_bytes[3..], response.as_bytes(), spent.as_bytes()];
    let shown = format!(
        "{token:?} {:?} {:?} {input:?} {pending:?} {request:?} {response:?} {presented:?} {inspected:?} {refused:?}",
        token.nonce(),
        spent,
    );
    for contents in secret {
        for part in contents.windows(4) {
            let hexadecimal = hex::encode(part);
            assert!(!shown.to_lowercase().contains(&hexadecimal), "{hexadecimal} in {shown}");
            let list = format!("{part:?}");
            assert!(!shown.contains(list.trim_matches(['[', ']'])), "{list} in {shown}");
        }
        for shift in 0..3 {
            let text = encode_base64url(&contents[shift..]);
            let pieces = text.as_bytes().chunks(8).map(|piece| str::from_utf8(piece).unwrap());
            for piece in pieces.filter(|piece| piece.len() == 8) {
                assert!(!shown.contains(piece), "{piece} in {shown}");
            }
        }
    }
    assert!(shown.contains("Token(type 2, redacted)") && shown.contains("PendingToken(redacted)"));
}

/// Records outlive releases: this value may never change.
#[test]
fn the_spent_key_is_the_hash_that_the_store_contract_names() {
    let spent = SpentKey::derive(TokenType::BlindRsa2048, TokenKeyId([3; 32]), Nonce([4; 32]));
    let expected = "32ef48498eb3c77720a63f03e231ad63edcfe814cae7a991db615ebe858ec8cc";
    assert_eq!(hex::encode(spent.as_bytes()), expected);
    assert_eq!(SpentKey::from_bytes(*spent.as_bytes()), spent);
}
