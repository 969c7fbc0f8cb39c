//! Clients' `Proxy-Authorization` fields, and the answer to each.

use postern_token::header::{Presentation, parse_authorization};
use postern_token::{Token, encode_base64url};

/// A token of type 2: 472 characters, no padding.
fn type2() -> String {
    encode_base64url(&crate::known::token_bytes())
}

/// A token of type 1: 195 characters and one `=`.
fn type1() -> String {
    encode_base64url(&[&[0, 1][..], &[7; 144]].concat())
}

enum Expected {
    Token,
    OtherScheme,
    Refused(&'static str),
}
use Expected::{OtherScheme, Refused, Token as Accepted};

/// In each value `T` stands for a token of type 2, `S` for one of type 1 with and `s` without its padding.
const CASES: &[(&str, Expected)] = &[
    // As the RFC has it, and as clients write it.
    ("PrivateToken token=\"<T>\"", Accepted),
    ("PrivateToken token=<T>", Accepted),
    ("PrivateToken token=\"<S>\"", Accepted),
    ("PrivateToken token=<S>", Accepted),
    ("PrivateToken token=\"<s>\"", Accepted),
    ("PrivateToken token=<s>", Accepted),
    ("PrivateToken token=\"<T>\" extensions=\"AAAA\"", Accepted), // Chromium
    ("PrivateToken token=\"<s>\" extensions=\"AAAA\"", Accepted),
    ("PrivateToken extensions=\"AAAA\", token=\"<T>\"", Accepted),
    ("PrivateToken extensions=AAAA token=<T>", Accepted),
    ("privatetoken TOKEN=\"<T>\"", Accepted),
    ("PRIVATETOKEN Token=<T>", Accepted),
    ("PrivateToken   token = \"<T>\"", Accepted),
    ("\tPrivateToken\ttoken=\"<T>\" ,, ", Accepted),
    // Unknown parameters are ignored, whatever they hold, however often they occur.
    ("PrivateToken realm=\"a\\\"b, token=c\", token=<T>, x=1, x=2", Accepted),
    ("PrivateToken token=<T>, empty=\"\", bare=", Accepted),
    // Other schemes besides ours.
    ("Basic Zm9v, PrivateToken token=\"<T>\"", Accepted),
    ("Basic Zm9v==, PrivateToken token=\"<T>\"", Accepted),
    ("Basic Zm9v== PrivateToken token=\"<T>\"", Accepted),
    ("PrivateToken token=\"<T>\", Basic Zm9v==", Accepted),
    ("PrivateToken token=<S>, Basic Zm9v==", Accepted),
    ("Negotiate, PrivateToken token=\"<T>\"", Accepted),
    ("Negotiate YII/+a==, PrivateToken token=\"<T>\", NTLM", Accepted),
    ("Digest username=\"a\\\"b\", nc=00000001, uri=/x?y=z, PrivateToken token=\"<T>\"", Accepted),
    ("PrivateToken token=\"<T>\", Digest token=\"not ours\"", Accepted),
    ("Bearer a.b-c, PrivateToken token=\"<T>\"", Accepted),
    // Nothing of ours.
    ("", OtherScheme),
    (" , ", OtherScheme),
    ("Basic Zm9v==", OtherScheme),
    ("Bearer <T>", OtherScheme),
    ("Digest token=\"<T>\"", OtherScheme),
    ("PrivateTokens token=\"<T>\"", OtherScheme),
    // No token, or more than one.
    (
        "PrivateToken",
        Refused("the PrivateToken credentials have no token parameter; write PrivateToken token=\"…\""),
    ),
    (
        "PrivateToken <T>",
        Refused("the PrivateToken credentials have no token parameter; write PrivateToken token=\"…\""),
    ),
    (
        "PrivateToken realm=x, Basic token=",
        Refused("the PrivateToken credentials have no token parameter; write PrivateToken token=\"…\""),
    ),
    (
        "PrivateToken token=",
        Refused("the token parameter is empty; write PrivateToken token=\"…\" with a base64url token"),
    ),
    (
        "PrivateToken token=, x=1",
        Refused("the token parameter is empty; write PrivateToken token=\"…\" with a base64url token"),
    ),
    (
        "PrivateToken token=\"\"",
        Refused("the token parameter is empty; write PrivateToken token=\"…\" with a base64url token"),
    ),
    ("PrivateToken token=<T>, token=<T>", Refused("more than one token is presented; send exactly one")),
    ("PrivateToken token=<T>, TOKEN=\"x\"", Refused("more than one token is presented; send exactly one")),
    ("PrivateToken token=<T>, token=", Refused("more than one token is presented; send exactly one")),
    (
        "PrivateToken token=<T>, PrivateToken token=<S>",
        Refused("more than one token is presented; send exactly one"),
    ),
    // Broken grammar.
    (
        "token=<T>",
        Refused(
            "the header value is malformed: the parameter at byte 0 belongs to no scheme; begin with PrivateToken and a space",
        ),
    ),
    (
        "PrivateToken token=\"<T>",
        Refused("the header value is malformed: the quotation mark at byte 19 is never closed"),
    ),
    (
        "PrivateToken token=\"<T>\\",
        Refused("the header value is malformed: the quotation mark at byte 19 is never closed"),
    ),
    (
        "PrivateToken token=\"AA\\IA\"",
        Refused(
            "the header value is malformed: byte 22 is a backslash inside a quoted value; base64url needs none",
        ),
    ),
    (
        "PrivateToken token=\"AAIA\"; x=1",
        Refused(
            "the header value is malformed: byte 25 (;) cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken token=\"AAIA\"token=\"AAIA\"",
        Refused(
            "the header value is malformed: byte 25 (t) cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken token=AA\"IA\"",
        Refused(
            "the header value is malformed: byte 21 (\\\") cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken \"<T>\"",
        Refused(
            "the header value is malformed: byte 13 (\\\") cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken \0token=<T>",
        Refused(
            "the header value is malformed: byte 13 (\\u{0}) cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken\r\ntoken=<T>",
        Refused(
            "the header value is malformed: byte 12 (\\r) cannot stand there; separate parameters with commas",
        ),
    ),
    (
        "PrivateToken tokén=<T>",
        Refused(
            "the header value is malformed: byte 16 (\\u{c3}) cannot stand there; separate parameters with commas",
        ),
    ),
    // Broken base64url.
    (
        "PrivateToken token=\"AA+A\"",
        Refused(
            "the token parameter is not base64url: byte 2 of the value (+) is outside its alphabet; this is plain base64: write - for + and _ for /",
        ),
    ),
    (
        "PrivateToken token=\"AAAA/AAA\"",
        Refused(
            "the token parameter is not base64url: byte 4 of the value (/) is outside its alphabet; this is plain base64: write - for + and _ for /",
        ),
    ),
    (
        "PrivateToken token=\"AA\r\nAA\"",
        Refused(
            "the token parameter is not base64url: byte 2 of the value (\\r) is outside its alphabet; write the value in one piece",
        ),
    ),
    (
        "PrivateToken token=\"AA\x01A\"",
        Refused("the token parameter is not base64url: byte 2 of the value (\\u{1}) is outside its alphabet"),
    ),
    (
        "PrivateToken token=\"<T>=\"",
        Refused(
            "the token parameter is not base64url: byte 472 of the value (=) is outside its alphabet; padding stands only at the end, and never more than the length asks for",
        ),
    ),
    (
        "PrivateToken token=\"AA=A\"",
        Refused(
            "the token parameter is not base64url: byte 2 of the value (=) is outside its alphabet; padding stands only at the end, and never more than the length asks for",
        ),
    ),
    (
        "PrivateToken token=\"AAAAA\"",
        Refused(
            "the token parameter is not base64url: no whole number of bytes has 5 characters: the value was cut or padded wrongly",
        ),
    ),
    (
        "PrivateToken token=\"AAB\"",
        Refused(
            "the token parameter is not base64url: byte 2 of the value (B), its last character, has bits that belong to no byte: the value was cut or altered",
        ),
    ),
    // Not a token.
    (
        "PrivateToken token=\"AA\"",
        Refused(
            "the token parameter does not hold a token: token_type takes 2 bytes from byte 0 on; the value has 1 in all",
        ),
    ),
    (
        "PrivateToken token=\"AAIA\"",
        Refused(
            "the token parameter does not hold a token: nonce takes 32 bytes from byte 2 on; the value has 3 in all",
        ),
    ),
    (
        "PrivateToken token=\"<T>AAAA\"",
        Refused(
            "the token parameter does not hold a token: the last field ends at byte 354, but the value has 357 bytes",
        ),
    ),
    (
        "PrivateToken token=\"AAAA<T>\"",
        Refused("the token parameter does not hold a token: token_type at byte 0 is not a known type"),
    ),
    (
        "PrivateToken token=\"<T><T>\"",
        Refused("the token parameter is not base64url: it holds more than the 354 bytes that belong here"),
    ),
];

fn written(case: &str) -> String {
    let padded = type1();
    case.replace("<T>", &type2()).replace("<S>", &padded).replace("<s>", padded.trim_end_matches('='))
}

#[test]
fn every_case() {
    for (case, expected) in CASES {
        let value = written(case);
        match (parse_authorization(value.as_bytes()), expected) {
            (Ok(Presentation::Token(token)), Accepted) => {
                let first = if case.contains("<T>") { type2() } else { type1() };
                assert_eq!(encode_base64url(token.as_bytes()), first, "{case}");
            }
            (Ok(Presentation::OtherScheme), OtherScheme) => {}
            (Err(error), Refused(sentence)) => assert_eq!(error.to_string(), *sentence, "{case}"),
            (outcome, _) => panic!("{case}: {outcome:?}"),
        }
    }
}

#[test]
fn a_token_cut_at_any_character_or_byte_is_refused() {
    let (text, bytes) = (type2(), crate::known::token_bytes());
    for length in 0..text.len() {
        assert!(
            parse_authorization(format!("PrivateToken token=\"{}\"", &text[..length]).as_bytes()).is_err()
        );
    }
    for length in 0..bytes.len() {
        assert!(Token::parse(&bytes[..length]).is_err());
    }
}

#[test]
fn a_token_of_the_wrong_length_for_its_type_says_so() {
    let with_code = |code: u16, length: usize| [&code.to_be_bytes()[..], &vec![1; length - 2]].concat();
    let refusal = |bytes: &[u8]| Token::parse(bytes).unwrap_err().to_string();
    for (code, length) in [(1, 146), (2, 354), (5, 162), (0xDA7A, 354)] {
        assert_eq!(Token::parse(&with_code(code, length)).unwrap().as_bytes().len(), length);
        let authenticator = length - 98;
        assert_eq!(
            refusal(&with_code(code, length - 1)),
            format!(
                "authenticator takes {authenticator} bytes from byte 98 on; the value has {} in all",
                length - 1
            )
        );
        assert_eq!(
            refusal(&with_code(code, length + 1)),
            format!("the last field ends at byte {length}, but the value has {} bytes", length + 1)
        );
    }
    assert_eq!(refusal(&with_code(3, 354)), "token_type at byte 0 is not a known type");
}

/// The `privacypass` crate's parser takes bare, padded values of one scheme alone. What it takes, so do we, to the same
/// token; what it refuses beyond that is in `CASES`.
#[test]
fn we_accept_what_the_privacypass_crate_accepts() {
    use privacypass::{auth::authorize::parse_authorization_header, public_tokens::PublicToken};
    let mut accepted = Vec::new();
    let bare = ["PrivateToken token=<T>AAAA", "privatetoken token=<T>,PrivateToken token=<T>"];
    for case in CASES.iter().map(|(case, _)| *case).chain(bare) {
        let value = written(case);
        let Ok(header) = http::HeaderValue::from_str(&value) else { continue };
        let theirs: Result<PublicToken, _> = parse_authorization_header(&header);
        let Ok(theirs) = theirs else { continue };
        accepted.push(case);
        if let Ok(Presentation::Token(ours)) = parse_authorization(value.as_bytes()) {
            assert_eq!(ours.authenticator(), theirs.authenticator(), "{case}");
            accepted.pop();
        }
    }
    // It drops trailing bytes, and takes the first of several tokens: a second spelling of a spent token, and a token
    // that the client did not mean to spend. Where it is right, we agree; so only these are left.
    assert_eq!(accepted, bare);
    let plain = http::HeaderValue::from_str(&written("PrivateToken token=<T>")).unwrap();
    assert!(parse_authorization_header::<_>(&plain).is_ok_and(|_: PublicToken| true)); // so it can read one at all
}
