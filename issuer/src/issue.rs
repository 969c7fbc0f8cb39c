//! One token request, from its bytes to a blind signature (RFC 9578, section 6.2).

use crate::accounts::{Accounts, Caller};
use crate::answer::Refusal;
use crate::catalogue::TokenTypeAsked;
use crate::keyring::Keyring;
use crate::quota::Charge;
use crate::recorder::{Part, Recorder};
use crate::reload::Settings;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use hyper::body::{Body, Incoming};
use postern_daemon::http::{BodyError, read_limited};
use postern_daemon::tls::PublicKeyDigest;
use postern_token::{REQUEST_MEDIA_TYPE, SigningKey, TokenRequest, TokenResponse, TokenType, UnixSeconds};
use std::sync::Arc;
use std::time::Instant;

/// The most bytes read of a body of a wrong length, so that the answer can name its length.
const MAX_BODY: usize = 1_024;

/// What it takes to issue a token.
#[derive(Debug)]
pub(crate) struct Issuance {
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) settings: Settings,
    pub(crate) recorder: Arc<Recorder>,
}

impl Issuance {
    /// A token request whose body has been [read](Issuance::read), of a client that showed this certificate. Dropped at any `await`, it leaves nothing counted that was
    /// not signed. `asked` becomes the token type, once it is read.
    pub(crate) async fn answer(
        &self,
        headers: &HeaderMap,
        certificate: Option<PublicKeyDigest>,
        body: Bytes,
        asked: &mut TokenTypeAsked,
    ) -> Result<TokenResponse, Refusal> {
        *asked = type_asked(&body);
        let now = UnixSeconds::now();
        let caller = self.accounts.authorize(headers, certificate, now).await.map_err(Refusal::NoAccount)?;
        check_media_type(headers)?;
        let request = TokenRequest::parse(&body).map_err(Refusal::Malformed)?;
        let key = self.keyring.signer(request.truncated_token_key_id, now).map_err(Refusal::NoKey)?;
        let charge = self.accounts.charge(&caller, now).await.map_err(Refusal::NoToken)?;
        self.sign(&caller, key, request, charge).await
    }

    /// The body of a token request. It is read before anything is refused: it is small, and a client that is still sending
    /// when the answer comes often sees a broken connection instead of the answer.
    pub(crate) async fn read(&self, body: Incoming) -> Result<Bytes, Refusal> {
        if body.size_hint().lower() > MAX_BODY as u64 {
            return Err(Refusal::TooLong); // before a client that waits for "100 Continue" sends it
        }
        let began = Instant::now();
        let limit = self.settings.load().limits.body_timeout.get();
        match tokio::time::timeout(limit, read_limited(body, MAX_BODY)).await {
            Ok(Ok(body)) => {
                self.recorder.took(Part::Body, began.elapsed());
                Ok(body)
            }
            Ok(Err(BodyError::TooLong { .. })) => Err(Refusal::TooLong),
            Ok(Err(BodyError::Broken(_))) => Err(Refusal::Broken),
            Err(_) => Err(Refusal::TooSlow),
        }
    }

    /// The charge stands from the moment of the signature, whether or not the client is still there to read it.
    async fn sign(
        &self,
        caller: &Caller,
        key: Arc<SigningKey>,
        request: TokenRequest,
        charge: Charge,
    ) -> Result<TokenResponse, Refusal> {
        let tokens = self.accounts.tokens_of(caller);
        let signature = self
            .settings
            .load()
            .pool
            .submit(caller.claim(), key, request, move || {
                charge.keep();
                tokens.increment(1);
            })
            .map_err(Refusal::Unsigned)?;
        signature.await.map_err(Refusal::Unsigned)
    }
}

/// The type that a body of any length begins with.
fn type_asked(body: &[u8]) -> TokenTypeAsked {
    match body.first_chunk() {
        Some(code) if u16::from_be_bytes(*code) == TokenType::BlindRsa2048.code() => {
            TokenTypeAsked::BlindRsa2048
        }
        Some(_) => TokenTypeAsked::Other,
        None => TokenTypeAsked::Unread,
    }
}

/// Exactly one Content-Type, in any case, with any parameters.
fn check_media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(Refusal::MediaType) };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(REQUEST_MEDIA_TYPE.as_bytes()) { Ok(()) } else { Err(Refusal::MediaType) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_type_is_what_the_first_two_bytes_say() {
        assert_eq!(type_asked(&[0, 2]), TokenTypeAsked::BlindRsa2048);
        assert_eq!(type_asked(&[0, 2, 7, 7]), TokenTypeAsked::BlindRsa2048);
        for other in [[0, 1], [2, 0], [2, 2], [0xda, 0x7a]] {
            assert_eq!(type_asked(&other), TokenTypeAsked::Other, "{other:?}");
        }
        assert_eq!(type_asked(&[]), TokenTypeAsked::Unread);
        assert_eq!(type_asked(&[0]), TokenTypeAsked::Unread);
    }

    #[test]
    fn the_media_type_is_read_liberally_but_only_once() {
        let good = |values: &[&str]| {
            let values = values.iter().map(|value| (CONTENT_TYPE, HeaderValue::from_str(value).unwrap()));
            check_media_type(&values.collect()).is_ok()
        };
        assert!(good(&[REQUEST_MEDIA_TYPE]));
        assert!(good(&["Application/Private-Token-Request"]));
        assert!(good(&["application/private-token-request ; charset=utf-8"]));
        assert!(!good(&[]) && !good(&[""]) && !good(&["application/octet-stream"]));
        assert!(!good(&["application/private-token-request2"]));
        assert!(!good(&["application/private-token-response"]));
        assert!(!good(&[REQUEST_MEDIA_TYPE, REQUEST_MEDIA_TYPE]));
    }
}
