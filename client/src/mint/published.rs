//! An issuer's directory as it was fetched, and the choice of a key from it.

use super::error::MintError;
use super::issuer::MintKey;
use crate::wallet::clock::Skew;
use postern_token::header::Challenge;
use postern_token::{Directory, DirectoryKey, IssuerKey, TokenChallenge, TokenKeyId, TokenType, UnixSeconds};
use reqwest::Url;

/// A directory, where it came from, and the clock that its times are read by.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) directory: Directory,
    pub(crate) url: Url,
    pub(crate) skew: Skew,
}

impl Published {
    /// See [`IssuerClient::key_for`](super::issuer::IssuerClient::key_for).
    pub(crate) fn key_for(&self, challenge: &Challenge) -> Result<MintKey, MintError> {
        let request_url = self.request_url()?;
        let (url, skew, now) = (self.url.clone(), self.skew, self.now());
        let token_type = type_of(challenge);
        let mut keys = self.directory.keys_for(token_type);
        let listed = match &challenge.token_key {
            Some(wanted) => keys.find(|key| key.key_bytes().is_ok_and(|bytes| bytes == *wanted)),
            None => self.directory.preferred(token_type, now),
        };
        let Some(listed) = listed else {
            return Err(match &challenge.token_key {
                Some(_) => MintError::Unlisted { url },
                None if keys.any(|key| key.not_after.is_some_and(|end| end <= now)) => {
                    MintError::Retired { url, skew }
                }
                None => self.unusable(format_args!("it lists no key of type {token_type} that is in use")),
            });
        };
        if listed.not_after.is_some_and(|not_after| not_after <= now) {
            return Err(MintError::Retired { url, skew });
        }
        if let Some(not_before) = listed.not_before.filter(|not_before| now < *not_before) {
            return Err(MintError::NotYet { url, wait: now.until(not_before), skew });
        }
        let public_key = listed.key_bytes().map_err(|error| self.unusable(error))?;
        let key =
            IssuerKey::from_public_key(token_type, &public_key).map_err(|error| self.unusable(error))?;
        let batch_limit = self.directory.batch_limit;
        Ok(MintKey { key, not_after: listed.not_after, request_url, batch_limit, skew })
    }

    /// The issuer's preferred key for the type that a challenge names.
    pub(crate) fn preferred(&self, challenge: &Challenge) -> Option<TokenKeyId> {
        id_of(self.directory.preferred(type_of(challenge), self.now())?)
    }

    /// Whether tokens of `key` are good by this directory.
    pub(crate) fn redeems(&self, key: TokenKeyId) -> bool {
        let listed = self.directory.token_keys.iter().find(|listed| id_of(listed) == Some(key));
        listed.is_some_and(|listed| listed.not_after.is_none_or(|not_after| self.now() < not_after))
    }

    fn now(&self) -> UnixSeconds {
        self.skew.corrected(UnixSeconds::now())
    }

    fn request_url(&self) -> Result<Url, MintError> {
        let uri = &self.directory.issuer_request_uri;
        let request_url = self.url.join(uri).map_err(|error| {
            self.unusable(format_args!("its issuer-request-uri \"{uri}\" is no URL: {error}"))
        })?;
        if self.url.scheme() == "https" && request_url.scheme() != "https" {
            return Err(self.unusable(format_args!("its issuer-request-uri {request_url} leaves https")));
        }
        Ok(request_url)
    }

    fn unusable(&self, reason: impl std::fmt::Display) -> MintError {
        MintError::Unusable { url: self.url.clone(), reason: reason.to_string() }
    }
}

/// The type of the tokens that a challenge asks for. One that cannot be read has been passed over before.
fn type_of(challenge: &Challenge) -> TokenType {
    TokenChallenge::parse(&challenge.bytes).map_or(TokenType::BlindRsa2048, |parsed| parsed.token_type())
}

fn id_of(key: &DirectoryKey) -> Option<TokenKeyId> {
    key.key_bytes().ok().map(|spki| TokenKeyId::of(&spki))
}
