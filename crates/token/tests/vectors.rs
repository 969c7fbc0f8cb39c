//! Known answers: RFC 9474 (appendix A), RFC 9577 and RFC 9578 (appendices), and type 2 issuance as implementations in
//! Rust, Go and TypeScript did it. `vectors/README.md` has the source of each file.

use crate::known::{FixedRng, hex, load, text};
use base64::Engine as _;
use postern_token::header::{Challenge, Presentation, format_authorization, parse_authorization};
use postern_token::*;
use serde_json::Value;

/// One file of type 2 issuance, and how many vectors are in it: an empty file shall not pass.
macro_rules! issuance {
    ($($name:ident: $file:literal, $count:literal;)*) => {$(
        #[test]
        fn $name() {
            let vectors = load(include_str!(concat!("vectors/", $file)));
            assert_eq!(vectors.len(), $count);
            vectors.iter().for_each(issue_and_redeem);
        }
    )*};
}

issuance! {
    issuance_of_rfc_9578: "rfc9578_type2.json", 5;
    issuance_in_rust: "public_rs.json", 5;
    issuance_in_go: "public_go.json", 5;
    issuance_in_rust_batched: "generic_rs_type2.json", 4;
    issuance_in_go_batched: "generic_go_type2.json", 4;
    issuance_in_typescript_batched: "generic_ts_type2.json", 4;
}

/// The whole life of one token. The batched vectors hold the single request and response no more; all others do.
fn issue_and_redeem(vector: &Value) {
    let signing = SigningKey::from_pkcs8(&pkcs8(&hex(vector, "skS"))).unwrap();
    let spki = hex(vector, "pkS");
    assert_eq!(signing.public_key(), spki);
    let challenge = hex(vector, "token_challenge");
    let digest = ChallengeDigest::of(&challenge);
    let read = TokenChallenge::parse(&challenge).unwrap();
    assert_eq!(read.serialize(), challenge);
    assert_eq!((read.digest(), read.token_type()), (digest, TokenType::BlindRsa2048));

    let issuer = IssuerKey::from_spki(&spki).unwrap();
    let mut rng = FixedRng::new(&hex(vector, "nonce"), &hex(vector, "salt"), &hex(vector, "blind"));
    let (request, pending) = issuer.request_with(&mut rng, digest).unwrap();
    assert!(rng.is_used_up());
    assert_eq!(request.truncated_token_key_id, *signing.id().0.last().unwrap());
    let response = signing.sign(&request).unwrap();
    if vector.get("token_request").is_some() {
        let bytes = hex(vector, "token_request");
        assert_eq!(request.serialize().as_slice(), bytes);
        let parsed = TokenRequest::parse(&bytes).unwrap();
        assert!(parsed == request && parsed.serialize().as_slice() == bytes);
        let bytes = hex(vector, "token_response");
        assert_eq!(response.as_bytes(), bytes);
        assert!(TokenResponse::parse(TokenType::BlindRsa2048, &bytes).unwrap() == response);
    }
    let token = pending.finalize(&response).unwrap();
    redeem(&token, &hex(vector, "token"), digest, &spki);
}

fn redeem(token: &Token, bytes: &[u8], digest: ChallengeDigest, spki: &[u8]) {
    assert_eq!(token.as_bytes(), bytes);
    let value = format_authorization(token);
    let Presentation::Token(read) = parse_authorization(value.as_bytes()).unwrap() else {
        panic!("no token")
    };
    assert_eq!(read.as_bytes(), bytes);
    assert_eq!((read.challenge_digest(), read.token_key_id()), (digest, TokenKeyId::of(spki)));
    VerifyingKey::from_spki(spki).unwrap().verify(&read).unwrap();
}

/// The vectors' keys are PEM: base64 between two lines.
pub(crate) fn pkcs8(pem: &[u8]) -> Vec<u8> {
    let lines = str::from_utf8(pem).unwrap().lines().filter(|line| !line.starts_with("-----"));
    base64::engine::general_purpose::STANDARD.decode(lines.collect::<String>()).unwrap()
}

#[test]
fn challenges_and_token_inputs_of_rfc_9577() {
    let vectors = load(include_str!("vectors/rfc9577_challenges.json"));
    let (greased, vectors) = vectors.split_last().unwrap();
    assert_eq!(vectors.len(), 5);
    for vector in vectors {
        let issuer = String::from_utf8(hex(vector, "issuer_name")).unwrap();
        let origins = String::from_utf8(hex(vector, "origin_info")).unwrap();
        let origins: Vec<&str> = origins.split(',').filter(|name| !name.is_empty()).collect();
        let context = hex(vector, "redemption_context").try_into().ok();
        let challenge = TokenChallenge::new(TokenType::BlindRsa2048, &issuer, context, &origins).unwrap();
        assert_eq!(TokenChallenge::parse(&challenge.serialize()).unwrap(), challenge);
        let nonce = Nonce(hex(vector, "nonce").try_into().unwrap());
        let key = TokenKeyId(hex(vector, "token_key_id").try_into().unwrap());
        let input = TokenInput::new(challenge.token_type(), nonce, challenge.digest(), key);
        assert_eq!(input.as_bytes().as_slice(), hex(vector, "token_authenticator_input"));
    }
    // The last one is grease: of an unknown type, so no token.
    let refused = Token::parse(&hex(greased, "token_authenticator_input")).unwrap_err();
    assert_eq!(refused.to_string(), "token_type at byte 0 is not a known type");
}

#[test]
fn headers_of_rfc_9577() {
    let vectors = load(include_str!("vectors/rfc9577_headers.json"));
    assert_eq!(vectors.len(), 3);
    for vector in &vectors {
        let read = Challenge::parse_all(text(vector, "www_authenticate").as_bytes()).unwrap();
        let expected = vector["challenges"].as_array().unwrap();
        assert_eq!(read.len(), expected.len());
        for (read, expected) in read.iter().zip(expected) {
            assert_eq!(read.bytes, hex(expected, "token_challenge"));
            assert_eq!(read.token_key.as_deref(), Some(&hex(expected, "token_key")[..]));
            let max_age = expected.get("max_age").map(|age| age.as_str().unwrap().parse().unwrap());
            assert_eq!(read.max_age, max_age);
            let code =
                u16::from_str_radix(text(expected, "token_type").trim_start_matches("0x"), 16).unwrap();
            assert_eq!(read.bytes[..2], code.to_be_bytes());
            // Grease (type 0) is anything at all behind its type; the others are challenges.
            assert!(code == 0 || read.token_challenge().unwrap().issuer_name() == "issuer.example");
            for value in [read.format(), read.format().replace('"', "")] {
                let again = Challenge::parse_all(value.as_bytes()).unwrap();
                assert_eq!(&again, std::slice::from_ref(read));
            }
        }
    }
}

/// RFC 9474's only vector for our variant has a key of 4096 bits, which no type 2 token may have: so it runs through
/// the two libraries exactly as this crate sets them up.
#[test]
fn blind_signature_of_rfc_9474() {
    use aws_lc_rs::signature::{ParsedPublicKey, RSA_PSS_2048_8192_SHA384};
    use blind_rsa_signatures::{BlindSignature, Deterministic, PSS, PublicKey, SecretKey, Sha384};
    use rsa::{BoxedUint, RsaPrivateKey};

    let vector = &load(include_str!("vectors/rfc9474_a3.json"))[0];
    let number = |name| BoxedUint::from_be_slice_vartime(&hex(vector, name));
    let primes = vec![number("p"), number("q")];
    let private = RsaPrivateKey::from_components(number("n"), number("e"), number("d"), primes).unwrap();
    let secret = SecretKey::<Sha384, PSS, Deterministic>::new(private);
    let public: PublicKey<Sha384, PSS, Deterministic> = secret.public_key().unwrap();
    let message = hex(vector, "prepared_msg");

    let mut rng = FixedRng::new(&hex(vector, "salt"), &[], &hex(vector, "blind"));
    let blinding = public.blind(&mut rng, &message).unwrap();
    assert_eq!(blinding.blind_message.0, hex(vector, "blinded_msg"));
    assert_eq!(blinding.secret.0, hex(vector, "inv"));
    let blind_signature: BlindSignature = secret.blind_sign(&blinding.blind_message).unwrap();
    assert_eq!(blind_signature.0, hex(vector, "blind_sig"));
    let signature = public.finalize(&blind_signature, &blinding, &message).unwrap();
    assert_eq!(signature.0, hex(vector, "sig"));

    let fast = ParsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, public.to_der().unwrap()).unwrap();
    fast.verify_sig(&message, &signature.0).unwrap();
    assert!(fast.verify_sig(&message[1..], &signature.0).is_err());
}
