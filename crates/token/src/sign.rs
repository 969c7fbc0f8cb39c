//! Issuing (RFC 9578, sections 5.2 and 6.2): what the issuer does.

use crate::batch::{AmortizedRequest, AmortizedResponse};
use crate::elsewhere::{PrivateOperation, Unavailable};
use crate::ids::{TokenKeyId, TokenType};
use crate::issuance::{TokenRequest, TokenResponse};
use crate::spki::{self, KeyError};
use crate::voprf::{self, Evaluator};
use postern_raw_rsa::{MODULUS_LEN, PrivateKey, PublicKey};
use rand::TryRng;
use rand::rngs::SysRng;
use std::cmp::Ordering;
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

/// Why a key cannot issue, or a request is not answered with tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The private key is unusable.
    #[error("the issuer key is unusable: {0}")]
    Key(#[source] postern_raw_rsa::Error),
    /// The key's public exponent is not 65537.
    #[error("the issuer key must have the public exponent 65537")]
    Exponent,
    /// The secret is not one of this private type.
    #[error(
        "not the secret of a key of type {0}: it must be a scalar of 48 bytes for type 1, and of 32 for type 5"
    )]
    Secret(TokenType),
    /// No keys are made for this type.
    #[error("there are no keys for token type {0}")]
    NoKeys(TokenType),
    /// The system gave no randomness.
    #[error("the system gave no randomness")]
    NoRandomness,
    /// The request names another key by its type or its truncated id.
    #[error(
        "the request is for another key (type {asked_type}, truncated token key id {asked:#04x}; this key's are {ours_type} \
         and {ours:#04x})"
    )]
    OtherKey {
        /// The type in the request.
        asked_type: TokenType,
        /// The truncated id in the request.
        asked: u8,
        /// This key's type.
        ours_type: TokenType,
        /// This key's truncated id.
        ours: u8,
    },
    /// The blinded message of type 2 is not a number from 2 to the modulus less 2.
    #[error("the blinded message is not a number from 2 to n - 2, for the key's modulus n")]
    OutOfRange,
    /// A blinded element is not one of the group, or its identity.
    #[error("a blinded element is not an element of the type's group, or is its identity")]
    NotAnElement,
    /// The private key is elsewhere and cannot be reached: not the request's fault.
    #[error(transparent)]
    Unavailable(Unavailable),
    /// What was computed elsewhere is not the result: it is not given out. Not the request's fault.
    #[error(
        "the key is not in this process, and where it is has computed a wrong result, which was not given out"
    )]
    WrongResult,
}

impl SigningKey {
    /// Makes a new key and returns its secret form, to be kept on disk with mode 0600: PKCS#8 (DER) for type 2, which takes
    /// tens of milliseconds to a second; a scalar of 48 bytes for type 1 and of 32 for type 5. It is wiped when dropped.
    ///
    /// # Errors
    /// The system gave no randomness, or the type is none of these.
    pub fn generate(token_type: TokenType) -> Result<Zeroizing<Vec<u8>>, SignError> {
        if token_type == TokenType::BlindRsa2048 {
            return Self::generate_pkcs8();
        }
        let lengths = voprf::lengths(token_type).ok_or(SignError::NoKeys(token_type))?;
        let mut seed = Zeroizing::new(vec![0; lengths.scalar]);
        SysRng.try_fill_bytes(&mut seed).map_err(|_| SignError::NoRandomness)?;
        Evaluator::derive(token_type, &seed).map(Zeroizing::new).ok_or(SignError::NoKeys(token_type))
    }

    /// Reads what [`SigningKey::generate`] returned for this type.
    ///
    /// # Errors
    /// Not a key of this type.
    pub fn from_secret(token_type: TokenType, secret: &[u8]) -> Result<Self, SignError> {
        if token_type == TokenType::BlindRsa2048 {
            return Self::from_pkcs8(secret);
        }
        let evaluator = Evaluator::parse(token_type, secret).ok_or(SignError::Secret(token_type))?;
        Ok(Self::new(token_type, &evaluator.public_key(), Secret::Voprf(evaluator)))
    }

    /// Makes a new key of type 2: see [`SigningKey::generate`].
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn generate_pkcs8() -> Result<Zeroizing<Vec<u8>>, SignError> {
        PrivateKey::generate_pkcs8().map(Zeroizing::new).map_err(SignError::Key)
    }

    /// Reads a PKCS#8 key, for type 2.
    ///
    /// # Errors
    /// Not a PKCS#8 RSA key of 2048 bits with exponent 65537.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, SignError> {
        let private = PrivateKey::from_pkcs8(der).map_err(SignError::Key)?;
        let spki = spki::published(private.public_key_der()).map_err(|_| SignError::Exponent)?;
        Ok(Self::new(TokenType::BlindRsa2048, &spki, Secret::Rsa(private)))
    }

    /// A key of type 2 with this published form, whose private operation is done elsewhere.
    ///
    /// # Errors
    /// Not a published key of type 2.
    pub fn elsewhere(spki: &[u8], operation: Arc<dyn PrivateOperation>) -> Result<Self, KeyError> {
        let elsewhere = Box::new(Elsewhere::new(spki, operation)?);
        Ok(Self::new(TokenType::BlindRsa2048, spki, Secret::Elsewhere(elsewhere)))
    }

    fn new(token_type: TokenType, public_key: &[u8], secret: Secret) -> Self {
        Self { id: TokenKeyId::of(public_key), token_type, public_key: public_key.into(), secret }
    }

    /// Answers one request. Hundreds of microseconds of CPU, milliseconds for type 1: belongs on a bounded pool, not on an
    /// async worker. With a key elsewhere the thread waits for it.
    ///
    /// # Errors
    /// [`SignError::OtherKey`], [`SignError::OutOfRange`] or [`SignError::NotAnElement`]; an issuer answers each with 422. Of a key
    /// elsewhere [`SignError::Unavailable`] or [`SignError::WrongResult`], too: 503.
    pub fn sign(&self, request: &TokenRequest) -> Result<TokenResponse, SignError> {
        self.is_meant(request.token_type(), request.truncated_token_key_id)?;
        match &self.secret {
            Secret::Rsa(private) => {
                // The type decides the length, so this is always an array of that length.
                let message = request.blinded_message().try_into().map_err(|_| SignError::OutOfRange)?;
                private.apply(message).map(TokenResponse::new).map_err(|_| SignError::OutOfRange)
            }
            Secret::Elsewhere(elsewhere) => {
                let message = request.blinded_message().try_into().map_err(|_| SignError::OutOfRange)?;
                elsewhere.apply(message).map(TokenResponse::new)
            }
            Secret::Voprf(evaluator) => {
                let evaluated = evaluator.evaluate(request.blinded_message());
                let evaluated = evaluated.map_err(|_| SignError::NotAnElement)?;
                Ok(TokenResponse::new([evaluated.elements, evaluated.proof].concat()))
            }
        }
    }

    /// Answers an amortized batch: its elements share one proof, which makes each cheaper than by itself.
    ///
    /// # Errors
    /// [`SignError::OtherKey`] or [`SignError::NotAnElement`]; an issuer answers either with 422.
    pub fn sign_batch(&self, request: &AmortizedRequest) -> Result<AmortizedResponse, SignError> {
        self.is_meant(request.token_type(), request.truncated_token_key_id)?;
        let Secret::Voprf(evaluator) = &self.secret else { return Err(SignError::NotAnElement) };
        let evaluated = evaluator.evaluate(request.elements()).map_err(|_| SignError::NotAnElement)?;
        Ok(AmortizedResponse::new(evaluated))
    }

    fn is_meant(&self, asked_type: TokenType, asked: u8) -> Result<(), SignError> {
        let (ours_type, ours) = (self.token_type, self.id.truncated());
        if (asked_type, asked) == (ours_type, ours) {
            Ok(())
        } else {
            Err(SignError::OtherKey { asked_type, asked, ours_type, ours })
        }
    }

    /// The SHA-256 of the published form.
    #[must_use]
    pub const fn id(&self) -> TokenKeyId {
        self.id
    }

    /// The kind of token it issues.
    #[must_use]
    pub const fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Whether its private key is not in this process.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self.secret, Secret::Elsewhere(_))
    }

    /// The published form: an SPKI of 342 bytes for type 2, an element of 49 bytes for type 1 and of 32 for type 5.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:?}, type {}, redacted)", self.id, self.token_type.code())
    }
}

/// A key that is elsewhere, and its public half.
struct Elsewhere {
    public: PublicKey,
    modulus: [u8; MODULUS_LEN],
    operation: Arc<dyn PrivateOperation>,
}

impl Elsewhere {
    fn new(spki: &[u8], operation: Arc<dyn PrivateOperation>) -> Result<Self, KeyError> {
        let public = PublicKey::from_der(spki::rsa_public_key(spki)?).map_err(|_| KeyError::NotAType2Key)?;
        Ok(Self { public, modulus: spki::modulus(spki)?, operation })
    }

    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], SignError> {
        if !self.is_in_range(message) {
            return Err(SignError::OutOfRange); // before the call: what fails there is never the client's fault
        }
        let result = self.operation.apply(message).map_err(SignError::Unavailable)?;
        let is_right = self.public.is_result(message, &result);
        self.operation.judged(is_right);
        if is_right { Ok(result) } else { Err(SignError::WrongResult) }
    }

    /// From 2 to n - 2, as for keys in files. The modulus is odd, so n - 1 differs from it in the last bit alone.
    fn is_in_range(&self, message: &[u8; MODULUS_LEN]) -> bool {
        let mut most = self.modulus;
        most[MODULUS_LEN - 1] &= 0xfe;
        let is_small =
            message[..MODULUS_LEN - 1].iter().all(|byte| *byte == 0) && message[MODULUS_LEN - 1] < 2;
        !is_small && message.cmp(&most) == Ordering::Less
    }
}
