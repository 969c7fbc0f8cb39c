//! Privacy Pass on the wire and in the arithmetic: RFC 9577 (HTTP authentication) and RFC 9578 (issuance), type 2,
//! blind RSA.
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

mod blind;
mod challenge;
mod directory;
mod encoding;
pub mod header;
mod ids;
mod inspect;
mod issuance;
mod keyset;
mod mark;
mod sign;
mod spki;
mod time;
mod token;
mod verify;

pub use blind::{BlindError, IssuerKey, PendingToken};
pub use challenge::{ChallengeError, TokenChallenge};
pub use directory::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, Directory, DirectoryError, DirectoryKey};
pub use encoding::{Base64Error, WireError, decode_base64url, decode_base64url_vec, encode_base64url};
pub use ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType};
pub use inspect::{InspectError, Inspection, inspect};
pub use issuance::{
    BLINDED_LEN, REQUEST_LEN, REQUEST_MEDIA_TYPE, RESPONSE_MEDIA_TYPE, TokenRequest, TokenResponse,
};
pub use keyset::{KeyRefusal, KeySet, TrustedKey, Window};
pub use mark::{Mark, MarkId};
pub use sign::{SignError, SigningKey};
pub use spki::{KeyError, SPKI_LEN};
pub use time::UnixSeconds;
pub use token::{MAX_TOKEN_LEN, Token, TokenInput};
pub use verify::{BadSignature, VerifyingKey};
