//! Servers' `Proxy-Authenticate` fields, and a client's reading of them.

use postern_token::header::Challenge;
use postern_token::{ChallengeError, TokenChallenge, TokenType, encode_base64url};

const CONTEXT: [u8; 32] = [9; 32];

fn challenge(context: Option<[u8; 32]>) -> TokenChallenge {
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", context, &["proxy.example:8080"]).unwrap()
}

/// `<C>` stands for a challenge of 54 bytes (72 characters), `<P>` for one with a context, 86 bytes (115 characters and
/// one `=`), `<p>` for the same without padding, `<K>` for its key.
fn written(case: &str) -> String {
    let [c, p] = [None, Some(CONTEXT)].map(|context| encode_base64url(&challenge(context).serialize()));
    let key = encode_base64url(&crate::known::spki());
    case.replace("<C>", &c).replace("<P>", &p).replace("<p>", p.trim_end_matches('=')).replace("<K>", &key)
}

/// Challenges in short: with a context or not, with a key or not, and max-age.
type Short = (bool, bool, Option<u64>);

fn parse(value: &str) -> Result<Vec<Short>, String> {
    let found = Challenge::parse_all(value.as_bytes()).map_err(|error| error.to_string())?;
    let short = |found: Challenge| {
        let has_context = found.token_challenge().unwrap().redemption_context() == Some(&CONTEXT);
        assert!(found.token_key.as_ref().is_none_or(|key| *key == crate::known::spki()));
        (has_context, found.token_key.is_some(), found.max_age)
    };
    Ok(found.into_iter().map(short).collect())
}

#[test]
fn what_is_accepted() {
    let cases: &[(&str, &[Short])] = &[
        ("PrivateToken challenge=\"<C>\", token-key=\"<K>\", max-age=60", &[(false, true, Some(60))]),
        ("PrivateToken challenge=<P>, token-key=<K>, max-age=60", &[(true, true, Some(60))]),
        ("PrivateToken challenge=\"<p>\" token-key=<K> max-age=\"60\"", &[(true, true, Some(60))]),
        ("privatetoken MAX-AGE=0,Token-Key=<K>,Challenge=<p>", &[(true, true, Some(0))]),
        ("PrivateToken challenge=<P>", &[(true, false, None)]),
        ("PrivateToken challenge=<C>, max-age=99999999999999999999999", &[(false, false, Some(u64::MAX))]),
        ("PrivateToken challenge=<C>, realm=\"a\\\"b\", realm=c", &[(false, false, None)]),
        (
            "PrivateToken challenge=<C>, PrivateToken challenge=<P>",
            &[(false, false, None), (true, false, None)],
        ),
        ("Basic realm=\"x, PrivateToken\", PrivateToken challenge=<C>, Bearer", &[(false, false, None)]),
        ("Negotiate, PrivateToken challenge=<C>, Basic challenge=x", &[(false, false, None)]),
        ("Basic realm=x", &[]),
        ("", &[]),
        // A broken challenge does not spoil a good one in the same field.
        ("PrivateToken challenge=+, PrivateToken challenge=<C>", &[(false, false, None)]),
        ("PrivateToken challenge=<C>, PrivateToken token-key=<K>", &[(false, false, None)]),
    ];
    for (case, expected) in cases {
        assert_eq!(parse(&written(case)).as_deref(), Ok(*expected), "{case}");
    }
}

#[test]
fn what_is_refused_and_why() {
    let cases = [
        (
            "PrivateToken challenge=, max-age=1",
            "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it",
        ),
        (
            "PrivateToken",
            "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it",
        ),
        (
            "PrivateToken max-age=1",
            "a PrivateToken challenge has no challenge parameter, or an empty one; RFC 9577, section 2.1.2 requires it",
        ),
        (
            "PrivateToken challenge=<C>, challenge=<C>",
            "the challenge parameter occurs twice in one PrivateToken challenge",
        ),
        (
            "PrivateToken challenge=<C>, token-key=AA, token-key=AA",
            "the token-key parameter occurs twice in one PrivateToken challenge",
        ),
        (
            "PrivateToken challenge=<C>, max-age=1, max-age=1",
            "the max-age parameter occurs twice in one PrivateToken challenge",
        ),
        ("PrivateToken challenge=<C>, max-age=-1", "the max-age parameter is not a whole number of seconds"),
        ("PrivateToken challenge=<C>, max-age=1.5", "the max-age parameter is not a whole number of seconds"),
        ("PrivateToken challenge=<C>, max-age=", "the max-age parameter is not a whole number of seconds"),
        (
            "PrivateToken challenge=<C>, token-key=\"A+\"",
            "the token-key parameter is not base64url: byte 1 of the value (+) is outside its alphabet; this is plain base64: write - for + and _ for /",
        ),
        (
            "PrivateToken challenge=\"A\"",
            "the challenge parameter is not base64url: no whole number of bytes has 1 characters: the value was cut or padded wrongly",
        ),
        (
            "PrivateToken challenge=\"A\\A\"",
            "the header value is malformed: byte 25 is a backslash inside a quoted value; base64url needs none",
        ),
        (
            "PrivateToken challenge=\"AA",
            "the header value is malformed: the quotation mark at byte 23 is never closed",
        ),
        (
            "challenge=AA",
            "the header value is malformed: the parameter at byte 0 belongs to no scheme; begin with PrivateToken and a space",
        ),
    ];
    for (case, sentence) in cases {
        assert_eq!(parse(&written(case)), Err(sentence.to_owned()), "{case}");
    }
}

#[test]
fn we_write_what_strict_readers_read() {
    use privacypass::auth::authenticate::parse_www_authenticate_header;
    for context in [None, Some(CONTEXT)] {
        let offered = Challenge {
            bytes: challenge(context).serialize(),
            token_key: Some(crate::known::spki()),
            max_age: Some(60),
        };
        let quoted = offered.format();
        assert_eq!(quoted.matches('"').count(), 4);
        assert_eq!(Challenge::parse_all(quoted.as_bytes()).unwrap(), std::slice::from_ref(&offered));
        let bare = quoted.replace('"', "");
        // The privacypass crate refuses quotation marks.
        let theirs = parse_www_authenticate_header(&http::HeaderValue::from_str(&bare).unwrap()).unwrap();
        assert_eq!(theirs[0].token_challenge().serialize().unwrap(), offered.bytes);
        assert_eq!((theirs[0].token_key(), theirs[0].max_age()), (&crate::known::spki()[..], Some(60)));
    }
}

#[test]
fn challenges_are_written_strictly_and_read_strictly() {
    let new =
        |issuer: &str, origins: &[&str]| TokenChallenge::new(TokenType::BlindRsa2048, issuer, None, origins);
    for wrong in ["", "two words", "a,b", "user@host", "höst", "a/b", &"x".repeat(65536)] {
        assert_eq!(new(wrong, &[]), Err(ChallengeError::IssuerName), "{wrong}");
    }
    for wrong in ["", "two words", "a,b", "user@host"] {
        assert_eq!(new("issuer.example", &[wrong]), Err(ChallengeError::OriginName), "{wrong}");
    }
    let longest = "x".repeat(65535);
    assert!(
        new("[2001:db8::1]:443", &[&longest])
            .is_ok_and(|one| TokenChallenge::parse(&one.serialize()) == Ok(one))
    );
    assert_eq!(new("i", &[&longest, "y"]), Err(ChallengeError::OriginInfoLength));

    let refusal = |bytes: &[u8]| TokenChallenge::parse(bytes).unwrap_err().to_string();
    let good = challenge(Some(CONTEXT)).serialize();
    for length in 0..good.len() {
        assert!(TokenChallenge::parse(&good[..length]).is_err());
    }
    assert_eq!(
        refusal(&[good.clone(), vec![0]].concat()),
        "the last field ends at byte 71, but the value has 72 bytes"
    );
    assert_eq!(refusal(b"\0\x02\0\0\0\0\0"), "issuer_name at byte 4 is empty");
    assert_eq!(refusal(b"\0\x02\0\x01\n\0\0\0"), "issuer_name at byte 4 is not printable ASCII");
    assert_eq!(
        refusal(b"\0\x02\0\x01i\x01x\0\0"),
        "redemption_context at byte 5 must be 0 or 32 bytes long (RFC 9577, section 2.1.1)"
    );
    assert_eq!(
        refusal(b"\0\x02\0\x01i\0\0\x03a b"),
        "origin_info at byte 8 is not printable ASCII without spaces"
    );
    assert_eq!(refusal(b"\0\x02\0\x01i\0\0\x03a,,"), "origin_info at byte 8 holds an empty name");
}

#[test]
fn an_origin_is_named_without_regard_to_case() {
    let challenge = challenge(None);
    assert!(challenge.names_origin("PROXY.example:8080"));
    assert!(!challenge.names_origin("proxy.example"));
    let any = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &[]).unwrap();
    assert!(any.names_origin("any.example"));
}
