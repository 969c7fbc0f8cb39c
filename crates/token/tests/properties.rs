//! Properties of every value: nothing panics, what was written is read back, and the parser of credentials agrees with
//! a slow and simple one.

use postern_token::header::{
    AuthorizationError, Challenge, Presentation, format_authorization, parse_authorization,
};
use postern_token::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn token() -> impl Strategy<Value = Token> {
    let kinds = prop_oneof![Just((1_u16, 48)), Just((2, 256)), Just((5, 64)), Just((0xDA7A, 256))];
    kinds.prop_flat_map(|(code, authenticator)| {
        vec(any::<u8>(), 96 + authenticator)
            .prop_map(move |rest| Token::parse(&[&code.to_be_bytes()[..], &rest].concat()).unwrap())
    })
}

fn server_name() -> impl Strategy<Value = String> {
    "[a-z0-9-]{1,20}(\\.[a-z]{2,8})?(:[0-9]{1,5})?"
}

fn token_challenge() -> impl Strategy<Value = TokenChallenge> {
    let context = prop::option::of(any::<[u8; 32]>());
    (any::<u16>(), server_name(), context, vec(server_name(), 0..4)).prop_map(
        |(code, issuer, context, origins)| {
            let origins: Vec<&str> = origins.iter().map(String::as_str).collect();
            TokenChallenge::new(TokenType::from_code(code), &issuer, context, &origins).unwrap()
        },
    )
}

fn spelled(text: &str, quoted: bool, padded: bool) -> String {
    let text = if padded { text } else { text.trim_end_matches('=') };
    if quoted { format!("\"{text}\"") } else { text.to_owned() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn base64url_is_read_back(bytes in vec(any::<u8>(), 0..600), padded: bool) {
        let text = spelled(&encode_base64url(&bytes), false, padded);
        prop_assert_eq!(&decode_base64url_vec(text.as_bytes()).unwrap(), &bytes);
        let mut buffer = vec![0; bytes.len()];
        prop_assert_eq!(decode_base64url(text.as_bytes(), &mut buffer).unwrap(), &bytes);
        if !bytes.is_empty() {
            let short = &mut vec![0; bytes.len() - 1];
            let refused = matches!(decode_base64url(text.as_bytes(), short), Err(Base64Error::TooLong { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn a_value_has_one_spelling_up_to_padding(text in "[A-Za-z0-9_-]{0,40}={0,2}") {
        if let Ok(bytes) = decode_base64url_vec(text.as_bytes()) {
            let again = encode_base64url(&bytes);
            prop_assert_eq!(again.trim_end_matches('='), text.trim_end_matches('='));
        }
    }

    #[test]
    fn a_token_is_read_back_however_it_is_spelled(token in token(), quoted: bool, padded: bool) {
        let again = Token::parse(token.as_bytes()).unwrap();
        prop_assert_eq!(again.as_bytes(), token.as_bytes());
        let text = spelled(&encode_base64url(token.as_bytes()), quoted, padded);
        for value in [format_authorization(&token), format!("privatetoken token={text}")] {
            let Ok(Presentation::Token(read)) = parse_authorization(value.as_bytes()) else {
                return Err(TestCaseError::fail(value));
            };
            prop_assert_eq!(read.as_bytes(), token.as_bytes());
            prop_assert_eq!(read.spent_key(), token.spent_key());
        }
        let input = TokenInput::new(token.token_type(), token.nonce(), token.challenge_digest(), token.token_key_id());
        prop_assert_eq!(input.as_bytes().as_slice(), token.signed_input());
        let joined = Token::assemble(&input, token.authenticator()).unwrap();
        prop_assert_eq!(joined.as_bytes(), token.as_bytes());
    }

    #[test]
    fn a_challenge_is_read_back(challenge in token_challenge()) {
        let bytes = challenge.serialize();
        prop_assert_eq!(challenge.digest(), ChallengeDigest::of(&bytes));
        let read = TokenChallenge::parse(&bytes).unwrap();
        prop_assert_eq!(&read, &challenge);
        for origin in challenge.origin_info() {
            prop_assert!(challenge.names_origin(&origin.to_uppercase()));
        }
    }

    #[test]
    fn whatever_reads_as_a_challenge_is_written_back_the_same(bytes in vec(any::<u8>(), 0..80)) {
        let small = [&[0, 2, 0, 1, b'i', 0][..], &bytes].concat();
        for bytes in [bytes, small] {
            if let Ok(challenge) = TokenChallenge::parse(&bytes) {
                prop_assert_eq!(challenge.serialize(), bytes);
            }
        }
    }

    #[test]
    fn offered_challenges_are_read_back(
        offers in vec((vec(any::<u8>(), 1..90), prop::option::of(vec(any::<u8>(), 1..90)), any::<Option<u64>>()), 1..4),
        bare: bool,
    ) {
        let offers = offers.into_iter().map(|(bytes, token_key, max_age)| Challenge { bytes, token_key, max_age });
        let offers: Vec<Challenge> = offers.collect();
        let quoted = offers.iter().map(Challenge::format).collect::<Vec<_>>().join(", ");
        let value = if bare { quoted.replace('"', "") } else { quoted };
        prop_assert_eq!(Challenge::parse_all(value.as_bytes()).unwrap(), offers);
    }

    #[test]
    fn requests_are_read_back_and_no_other_length_is(blinded in vec(any::<u8>(), 256), id: [u8; 32], cut in 0_usize..259) {
        let request = TokenRequest::new(TokenKeyId(id), blinded.clone().try_into().unwrap());
        let bytes = request.serialize();
        prop_assert!(TokenRequest::parse(&bytes).unwrap() == request);
        prop_assert!(TokenRequest::parse(&bytes[..cut]).is_err());
        prop_assert!(TokenRequest::parse(&[&bytes[..], &[0]].concat()).is_err());
        prop_assert_eq!(TokenResponse::parse(TokenType::BlindRsa2048, &blinded).unwrap().as_bytes().to_vec(), blinded.clone());
        prop_assert!(TokenResponse::parse(TokenType::BlindRsa2048, &blinded[..cut.min(255)]).is_err());
        prop_assert!(TokenResponse::parse(TokenType::BlindRsa2048, &[&blinded[..], &[0]].concat()).is_err());
        let mut other_type = bytes;
        other_type[1] = 1; // whose requests are shorter
        prop_assert!(TokenRequest::parse(&other_type).is_err());
    }

    #[test]
    fn directories_are_read_back(
        uri in "[ -~é]{0,40}",
        batch_limit: Option<u32>,
        revoked in vec("[0-9a-f]{64}", 0..3),
        keys in vec((any::<u16>(), vec(any::<u8>(), 0..50), any::<Option<u64>>(), any::<Option<u64>>()), 0..4),
    ) {
        let key = |(token_type, key, not_before, not_after): (u16, Vec<u8>, Option<u64>, Option<u64>)| DirectoryKey {
            token_type,
            token_key: encode_base64url(&key),
            not_before: not_before.map(UnixSeconds),
            not_after: not_after.map(UnixSeconds),
        };
        let directory = Directory { issuer_request_uri: uri, token_keys: keys.into_iter().map(key).collect(), batch_limit, revoked };
        let json = directory.serialize();
        prop_assert_eq!(&Directory::parse(&json).unwrap(), &directory);
        prop_assert_eq!(directory.serialize(), json);
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..600), text in "(PrivateToken |Basic |token=|challenge=|max-age=|token-key=|[,;= \"\\\\\t]|[A-Za-z0-9+/_é-]{1,9}){0,20}") {
        for bytes in [&bytes[..], text.as_bytes()] {
            let _ = (parse_authorization(bytes).is_ok(), Challenge::parse_all(bytes).is_ok(), Token::parse(bytes).is_ok());
            let _ = (TokenChallenge::parse(bytes).is_ok(), TokenRequest::parse(bytes).is_ok(), Directory::parse(bytes).is_ok());
            let _ = (VerifyingKey::from_spki(bytes).is_ok(), IssuerKey::from_spki(bytes).is_ok());
            match inspect(&String::from_utf8_lossy(bytes)) {
                Ok(found) => prop_assert!(!found.to_string().is_empty()),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn inspect_finds_nothing_wrong_with_what_is_accepted(value in credentials()) {
        let text = value.written();
        let accepted = matches!(parse_authorization(text.as_bytes()), Ok(Presentation::Token(_)));
        prop_assert_eq!(inspect(&format!("Proxy-Authorization: {text}")).is_ok(), accepted);
    }

    #[test]
    fn credentials_are_understood_as_a_simple_reader_does(value in credentials()) {
        let text = value.written();
        let read = parse_authorization(text.as_bytes());
        let agrees = match (value.expected(), &read) {
            (Expected::Other, Ok(Presentation::OtherScheme))
            | (Expected::None, Err(AuthorizationError::NoToken))
            | (Expected::Several, Err(AuthorizationError::SeveralTokens(_))) => true,
            (Expected::One(bytes), Ok(Presentation::Token(token))) => token.as_bytes() == bytes,
            _ => false,
        };
        prop_assert!(agrees, "{text}: {read:?}");
    }
}

/// Credentials as a list of what was meant; the simple reader reads the meaning, the parser under test the text.
#[derive(Clone, Debug)]
struct Credentials(Vec<Scheme>);

#[derive(Clone, Debug)]
struct Scheme {
    name: &'static str,
    body: Body,
    /// Between this and the next.
    comma: &'static str,
}

#[derive(Clone, Debug)]
enum Body {
    Nothing,
    Token68(String),
    Params(Vec<Param>),
}

#[derive(Clone, Debug)]
struct Param {
    name: &'static str,
    value: Value,
    separator: &'static str,
}

#[derive(Clone, Debug)]
enum Value {
    Token(Box<Token>, bool, bool),
    Text(String),
}

enum Expected<'a> {
    Other,
    None,
    Several,
    One(&'a [u8]),
}

fn credentials() -> impl Strategy<Value = Credentials> {
    let ours = prop_oneof![Just("PrivateToken"), Just("privatetoken"), Just("PRIVATETOKEN")];
    let others = prop_oneof![Just("Basic"), Just("Digest"), Just("PrivateTokens"), Just("X-1")];
    let scheme =
        (prop_oneof![3 => ours, 2 => others], body(), prop_oneof![Just(", "), Just(","), Just(" ,\t, ")]);
    vec(scheme.prop_map(|(name, body, comma)| Scheme { name, body, comma }), 0..4).prop_map(Credentials)
}

fn body() -> impl Strategy<Value = Body> {
    let names = prop_oneof![Just("token"), Just("Token"), Just("extensions"), Just("realm"), Just("tokens")];
    let text = prop_oneof!["[A-Za-z0-9._/;-]{1,12}", "\"([ -!#-\\[\\]-~é]|\\\\\"|\\\\\\\\){0,12}\""];
    let separator = prop_oneof![Just(", "), Just(" "), Just(","), Just(" \t, ,")];
    let param = (names, token(), any::<bool>(), any::<bool>(), text, separator).prop_map(
        |(name, token, quoted, padded, text, separator)| {
            let is_token = name.eq_ignore_ascii_case("token");
            let value =
                if is_token { Value::Token(Box::new(token), quoted, padded) } else { Value::Text(text) };
            Param { name, value, separator }
        },
    );
    prop_oneof![
        1 => Just(Body::Nothing),
        1 => "[a-z0-9+/._~-]{5,12}={0,2}".prop_map(Body::Token68),
        4 => vec(param, 1..4).prop_map(Body::Params),
    ]
}

impl Credentials {
    fn written(&self) -> String {
        let mut text = String::new();
        for scheme in &self.0 {
            text += scheme.name;
            match &scheme.body {
                Body::Nothing => {}
                Body::Token68(value) => text += &format!(" {value}"),
                Body::Params(params) => {
                    let mut before = " ";
                    for Param { name, value, separator } in params {
                        let value = match value {
                            Value::Text(text) => text.clone(),
                            Value::Token(token, quoted, padded) => {
                                spelled(&encode_base64url(token.as_bytes()), *quoted, *padded)
                            }
                        };
                        text += &format!("{before}{name}={value}");
                        before = separator;
                    }
                }
            }
            text += scheme.comma;
        }
        text
    }

    fn expected(&self) -> Expected<'_> {
        let ours: Vec<&Scheme> =
            self.0.iter().filter(|scheme| scheme.name.eq_ignore_ascii_case("PrivateToken")).collect();
        let params = ours.iter().filter_map(|scheme| match &scheme.body {
            Body::Params(params) => Some(params),
            _ => None,
        });
        let tokens: Vec<&Token> = params
            .flatten()
            .filter_map(|param| match &param.value {
                Value::Token(token, ..) => Some(&**token),
                Value::Text(_) => None,
            })
            .collect();
        match tokens[..] {
            [] if ours.is_empty() => Expected::Other,
            [] => Expected::None,
            [token] => Expected::One(token.as_bytes()),
            _ => Expected::Several,
        }
    }
}
