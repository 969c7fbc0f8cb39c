//! Our verification and that of `blind-rsa-signatures` agree: on tokens the issuer signed, and on thousands that
//! someone tampered with.

use blind_rsa_signatures::{BlindSignature, DefaultRng, Deterministic, PSS, PublicKey, Sha384, Signature};
use postern_token::*;
use proptest::prelude::*;
use std::sync::LazyLock;

struct Issued {
    spki: Vec<u8>,
    ours: VerifyingKey,
    theirs: PublicKey<Sha384, PSS, Deterministic>,
    tokens: Vec<Token>,
}

/// Two keys with eight tokens each.
static ISSUED: LazyLock<[Issued; 2]> = LazyLock::new(|| std::array::from_fn(|_| issue()));

fn issue() -> Issued {
    let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let issuer = IssuerKey::from_spki(signing.public_key()).unwrap();
    let token = |number: u8| {
        let (request, pending) = issuer.request(ChallengeDigest::of(&[number])).unwrap();
        pending.finalize(&signing.sign(&request).unwrap()).unwrap()
    };
    Issued {
        spki: signing.public_key().to_vec(),
        ours: VerifyingKey::from_spki(signing.public_key()).unwrap(),
        theirs: PublicKey::from_spki(signing.public_key()).unwrap(),
        tokens: (0..8).map(token).collect(),
    }
}

impl Issued {
    /// Returns the verdict, on which both libraries must agree. Ours also checks the type and the key id, which are signed; for the
    /// other one, this function does.
    fn verdict(&self, bytes: &[u8]) -> Result<bool, TestCaseError> {
        let signature = Signature(bytes[98..].to_vec());
        let is_signed = self.theirs.verify(&signature, None, &bytes[..98]).is_ok();
        let is_named = bytes[..2] == [0, 2] && bytes[66..98] == TokenKeyId::of(&self.spki).0;
        let ours = Token::parse(bytes).is_ok_and(|token| self.ours.verify(&token).is_ok());
        prop_assert_eq!(ours, is_signed && is_named);
        Ok(ours)
    }

    fn modulus(&self) -> &[u8] {
        &self.spki[81..81 + 256]
    }
}

#[test]
fn what_was_issued_is_valid_under_its_key_alone() {
    let [first, second] = &*ISSUED;
    for token in &first.tokens {
        assert!(first.verdict(token.as_bytes()).unwrap());
        assert!(!second.verdict(token.as_bytes()).unwrap());
    }
}

#[test]
fn every_flipped_bit_makes_a_token_invalid() {
    let issued = &ISSUED[0];
    let bytes = issued.tokens[0].as_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(!issued.verdict(&flipped).unwrap(), "bit {bit}");
    }
}

/// An issuer signs blind, so a client may have it sign a token that names another key or type. Such a token has a different
/// spent key: if accepted, it could be spent once under each name.
#[test]
fn a_good_signature_over_another_key_id_or_type_is_refused() {
    let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let ours = VerifyingKey::from_spki(signing.public_key()).unwrap();
    let theirs = PublicKey::<Sha384, PSS, Deterministic>::from_spki(signing.public_key()).unwrap();
    let verify = |token_type, id| {
        let input = TokenInput::new(token_type, Nonce([1; 32]), ChallengeDigest([2; 32]), id);
        let blinding = theirs.blind(&mut DefaultRng, input.as_bytes()).unwrap();
        let request = TokenRequest::new(signing.id(), blinding.blind_message.0.clone().try_into().unwrap());
        let response = BlindSignature(signing.sign(&request).unwrap().as_bytes().to_vec());
        let signature = theirs.finalize(&response, &blinding, input.as_bytes()).unwrap();
        ours.verify(&Token::assemble(&input, &signature).unwrap())
    };
    assert_eq!(verify(TokenType::BlindRsa2048, signing.id()), Ok(()));
    assert_eq!(verify(TokenType::BlindRsa2048, TokenKeyId([3; 32])), Err(BadSignature));
    assert_eq!(verify(TokenType::PartiallyBlindRsa, signing.id()), Err(BadSignature));
}

/// The same signature plus a multiple of the modulus would be a second spelling of one token.
#[test]
fn signatures_out_of_range_are_refused() {
    let issued = &ISSUED[0];
    let modulus = issued.modulus();
    for token in &issued.tokens {
        let (signed, signature) = token.as_bytes().split_at(98);
        let sum = add(signature, modulus); // where it fits into 256 bytes, which is up to the key
        let one = [&[0; 255][..], &[1]].concat();
        for wrong in [
            Some(modulus.to_vec()),
            sum,
            add(modulus, &one),
            Some(vec![0; 256]),
            Some(one),
            Some(vec![255; 256]),
        ] {
            let Some(wrong) = wrong else { continue };
            assert!(!issued.verdict(&[signed, &wrong].concat()).unwrap());
        }
    }
}

/// Big-endian addition; none when the sum does not fit.
fn add(left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let mut sum = left.to_vec();
    let mut carry = 0;
    for (digit, right) in sum.iter_mut().zip(right).rev() {
        let total = u16::from(*digit) + u16::from(*right) + carry;
        (*digit, carry) = (total.to_le_bytes()[0], total >> 8);
    }
    (carry == 0).then_some(sum)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn on_tampered_tokens(
        key in 0_usize..2,
        index in 0_usize..8,
        other in 0_usize..8,
        flips in proptest::collection::vec((0_usize..354, any::<u8>()), 0..3),
        swap in prop::option::of(prop_oneof![Just(2..34), Just(34..66), Just(66..98), Just(98..354), Just(0..98)]),
    ) {
        let issued = &ISSUED[key];
        let mut bytes = issued.tokens[index].as_bytes().to_vec();
        if let Some(field) = swap {
            let donor = &ISSUED[usize::from(other % 2 == 0)].tokens[other];
            bytes[field.clone()].copy_from_slice(&donor.as_bytes()[field]);
        }
        for (at, with) in flips {
            bytes[at] ^= with;
        }
        let untouched = bytes == issued.tokens[index].as_bytes();
        let whole = ISSUED[key].tokens.iter().any(|token| token.as_bytes() == bytes);
        prop_assert_eq!(issued.verdict(&bytes)?, untouched || whole);
    }

    #[test]
    fn on_arbitrary_signatures(signature in proptest::collection::vec(any::<u8>(), 256), low: bool) {
        let issued = &ISSUED[0];
        let mut bytes = issued.tokens[0].as_bytes().to_vec();
        bytes[98..].copy_from_slice(&signature);
        if low {
            bytes[98] = 0; // surely below the modulus
        }
        prop_assert!(!issued.verdict(&bytes)?);
    }

    #[test]
    fn on_truncated_tokens(cut in 0_usize..354) {
        prop_assert!(Token::parse(&ISSUED[0].tokens[0].as_bytes()[..cut]).is_err());
    }
}
