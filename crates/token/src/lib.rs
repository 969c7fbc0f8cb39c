//! Privacy Pass messages and cryptography: RFC 9577 (HTTP authentication), RFC 9578 (issuance) with type 2, blind RSA, and types
//! 1 and 5, VOPRF, and many tokens in one request (draft-ietf-privacypass-batched-tokens-09).
//!
//! Does no I/O and records no metrics. Only [`UnixSeconds::now`] reads the clock; everything else takes the time as an argument.
//! From a challenge to a spent record:
//!
//! 1. A gateway makes a [`TokenChallenge`] and sends it as a [`header::Challenge`].
//! 2. A client blinds a token for it ([`IssuerKey::request`]), the issuer signs ([`SigningKey::sign`]), the client finalizes
//!    ([`PendingToken::finalize`]) and presents the [`Token`] ([`header::format_authorization`]).
//! 3. The gateway parses the token ([`header::parse_authorization`]), finds its key ([`KeySet::find`]), verifies the token
//!    ([`VerifyingKey::verify`]) and records its [`SpentKey`].
//!
//! ```
#![doc = include_str!("../examples/mint_and_verify.rs")]
//! ```

/// Implements `Debug` without a byte of the value.
macro_rules! redacted {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(redacted)"))
            }
        }
    };
}

/// Implements the accessors that all forms of a token key share.
macro_rules! published_key {
    ($name:ident) => {
        impl $name {
            /// Returns the SHA-256 of the published form.
            pub const fn id(&self) -> TokenKeyId {
                self.id
            }

            pub const fn token_type(&self) -> TokenType {
                self.token_type
            }

            /// Returns the published form, as a directory and `token-key` carry it: an SPKI of 342 bytes for type 2, an element of
            /// 49 bytes for type 1 and of 32 for type 5.
            pub fn public_key(&self) -> &[u8] {
                &self.public_key
            }
        }
    };
}

mod blind;
mod challenge;
mod directory;
mod encoding;
pub mod header;
mod ids;
mod inspect;
mod issuance;
pub mod key_file;
mod mark;
mod sign;
mod spki;
mod token;
mod verify;
mod voprf;

pub use blind::{Batch, BatchRequest, BlindError, IssuerKey, PendingBatch, PendingToken};
pub use challenge::{ChallengeError, TokenChallenge};
pub use directory::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, Directory, DirectoryError, DirectoryKey};
pub use encoding::{Base64Error, WireError, decode_base64url, decode_base64url_vec, encode_base64url};
pub use ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType, TokenTypes, UnixSeconds};
pub use inspect::{InspectError, Inspection, inspect};
pub use issuance::{
    AMORTIZED_REQUEST_MEDIA_TYPE, AMORTIZED_RESPONSE_MEDIA_TYPE, AmortizedRequest, AmortizedResponse,
    BLINDED_LEN, GENERIC_REQUEST_MEDIA_TYPE, GENERIC_RESPONSE_MEDIA_TYPE, OptionalTokenResponse, REQUEST_LEN,
    REQUEST_MEDIA_TYPE, RESPONSE_MEDIA_TYPE, TokenRequest, TokenResponse, parse_generic_request,
    parse_generic_response, serialize_generic_request, serialize_generic_response,
};
pub use mark::{Mark, MarkId};
pub use sign::{PrivateOperation, SignError, SigningKey, Unavailable, is_private_result};
pub use spki::{KeyError, SPKI_LEN, modulus as spki_modulus, of_modulus as spki_of_modulus};
pub use token::{MAX_TOKEN_LEN, Token, TokenInput};
pub use verify::{BadSignature, KeyRefusal, KeySet, TrustedKey, VerifyingKey, Window};
