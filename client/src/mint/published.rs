//! An issuer's directory as it was fetched, and the choice of a key from it.

use super::{MintError, MintKey};
use crate::clock::Skew;
use postern_token::header::Challenge;
use postern_token::{Directory, DirectoryKey, IssuerKey, TokenKeyId, TokenType, UnixSeconds};
use reqwest::Url;

/// A directory, where it came from, and the clock that its times are read by.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) directory: Directory,
    pub(crate) url: Url,
    pub(crate) skew: Skew,
}

impl Published {
    /// See [`IssuerClient::key_for`](super::IssuerClient::key_for).
    pub(crate) fn key_for(&self, challenge: &Challenge) -> Result<MintKey, MintError> {
        let request_url = self.request_url()?;
        let (url, skew, now) = (self.url.clone(), self.skew, self.now());
        let listed = match &challenge.token_key {
            Some(wanted) => self.keys().find(|key| key.key_bytes().is_ok_and(|bytes| bytes == *wanted)),
            None => self.directory.preferred(TokenType::BlindRsa2048, now),
        };
        let Some(listed) = listed else {
            return Err(match &challenge.token_key {
                Some(_) => MintError::Unlisted { url },
                None if self.keys().any(|key| key.not_after.is_some_and(|end| end <= now)) => {
                    MintError::Retired { url, skew }
                }
                None => self.unusable("it lists no key of type 2 that is in use"),
            });
        };
        if listed.not_after.is_some_and(|not_after| not_after <= now) {
            return Err(MintError::Retired { url, skew });
        }
        if let Some(not_before) = listed.not_before.filter(|not_before| now < *not_before) {
            return Err(MintError::NotYet { url, wait: now.until(not_before), skew });
        }
        let spki = listed.key_bytes().map_err(|error| self.unusable(error))?;
        let key = IssuerKey::from_spki(&spki).map_err(|error| self.unusable(error))?;
        Ok(MintKey { key, not_after: listed.not_after, request_url, skew })
    }

    /// The issuer's preferred key.
    pub(crate) fn preferred(&self) -> Option<TokenKeyId> {
        id_of(self.directory.preferred(TokenType::BlindRsa2048, self.now())?)
    }

    /// Whether tokens of `key` are good by this directory.
    pub(crate) fn redeems(&self, key: TokenKeyId) -> bool {
        let listed = self.keys().find(|listed| id_of(listed) == Some(key));
        listed.is_some_and(|listed| listed.not_after.is_none_or(|not_after| self.now() < not_after))
    }

    fn keys(&self) -> impl Iterator<Item = &DirectoryKey> {
        self.directory.keys_for(TokenType::BlindRsa2048)
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

fn id_of(key: &DirectoryKey) -> Option<TokenKeyId> {
    key.key_bytes().ok().map(|spki| TokenKeyId::of(&spki))
}
