//! Privacy Pass on the wire and in the arithmetic: RFC 9577 (HTTP authentication), RFC 9578 (issuance) with type 2, blind RSA,
//! and types 1 and 5, VOPRF, and many tokens in one request (draft-ietf-privacypass-batched-tokens-09).
//!
//! No socket, no clock, no metric: bytes and moments come in, values and sentences come out. From a challenge to a
//! spent record:
//!
//! 1. A gateway makes a [`TokenChallenge`] and offers it as a [`header::Challenge`].
//! 2. A client blinds a token for it ([`IssuerKey::request`]), the issuer signs ([`SigningKey::sign`]), the client
//!    finalizes ([`PendingToken::finalize`]) and presents the [`Token`] ([`header::format_authorization`]).
//! 3. The gateway reads it ([`header::parse_authorization`]), finds its key ([`KeySet::find`]), verifies it
//!    ([`VerifyingKey::verify`]) and remembers its [`SpentKey`].
//!
//! ```
#![doc = include_str!("../examples/mint_and_verify.rs")]
//! ```

mod batch;
mod blind;
mod challenge;
mod directory;
mod elsewhere;
mod encoding;
pub mod header;
mod ids;
mod inspect;
mod issuance;
pub mod key_file;
mod keyset;
mod mark;
mod sign;
mod spki;
mod time;
mod token;
mod types;
mod verify;
mod voprf;

pub use batch::{
    AMORTIZED_REQUEST_MEDIA_TYPE, AMORTIZED_RESPONSE_MEDIA_TYPE, AmortizedRequest, AmortizedResponse,
    GENERIC_REQUEST_MEDIA_TYPE, GENERIC_RESPONSE_MEDIA_TYPE, OptionalTokenResponse, parse_generic_request,
    parse_generic_response, serialize_generic_request, serialize_generic_response,
};
pub use blind::{Batch, BatchRequest, BlindError, IssuerKey, PendingBatch, PendingToken};
pub use challenge::{ChallengeError, TokenChallenge};
pub use directory::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, Directory, DirectoryError, DirectoryKey};
pub use elsewhere::{PrivateOperation, Unavailable};
pub use encoding::{Base64Error, WireError, decode_base64url, decode_base64url_vec, encode_base64url};
pub use ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType};
pub use inspect::{InspectError, Inspection, inspect};
pub use issuance::{
    BLINDED_LEN, REQUEST_LEN, REQUEST_MEDIA_TYPE, RESPONSE_MEDIA_TYPE, TokenRequest, TokenResponse,
};
pub use keyset::{KeyRefusal, KeySet, TrustedKey, Window};
pub use mark::{Mark, MarkId};
pub use sign::{SignError, SigningKey};
pub use spki::{KeyError, SPKI_LEN, modulus as spki_modulus, of_modulus as spki_of_modulus};
pub use time::UnixSeconds;
pub use token::{MAX_TOKEN_LEN, Token, TokenInput};
pub use types::TokenTypes;
pub use verify::{BadSignature, VerifyingKey};
