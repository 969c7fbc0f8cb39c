//! Faults of a token, each refused with a 407 that names the fault; and the many right ways to write a token.

use crate::support::client::{Client, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Issuer, Running, challenge, directory};
use postern_token::header::format_authorization;
use postern_token::{
    ChallengeDigest, Nonce, Token, TokenInput, TokenKeyId, TokenType, UnixSeconds, encode_base64url,
};
use std::net::SocketAddr;

fn header_of(bytes: &[u8]) -> String {
    format!("PrivateToken token=\"{}\"", encode_base64url(bytes))
}

/// Presents each value on its own connection and expects the 407 with `details`.
async fn assert_407(gateway: SocketAddr, target: SocketAddr, cases: &[(&str, String, &str)]) {
    for (case, value, details) in cases {
        let answer = Client::ask(gateway, connect_with(target, &[value])).await;
        println!("{case}");
        answer.assert_refused(407, "http_request_denied", details);
    }
}

#[tokio::test]
async fn a_token_that_is_not_one_is_refused_and_the_answer_names_the_fault() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let good = ISSUER.token();
    let bytes = good.as_bytes();
    let text = encode_base64url(bytes);
    let longer = [bytes, b"\0"].concat();
    let much_longer = [bytes, &[7; 500]].concat();
    let cases = [
        ("another scheme", "Basic dXNlcjpwYXNz".into(), "no PrivateToken credentials"),
        ("no parameter", "PrivateToken".into(), "no token parameter"),
        ("another parameter", "PrivateToken foo=bar".into(), "no token parameter"),
        ("empty", "PrivateToken token=\"\"".into(), "empty"),
        ("empty and bare", "PrivateToken token=".into(), "empty"),
        ("one byte less", header_of(&bytes[..353]), "does not hold a token"),
        ("one byte", header_of(&bytes[..1]), "does not hold a token"),
        ("one byte more", header_of(&longer), "does not hold a token"),
        ("500 bytes more", header_of(&much_longer), "token"),
        ("base64 of the other alphabet", format!("PrivateToken token=\"{}+/\"", &text[..470]), "base64url"),
        ("a space inside", format!("PrivateToken token=\"{} {}\"", &text[..9], &text[9..]), "base64url"),
        ("an escape inside", format!("PrivateToken token=\"\\{text}\""), "backslash"),
        ("an open quotation mark", format!("PrivateToken token=\"{text}"), "never closed"),
        ("twice", format!("PrivateToken token=\"{text}\", token=\"{text}\""), "more than one token"),
        (
            "in two credentials",
            format!("PrivateToken token={text}, PrivateToken token={text}"),
            "more than one",
        ),
    ];
    assert_407(gateway.address, echo.address, &cases).await;
    // None of them cost the token anything.
    let mut client = Client::connect(gateway.address).await;
    client.send(connect_with(echo.address, &[&format_authorization(&good)])).await;
    client.answer().await.assert_opened();
    assert_eq!(echo.came().await, 1);
}

#[tokio::test]
async fn a_token_of_another_type_challenge_or_key_or_with_a_bad_signature_is_refused() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let of_type = |token_type: TokenType, authenticator: usize| {
        let key = TokenKeyId::of(ISSUER.public_key());
        let input = TokenInput::new(token_type, Nonce([1; 32]), challenge().digest(), key);
        format_authorization(&Token::assemble(&input, &vec![7; authenticator]).unwrap())
    };
    let unknown_type = [&[0x12, 0x34][..], &[0; 352]].concat();
    let mutated = |at: usize| {
        let mut bytes = ISSUER.token().as_bytes().to_vec();
        bytes[at] ^= 1;
        header_of(&bytes)
    };
    let elsewhere = format_authorization(&ISSUER.token_for(ChallengeDigest::of(b"another challenge")));
    let stranger = Issuer::new().authorization();
    let cases = [
        ("type 1", of_type(TokenType::VoprfP384, 48), "type 1 (VOPRF P-384) are not accepted here"),
        ("type 5", of_type(TokenType::VoprfRistretto255, 64), "type 5"),
        ("type 0xDA7A", of_type(TokenType::PartiallyBlindRsa, 256), "type 55930"),
        ("an unknown type", header_of(&unknown_type), "type"),
        ("issued for another challenge", elsewhere, "another challenge"),
        ("the digest's first bit", mutated(34), "signature is not valid"),
        ("an unknown issuer", stranger, "does not know"),
        ("the key id's last bit", mutated(97), "does not know"),
        ("the nonce", mutated(2), "signature is not valid"),
        ("the signature's first byte", mutated(98), "signature is not valid"),
        ("the signature's last byte", mutated(353), "signature is not valid"),
    ];
    assert_407(gateway.address, echo.address, &cases).await;
    assert_eq!(echo.came().await, 0);
}

#[tokio::test]
async fn tokens_of_retired_keys_and_of_keys_to_come_are_refused() {
    let (retired, coming) = (Issuer::new(), Issuer::new());
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let now = UnixSeconds::now().0;
    let keys = directory(vec![
        // Further ahead than the hour that `assert_challenge` expects: a challenge lasts until the successor begins.
        coming.entry(Some(now + 7200), Some(now + 10_800)),
        ISSUER.entry(Some(now - 60), Some(now + 86_400)),
        retired.entry(Some(now - 7200), Some(now - 1)),
    ]);
    std::fs::write(gateway.home().join("keys.json"), keys).unwrap();
    gateway.shutdown.reload();
    // The reload has no event; the answer changes when it is done.
    loop {
        let request = connect_with(echo.address, &[&coming.authorization()]);
        let answer = Client::ask(gateway.address, request).await;
        if answer.proxy_status().details.unwrap().contains("not in use yet") {
            break;
        }
    }
    let cases = [
        ("retired", retired.authorization(), "a key that has been retired"),
        ("to come", coming.authorization(), "a key that is not in use yet"),
    ];
    assert_407(gateway.address, echo.address, &cases).await;
    let authorization = ISSUER.authorization();
    Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await.assert_opened();
}

/// The right ways to write a token, as real clients do. `{}` is the token, base64url without padding.
const SPELLINGS: &[&str] = &[
    "PrivateToken token=\"{}\"",
    "PrivateToken token={}",
    "privatetoken TOKEN={}",
    "PrivateToken token=\"{}\" extensions=\"AAA=\"",
    "PrivateToken token=\"{}\", extensions=\"AAA=\", foo=bar",
    "PrivateToken foo=\"a, b\", token={}",
    "PrivateToken   token = \"{}\"  ",
    "Basic dXNlcjpwYXNz, PrivateToken token=\"{}\"",
    "PrivateToken token=\"{}\", Basic dXNlcjpwYXNz",
];

#[tokio::test]
async fn a_token_is_read_however_it_is_written_and_is_one_token_in_every_spelling() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    for first in SPELLINGS {
        let token = encode_base64url(ISSUER.token().as_bytes());
        let spell = |spelling: &str| spelling.replace("{}", &token);
        let answer = Client::ask(gateway.address, connect_with(echo.address, &[&spell(first)])).await;
        println!("{first}");
        answer.assert_opened();
        for second in SPELLINGS {
            let answer = Client::ask(gateway.address, connect_with(echo.address, &[&spell(second)])).await;
            println!("{first} and then {second}");
            answer.assert_refused(407, "http_request_denied", "token already spent");
        }
    }
    assert_eq!(echo.came().await, SPELLINGS.len());
}

#[tokio::test]
async fn of_two_authorization_fields_the_one_with_our_scheme_counts_and_two_tokens_are_refused() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let basic = "Basic dXNlcjpwYXNz";
    let (first, second) = (ISSUER.authorization(), ISSUER.authorization());
    let ask = async |values: &[&str]| Client::ask(gateway.address, connect_with(echo.address, values)).await;
    ask(&[&first, &second]).await.assert_refused(
        400,
        "http_request_error",
        "more than one Proxy-Authorization",
    );
    ask(&[&first, &first]).await.assert_refused(
        400,
        "http_request_error",
        "more than one Proxy-Authorization",
    );
    ask(&[basic, basic]).await.assert_refused(407, "http_request_denied", "no PrivateToken credentials");
    ask(&["PrivateToken token=!", &first]).await.assert_refused(407, "http_request_denied", "base64url");
    // Neither was spent by that.
    ask(&[basic, &first]).await.assert_opened();
    ask(&[&second, basic]).await.assert_opened();
}
