//! Issuer side of issuance (RFC 9578, sections 5.2 and 6.2).

use crate::ids::{TokenKeyId, TokenType};
use crate::issuance::{AmortizedRequest, AmortizedResponse, TokenRequest, TokenResponse};
use crate::spki::{self, KeyError};
use crate::voprf::{self, Evaluator};
use postern_raw_rsa::{MODULUS_LEN, PrivateKey, PublicKey, is_in_range};
use rand::TryRng;
use rand::rngs::SysRng;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// An issuer's key, ready to issue tokens of one type.
pub struct SigningKey {
    id: TokenKeyId,
    token_type: TokenType,
    public_key: Box<[u8]>,
    secret: Secret,
}

enum Secret {
    /// Type 2.
    Rsa(PrivateKey),
    /// Type 2, with the private key in an HSM.
    Elsewhere(Box<Elsewhere>),
    /// Types 1 and 5.
    Voprf(Evaluator),
}

/// Error of loading a key or of answering a request with tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    #[error("the issuer key is unusable: {0}")]
    Key(#[source] postern_raw_rsa::Error),
    #[error("the issuer key must have the public exponent 65537")]
    Exponent,
    #[error(
        "not the secret of a key of type {0}: it must be a scalar of 48 bytes for type 1, and of 32 for type 5"
    )]
    Secret(TokenType),
    #[error("there are no keys for token type {0}")]
    NoKeys(TokenType),
    #[error("the system gave no randomness")]
    NoRandomness,
    #[error(
        "the request is for another key (type {asked_type}, truncated token key id {asked:#04x}; this key's are {ours_type} \
         and {ours:#04x})"
    )]
    OtherKey {
        asked_type: TokenType,
        /// Truncated id in the request.
        asked: u8,
        ours_type: TokenType,
        /// Truncated id of this key.
        ours: u8,
    },
    #[error("the blinded message is not a number from 2 to n - 2, for the key's modulus n")]
    OutOfRange,
    #[error("a blinded element is not an element of the type's group, or is its identity")]
    NotAnElement,
    #[error(transparent)]
    Unavailable(Unavailable),
    #[error(
        "the key is not in this process, and where it is has computed a wrong result, which was not given out"
    )]
    WrongResult,
}

impl SigningKey {
    /// Generates a key and returns its secret form, to be kept on disk with mode 0600: PKCS#8 (DER) for type 2, which takes tens
    /// of milliseconds to a second; a scalar of 48 bytes for type 1 and of 32 for type 5. The form is wiped when dropped.
    pub fn generate(token_type: TokenType) -> Result<Zeroizing<Vec<u8>>, SignError> {
        if token_type == TokenType::BlindRsa2048 {
            return Self::generate_pkcs8();
        }
        let lengths = voprf::lengths(token_type).ok_or(SignError::NoKeys(token_type))?;
        let mut seed = Zeroizing::new(vec![0; lengths.scalar]);
        SysRng.try_fill_bytes(&mut seed).map_err(|_| SignError::NoRandomness)?;
        Evaluator::derive(token_type, &seed).map(Zeroizing::new).ok_or(SignError::NoKeys(token_type))
    }

    /// Parses the output of [`SigningKey::generate`] for this type.
    pub fn from_secret(token_type: TokenType, secret: &[u8]) -> Result<Self, SignError> {
        if token_type == TokenType::BlindRsa2048 {
            return Self::from_pkcs8(secret);
        }
        let evaluator = Evaluator::parse(token_type, secret).ok_or(SignError::Secret(token_type))?;
        Ok(Self::new(token_type, &evaluator.public_key(), Secret::Voprf(evaluator)))
    }

    /// Generates a key of type 2: see [`SigningKey::generate`].
    pub fn generate_pkcs8() -> Result<Zeroizing<Vec<u8>>, SignError> {
        PrivateKey::generate_pkcs8().map(Zeroizing::new).map_err(SignError::Key)
    }

    /// Parses a PKCS#8 key of type 2.
    ///
    /// # Errors
    /// Not a PKCS#8 RSA key of 2048 bits with exponent 65537.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, SignError> {
        let private = PrivateKey::from_pkcs8(der).map_err(SignError::Key)?;
        let spki = spki::published(private.public_key_der()).map_err(|_| SignError::Exponent)?;
        Ok(Self::new(TokenType::BlindRsa2048, &spki, Secret::Rsa(private)))
    }

    /// Creates a key of type 2 with this published form, whose private operation runs outside this process.
    pub fn elsewhere(spki: &[u8], operation: Arc<dyn PrivateOperation>) -> Result<Self, KeyError> {
        let elsewhere = Box::new(Elsewhere::new(spki, operation)?);
        Ok(Self::new(TokenType::BlindRsa2048, spki, Secret::Elsewhere(elsewhere)))
    }

    fn new(token_type: TokenType, public_key: &[u8], secret: Secret) -> Self {
        Self { id: TokenKeyId::of(public_key), token_type, public_key: public_key.into(), secret }
    }

    /// Answers one request. Takes hundreds of microseconds of CPU, or milliseconds for type 1: belongs on a bounded pool, not on
    /// an async worker. With a private key outside this process, the thread blocks until the operation ends.
    ///
    /// # Errors
    /// [`SignError::OtherKey`], [`SignError::OutOfRange`] or [`SignError::NotAnElement`], which an issuer answers with 422.
    /// [`SignError::Key`] for a fault of the machine, and with a private key outside this process [`SignError::Unavailable`] or
    /// [`SignError::WrongResult`], answered with 503.
    pub fn sign(&self, request: &TokenRequest) -> Result<TokenResponse, SignError> {
        self.is_meant(request.token_type(), request.truncated_token_key_id)?;
        // The type determines the length, so this conversion never fails for type 2.
        let message =
            || <&[u8; MODULUS_LEN]>::try_from(request.blinded_message()).map_err(|_| SignError::OutOfRange);
        match &self.secret {
            Secret::Rsa(private) => {
                private.apply(message()?).map(TokenResponse::new).map_err(|error| match error {
                    postern_raw_rsa::Error::OutOfRange => SignError::OutOfRange,
                    fault => SignError::Key(fault),
                })
            }
            Secret::Elsewhere(elsewhere) => elsewhere.apply(message()?).map(TokenResponse::new),
            Secret::Voprf(evaluator) => {
                let evaluated = evaluator.evaluate(request.blinded_message());
                let evaluated = evaluated.map_err(|_| SignError::NotAnElement)?;
                Ok(TokenResponse::new([evaluated.elements, evaluated.proof].concat()))
            }
        }
    }

    /// Answers an amortized batch. Its elements share one proof, so each costs less than in a request by itself.
    ///
    /// # Errors
    /// [`SignError::OtherKey`] or [`SignError::NotAnElement`], which an issuer answers with 422.
    pub fn sign_batch(&self, request: &AmortizedRequest) -> Result<AmortizedResponse, SignError> {
        self.is_meant(request.token_type(), request.truncated_token_key_id)?;
        let Secret::Voprf(evaluator) = &self.secret else { return Err(SignError::NotAnElement) };
        let evaluated = evaluator.evaluate(&request.elements).map_err(|_| SignError::NotAnElement)?;
        Ok(AmortizedResponse(evaluated))
    }

    fn is_meant(&self, asked_type: TokenType, asked: u8) -> Result<(), SignError> {
        let (ours_type, ours) = (self.token_type, self.id.truncated());
        if (asked_type, asked) == (ours_type, ours) {
            Ok(())
        } else {
            Err(SignError::OtherKey { asked_type, asked, ours_type, ours })
        }
    }

    /// Returns `true` if the private key is outside this process.
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self.secret, Secret::Elsewhere(_))
    }
}

published_key!(SigningKey);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:?}, type {}, redacted)", self.id, self.token_type.code())
    }
}

/// The operation `message^d mod n` with a private key outside this process.
///
/// The operation must not pad (RFC 8017, section 5.1.2; `CKM_RSA_X_509` of PKCS#11), because a blinded message is padded already
/// (RFC 9474, section 4.3). Network HSMs offer it through PKCS#11, those of cloud providers included. Most key management
/// services with a proprietary interface do not: they pad, or remove a padding.
pub trait PrivateOperation: fmt::Debug + Send + Sync {
    /// Computes the operation. It blocks a thread of the signing pool, so an implementation must apply a timeout. `message` is a
    /// number from 2 to n - 2, big-endian.
    ///
    /// # Errors
    /// [`Unavailable`]. The implementation reports the reason; clients do not see it.
    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable>;

    /// Receives the verdict on a result. A wrong result is discarded; the implementation reports it.
    fn judged(&self, is_right: bool);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not in this process, and where it is does not answer")]
pub struct Unavailable;

/// Returns `true` if the private operation of the key with this modulus and the exponent 65537 gives `result` for `message`.
pub fn is_private_result(
    modulus: &[u8; MODULUS_LEN],
    message: &[u8; MODULUS_LEN],
    result: &[u8; MODULUS_LEN],
) -> bool {
    let public = spki::of_modulus(modulus).and_then(|spki| public_key(&spki));
    public.is_ok_and(|public| public.is_result(message, result))
}

fn public_key(spki: &[u8]) -> Result<PublicKey, KeyError> {
    PublicKey::from_der(spki::rsa_public_key(spki)?).map_err(|_| KeyError::NotAType2Key)
}

/// Public half of a key, and its private operation outside this process: in an HSM, or behind a service that offers the raw RSA
/// operation.
///
/// A result is checked with the public key before it is used. A faulty RSA result can reveal the private key (Boneh, DeMillo and
/// Lipton, 1997), and a token made from it is void.
struct Elsewhere {
    public: PublicKey,
    modulus: [u8; MODULUS_LEN],
    operation: Arc<dyn PrivateOperation>,
}

impl Elsewhere {
    fn new(spki: &[u8], operation: Arc<dyn PrivateOperation>) -> Result<Self, KeyError> {
        Ok(Self { public: public_key(spki)?, modulus: spki::modulus(spki)?, operation })
    }

    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], SignError> {
        if !is_in_range(&self.modulus, message) {
            return Err(SignError::OutOfRange); // before the call, so that a failed call is never the client's fault
        }
        let result = self.operation.apply(message).map_err(SignError::Unavailable)?;
        let is_right = self.public.is_result(message, &result);
        self.operation.judged(is_right);
        if is_right { Ok(result) } else { Err(SignError::WrongResult) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// A private operation that can be unreachable, or wrong in one bit.
    #[derive(Debug)]
    struct Place {
        key: PrivateKey,
        is_away: AtomicBool,
        flips: AtomicBool,
        calls: AtomicUsize,
        verdicts: Mutex<Vec<bool>>,
    }

    impl PrivateOperation for Place {
        fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable> {
            self.calls.fetch_add(1, SeqCst);
            if self.is_away.load(SeqCst) {
                return Err(Unavailable);
            }
            let mut result = self.key.apply(message).unwrap();
            result[17] ^= u8::from(self.flips.load(SeqCst));
            Ok(result)
        }

        fn judged(&self, is_right: bool) {
            self.verdicts.lock().unwrap().push(is_right);
        }
    }

    fn key() -> (Arc<Place>, SigningKey, SigningKey) {
        let pkcs8 = SigningKey::generate_pkcs8().unwrap();
        let place = Arc::new(Place {
            key: PrivateKey::from_pkcs8(&pkcs8).unwrap(),
            is_away: AtomicBool::new(false),
            flips: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            verdicts: Mutex::default(),
        });
        let here = SigningKey::from_pkcs8(&pkcs8).unwrap();
        let there = SigningKey::elsewhere(here.public_key(), place.clone()).unwrap();
        (place, here, there)
    }

    #[test]
    fn it_signs_as_the_key_in_a_file_does_and_refuses_the_same_numbers() {
        let (place, here, there) = key();
        assert_eq!((here.id(), here.public_key()), (there.id(), there.public_key()));
        assert!(there.is_elsewhere() && !here.is_elsewhere());
        let modulus = spki::modulus(here.public_key()).unwrap();
        let number = |last: u8| {
            let mut number = [0; MODULUS_LEN];
            number[MODULUS_LEN - 1] = last;
            number
        };
        let mut largest = modulus; // n - 1: the modulus is odd, so nothing is borrowed
        largest[MODULUS_LEN - 1] -= 1;
        for message in [number(0), number(1), number(2), number(3), [7; MODULUS_LEN]] {
            let request = TokenRequest::new(here.id(), message);
            assert_eq!(here.sign(&request), there.sign(&request));
        }
        let calls = place.calls.load(SeqCst);
        for message in [number(0), number(1), largest, modulus, [0xff; MODULUS_LEN]] {
            let request = TokenRequest::new(here.id(), message);
            assert_eq!(here.sign(&request), Err(SignError::OutOfRange));
            assert_eq!(there.sign(&request), Err(SignError::OutOfRange));
        }
        assert_eq!(place.calls.load(SeqCst), calls, "these do not reach the place");
    }

    #[test]
    fn a_wrong_result_is_discarded_and_reported() {
        let (place, here, there) = key();
        let request = TokenRequest::new(here.id(), [1; MODULUS_LEN]);
        place.flips.store(true, SeqCst);
        assert_eq!(there.sign(&request), Err(SignError::WrongResult));
        place.flips.store(false, SeqCst);
        place.is_away.store(true, SeqCst);
        assert_eq!(there.sign(&request), Err(SignError::Unavailable(Unavailable)));
        place.is_away.store(false, SeqCst);
        assert_eq!(there.sign(&request), here.sign(&request));
        assert_eq!(*place.verdicts.lock().unwrap(), [false, true]);
    }

    #[test]
    fn a_result_is_checked_with_the_modulus_alone() {
        let (place, here, _) = key();
        let (modulus, message) = (spki::modulus(here.public_key()).unwrap(), [1; MODULUS_LEN]);
        let mut result = place.key.apply(&message).unwrap();
        assert!(is_private_result(&modulus, &message, &result));
        result[17] ^= 1;
        assert!(!is_private_result(&modulus, &message, &result));
    }
}
