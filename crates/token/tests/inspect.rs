//! The output of `postern token inspect` for good and broken values.

use postern_token::header::Challenge;
use postern_token::{TokenChallenge, TokenType, encode_base64url, inspect};

fn token() -> String {
    encode_base64url(&crate::known::token_bytes())
}

fn challenge_bytes() -> Vec<u8> {
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", Some([9; 32]), &["a.example", "b.example"])
        .unwrap()
        .serialize()
}

fn header() -> String {
    let bytes = challenge_bytes();
    Challenge { bytes, token_key: Some(crate::known::spki()), max_age: Some(60) }.format()
}

fn field(value: &str, name: &str) -> String {
    let found = inspect(value).unwrap();
    let field = found.fields().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    field.unwrap_or_else(|| panic!("no {name} in:\n{found}"))
}

#[test]
fn a_token_is_told_field_by_field() {
    let bytes = crate::known::token_bytes();
    for value in [
        format!("PrivateToken token=\"{}\"", token()),
        format!("Proxy-Authorization: PrivateToken token={}", token()),
        format!("  authorization:PrivateToken extensions=x, token={} \r\n", token()),
        token(),
        format!("{}\n", token()),
    ] {
        assert_eq!(field(&value, "token type"), "2 (blind RSA 2048)");
        assert_eq!(field(&value, "nonce"), hex::encode(&bytes[2..34]));
        assert_eq!(field(&value, "challenge digest"), hex::encode(&bytes[34..66]));
        assert_eq!(field(&value, "token key id"), hex::encode(&bytes[66..98]));
        assert_eq!(field(&value, "authenticator"), format!("256 bytes, {}", hex::encode(&bytes[98..])));
    }
    let unpadded = format!(
        "PrivateToken token={} extensions=x",
        encode_base64url(&[&[0, 1][..], &[7; 144]].concat()).trim_end_matches('=')
    );
    assert_eq!(field(&unpadded, "token type"), "1 (VOPRF P-384)");
    assert!(field(&unpadded, "spelling").starts_with("base64url without its padding"));
    assert_eq!(field(&unpadded, "ignored parameters"), "extensions");
}

#[test]
fn a_challenge_is_told_field_by_field() {
    for value in [
        header(),
        format!("Proxy-Authenticate: Basic realm=x, {}", header()),
        format!("www-authenticate: {}", header()),
    ] {
        assert_eq!(field(&value, "token type"), "2 (blind RSA 2048)");
        assert_eq!(field(&value, "issuer name"), "issuer.example");
        assert_eq!(field(&value, "redemption context"), "09".repeat(32));
        assert_eq!(field(&value, "origins"), "a.example, b.example");
        assert_eq!(field(&value, "token key"), "342 bytes");
        assert_eq!(field(&value, "max-age"), "60 seconds");
        let id = field(&value, "token key id");
        assert_eq!(field(&value, "truncated key id"), format!("0x{}", &id[62..]));
    }
    let bare = encode_base64url(&challenge_bytes());
    assert_eq!(field(&bare, "origins"), "a.example, b.example");
    assert_eq!(field(&bare, "challenge digest"), field(&header(), "challenge digest"));
    assert_eq!(field(&encode_base64url(&crate::known::spki()), "token key"), "342 bytes");
    let any =
        encode_base64url(&TokenChallenge::new(TokenType::VoprfP384, "i", None, &[]).unwrap().serialize());
    assert_eq!(
        (field(&any, "origins"), field(&any, "redemption context")),
        ("any".to_owned(), "none".to_owned())
    );
}

#[test]
fn the_whole_page_for_two_challenges() {
    let grease = Challenge { bytes: vec![0, 0, 0xAC, 0xC3], token_key: None, max_age: None };
    let small = TokenChallenge::new(TokenType::VoprfP384, "issuer.example", None, &[]).unwrap().serialize();
    let small = Challenge { bytes: small, token_key: Some(vec![2; 49]), max_age: None };
    let value = format!("{}, {}, x=y", grease.format(), small.format().replace('"', ""));
    let page = inspect(&value).unwrap().to_string();
    let mut lines = page.lines();
    let mut next = || lines.next().unwrap();
    assert_eq!(next(), "PrivateToken challenge 1 of 2: 4 bytes");
    assert_eq!(next(), "  token type          0 (unknown); clients pass over it");
    assert!(next().starts_with("  challenge digest    "));
    assert_eq!(next(), "  token key           absent; the client fetches it from the directory");
    assert_eq!(next(), "  max-age             absent");
    assert_eq!((next(), next()), ("", "PrivateToken challenge 2 of 2: 21 bytes"));
    assert_eq!(next(), "  token type          1 (VOPRF P-384)");
    assert_eq!(next(), "  issuer name         issuer.example");
    assert_eq!(next(), "  redemption context  none");
    assert_eq!(next(), "  origins             any");
    assert!(next().starts_with("  challenge digest    "));
    assert_eq!(next(), "  token key           49 bytes");
    assert!(next().starts_with("  token key id        ") && next().starts_with("  truncated key id    0x"));
    assert_eq!((next(), next()), ("  max-age             absent", "  ignored parameters  x"));
    assert_eq!(lines.next(), None);
}

/// Each case: a broken value, the byte at which it goes wrong, and the end of the error's sentence.
fn assert_refused(cases: Vec<(String, Option<usize>, &str)>) {
    for (value, offset, sentence) in cases {
        let error = inspect(&value).unwrap_err();
        assert!(error.sentence().ends_with(sentence), "{value}: {}", error.sentence());
        assert_eq!(error.offset(), offset, "{value}: {error}");
    }
}

#[test]
fn the_first_wrong_byte_of_a_header_is_named_in_the_whole_value() {
    let good = token();
    assert_refused(vec![
        (String::new(), None, "there is nothing to inspect"),
        ("Proxy-Authorization: ".to_owned(), None, "there is nothing to inspect"),
        (
            "Basic Zm9v, Bearer x".to_owned(),
            Some(0),
            "no PrivateToken scheme is in this value, which begins with \"Basic\"",
        ),
        (
            "proxy-authenticate:Basic realm=x".to_owned(),
            Some(19),
            "no PrivateToken scheme is in this value, which begins with \"Basic\"",
        ),
        ("PrivateToken".to_owned(), None, "have no token parameter; write PrivateToken token=\"…\""),
        (
            "PrivateToken token=".to_owned(),
            Some(19),
            "the token parameter is empty; write PrivateToken token=\"…\" with a base64url token",
        ),
        (
            format!("PrivateToken token={good}, token=x"),
            Some(499),
            "more than one token is presented; send exactly one",
        ),
        (format!("PrivateToken token=\"{good}"), Some(19), "the quotation mark at byte 19 is never closed"),
        (
            format!("Authorization: PrivateToken token=\"{good}"),
            Some(34),
            "the quotation mark at byte 34 is never closed",
        ),
        (format!("token=\"{good}\""), Some(0), "belongs to no scheme; begin with PrivateToken and a space"),
        (
            "PrivateToken token=\"AA+A\"".to_owned(),
            Some(22),
            "this is plain base64: write - for + and _ for /",
        ),
        ("PrivateToken token=\"AA\\A\"".to_owned(), Some(22), "base64url needs none"),
        ("PrivateToken token=AAAAA".to_owned(), Some(23), "the value was cut or padded wrongly"),
    ]);
}

#[test]
fn the_first_wrong_byte_of_a_token_is_named_in_the_whole_value() {
    let good = token();
    assert_refused(vec![
        (
            format!("PrivateToken token={good}{good}"),
            Some(491),
            "it holds more than the 354 bytes that belong here",
        ),
        (
            format!("PrivateToken token={good}AAAA"),
            Some(491),
            "the last field ends at byte 354, but the value has 357 bytes",
        ),
        (
            format!("PrivateToken token={}", &good[..400]),
            Some(149),
            "authenticator takes 256 bytes from byte 98 on; the value has 300 in all",
        ),
        (
            format!("AAAA{good}"),
            Some(0),
            "neither a challenge nor a token: token_type at byte 0 is not a known type",
        ),
        (good[..40].to_owned(), Some(2), "nonce takes 32 bytes from byte 2 on; the value has 30 in all"),
        (
            "AA%A".to_owned(),
            Some(2),
            "neither a header value nor base64url: byte 2 of the value (%) is outside its alphabet",
        ),
    ]);
}

#[test]
fn the_first_wrong_byte_of_a_challenge_is_named_in_the_whole_value() {
    let challenge = encode_base64url(&challenge_bytes());
    assert_refused(vec![
        (
            challenge[..80].to_owned(),
            Some(70),
            "origin_info takes 19 bytes from byte 53 on; the value has 60 in all",
        ),
        (
            format!("PrivateToken challenge={}", &challenge[..80]),
            Some(93),
            "origin_info takes 19 bytes from byte 53 on; the value has 60 in all",
        ),
        ("PrivateToken challenge=AAIAAAAA".to_owned(), Some(28), "issuer_name at byte 4 is empty"),
        (
            format!("PrivateToken challenge={challenge}, max-age=soon"),
            Some(23 + challenge.len() + 10),
            "the max-age parameter is not a whole number of seconds",
        ),
        (
            format!("PrivateToken challenge={challenge}, challenge=AA"),
            Some(23 + challenge.len() + 12),
            "the challenge parameter occurs twice in one PrivateToken challenge",
        ),
        (
            format!("PrivateToken challenge={challenge}, token-key=AAAA"),
            Some(23 + challenge.len() + 12),
            "SHA-384 and salt length 48 (RFC 9578, section 6.5)",
        ),
        (
            format!("PrivateToken challenge={challenge}, PrivateToken token-key=AAAA"),
            None,
            "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it",
        ),
        (
            format!(
                "PrivateToken challenge={challenge}, max-age=1, Basic max-age=x, PrivateToken max-age=, challenge=AA, PrivateToken max-age=1"
            ),
            Some(23 + challenge.len() + 51),
            "the max-age parameter is not a whole number of seconds",
        ),
        ("PrivateToken challenge=AA, token-key=\"A+\"".to_owned(), Some(39), "write - for + and _ for /"),
        // Of two with one name, the one that is wrong.
        ("PrivateToken challenge=\"A+\", challenge=AA".to_owned(), Some(25), "write - for + and _ for /"),
        ("PrivateToken challenge=AA, challenge=\"A+\"".to_owned(), Some(39), "write - for + and _ for /"),
        (
            "Proxy-Authenticate:PrivateToken max-age=x, max-age=1".to_owned(),
            Some(40),
            "is not a whole number of seconds",
        ),
        (
            "Proxy-Authenticate:PrivateToken max-age=1, max-age=x".to_owned(),
            Some(51),
            "is not a whole number of seconds",
        ),
        (
            "Proxy-Authenticate:PrivateToken max-age=1, max-age=1, max-age=1".to_owned(),
            Some(51),
            "occurs twice in one PrivateToken challenge",
        ),
        ("MIIBUjA9".to_owned(), Some(0), "SHA-384 and salt length 48 (RFC 9578, section 6.5)"),
    ]);
}

#[test]
fn a_caret_points_at_the_byte() {
    let value = format!("Proxy-Authorization: PrivateToken token=\"{}+{}\"", &token()[..50], &token()[50..]);
    let error = inspect(&value).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3);
    let caret = lines[2].find('^').unwrap();
    assert_eq!(lines[1].as_bytes()[caret], b'+');
    assert!(lines[2].ends_with("^ byte 91"));
    // A character of several bytes before it, and one that would move the cursor.
    let error = inspect("é\r, PrivateToken token=").unwrap_err().to_string();
    assert_eq!(error.lines().last(), Some("  ^ byte 0"));
    let error = inspect("PrivateToken realm=\"é\u{1b}é\", token=\"A+\"").unwrap_err().to_string();
    assert_eq!(error.lines().nth(1), Some("  ateToken realm=\"???\", token=\"A+\""));
    assert_eq!(error.lines().last(), Some(&*format!("  {}^ byte 36", " ".repeat(30))));
}
