//! An issuer: its directory, and the key for token requests.

use super::error::MintError;
use crate::config::server_url;
use crate::sentence::retry_after;
use crate::wallet::clock::Skew;
use crate::wallet::supply::LAST_SECOND;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use postern_config::Secret;
use postern_daemon::admin::live::Link;
use postern_daemon::http::{
    BodyError, ClientOptions, NoneAllowed, client, date, fetch_limited, no_answer, one_line,
};
use postern_daemon::tls::OwnCertificate;
use postern_proxy::address::is_public;
use postern_token::header::Challenge;
use postern_token::{
    DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH, Directory, DirectoryKey, IssuerKey, TokenChallenge, TokenKeyId,
    TokenType, UnixSeconds,
};
use reqwest::{RequestBuilder, Url};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const DIRECTORY_LIMIT: usize = 256 * 1024;

/// A client of one issuer, with an account there. Cheap to clone.
#[derive(Clone, Debug)]
pub struct IssuerClient {
    pub(super) http: reqwest::Client,
    pub(super) url: Url,
    pub(super) api_key: Option<Secret>,
    own: Option<OwnCertificate>,
    /// Recorder of requests, each answered when the whole answer has arrived, whatever the status; `None` in commands that run
    /// once.
    attempts: Option<Link>,
    allows: fn(IpAddr) -> bool,
    /// No batches are requested before this time: the issuer refused one, and then gave a single token.
    pub(super) singly_until: Arc<Mutex<Option<Instant>>>,
}

/// An issuer's key for token requests.
#[derive(Clone, Debug)]
pub struct MintKey {
    /// The issuer's public key.
    pub key: IssuerKey,
    /// End of its validity, if the directory has it.
    pub not_after: Option<UnixSeconds>,
    pub(super) request_url: Url,
    /// The directory's limit on tokens in a batch.
    pub(super) batch_limit: Option<u32>,
}

impl IssuerClient {
    /// Makes a client for the issuer at `issuer_url` (its directory is at the well-known path of that host). It sends
    /// `api_key` as a bearer token, and trusts the certificates in `ca` instead of the platform's.
    ///
    /// # Errors
    /// The address is not a URL with a host, or the certificates cannot be read.
    pub fn new(issuer_url: &str, api_key: Option<Secret>, ca: Option<PathBuf>) -> Result<Self, MintError> {
        Self::showing(issuer_url, api_key, ca, None)
    }

    /// Makes a client like [`IssuerClient::new`], for an account with a certificate in addition to its API key or instead of one.
    ///
    /// # Errors
    /// As [`IssuerClient::new`].
    pub fn showing(
        issuer_url: &str,
        api_key: Option<Secret>,
        ca: Option<PathBuf>,
        own: Option<OwnCertificate>,
    ) -> Result<Self, MintError> {
        Self::at(issuer_url, api_key, ClientOptions { ca_file: ca, own, ..ClientOptions::default() })
    }

    fn at(issuer_url: &str, api_key: Option<Secret>, options: ClientOptions) -> Result<Self, MintError> {
        let url = server_url(issuer_url).ok_or_else(|| MintError::Url(issuer_url.to_owned()))?;
        let (http, allows) = (client(&options)?, options.allows);
        let singly_until = Arc::default();
        Ok(Self { http, url, api_key, own: options.own, attempts: None, allows, singly_until })
    }

    /// Makes a client for the issuer that a challenge names: `https://` and the name, which must be a host (and a port). The
    /// client connects to public addresses only, even if the directory sends requests to another host: otherwise a gateway could
    /// probe hosts that only its clients can reach.
    ///
    /// # Errors
    /// As [`IssuerClient::new`].
    pub fn named(issuer_name: &str, ca: Option<PathBuf>) -> Result<Self, MintError> {
        let options = ClientOptions { ca_file: ca, allows: is_public, ..ClientOptions::default() };
        let client = Self::at(&format!("https://{issuer_name}"), None, options)?;
        if client.url.path() == "/" { Ok(client) } else { Err(MintError::Url(client.url.to_string())) }
    }

    /// Records requests in `link`, including those to another host that the issuer's directory names.
    pub(crate) fn recorded(self, link: Option<Link>) -> Self {
        Self { attempts: link, ..self }
    }

    pub(crate) fn address(&self) -> String {
        let port = self.url.port_or_known_default().unwrap_or(443);
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }

    /// Fetches the issuer's keys, and compares clocks.
    pub(crate) async fn published(&self) -> Result<Published, MintError> {
        self.own.iter().for_each(OwnCertificate::read_if_changed); // before each batch of tokens
        let url = self.url.join(DIRECTORY_PATH).map_err(|_| MintError::Url(self.url.to_string()))?;
        self.published_at(url).await
    }

    /// Fetches a mirror's copy, which may be at any path.
    pub(crate) async fn mirrored(&self) -> Result<Published, MintError> {
        if self.url.path() == "/" {
            self.published().await
        } else {
            self.published_at(self.url.clone()).await
        }
    }

    async fn published_at(&self, url: Url) -> Result<Published, MintError> {
        let request = self.http.get(url.clone()).header(ACCEPT, DIRECTORY_MEDIA_TYPE);
        let (headers, body) = self.send(&[StatusCode::OK], &url, request, DIRECTORY_LIMIT).await?;
        match Directory::parse(&body) {
            Ok(directory) => Ok(Published { directory, url, skew: skew(&headers) }),
            Err(error) => Err(MintError::Unusable { url, reason: error.to_string() }),
        }
    }

    /// Chooses the key for `challenge`: its `token-key`, or else the directory's preferred one. The directory must list it:
    /// a key shown to one client alone would mark each of that client's tokens.
    ///
    /// # Errors
    /// [`MintError`].
    pub async fn key_for(&self, challenge: &Challenge) -> Result<MintKey, MintError> {
        self.published().await?.key_for(challenge)
    }

    pub(super) fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {}", key.expose())),
            None => request,
        }
    }

    /// Sends a request, and returns head and body of an answer whose status is in `wanted`.
    pub(super) async fn send(
        &self,
        wanted: &[StatusCode],
        url: &Url,
        request: RequestBuilder,
        limit: usize,
    ) -> Result<(HeaderMap, Bytes), MintError> {
        let began = Instant::now();
        let lost = || self.attempts.iter().for_each(|link| link.lost(1));
        let not_public = || MintError::NotPublic { url: url.clone() };
        if address(url).is_some_and(|address| !(self.allows)(address)) {
            lost();
            return Err(not_public());
        }
        let mut response = request.send().await.map_err(|error| {
            lost();
            if NoneAllowed::is_cause_of(&error) {
                return not_public();
            }
            MintError::Unreachable { url: url.clone(), reason: no_answer(&error, "issuer.ca (or --ca)") }
        })?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = fetch_limited(response, limit).await;
        match &body {
            Err(BodyError::Broken(_)) => lost(),
            Ok(_) | Err(BodyError::TooLong { .. }) => {
                self.attempts.iter().for_each(|link| link.answered(began.elapsed()));
            }
        }
        if !wanted.contains(&status) {
            let text = body.map(|body| one_line(&body)).unwrap_or_default();
            let retry_after = retry_after(&headers);
            return Err(MintError::Status { url: url.clone(), status, text, retry_after });
        }
        match body {
            Ok(body) => Ok((headers, body)),
            Err(error @ BodyError::Broken(_)) => {
                Err(MintError::Unreachable { url: url.clone(), reason: error.to_string() })
            }
            Err(error) => Err(MintError::Unusable { url: url.clone(), reason: error.to_string() }),
        }
    }
}

/// A directory, its URL, and the clock difference for its times.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) directory: Directory,
    pub(crate) url: Url,
    pub(crate) skew: Skew,
}

impl Published {
    /// Chooses the key as [`IssuerClient::key_for`] does.
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
        // In its last second the wallet would not give its tokens out.
        if listed.not_after.is_some_and(|not_after| not_after <= now.saturating_add(LAST_SECOND)) {
            return Err(MintError::Retired { url, skew });
        }
        if let Some(not_before) = listed.not_before.filter(|not_before| now < *not_before) {
            return Err(MintError::NotYet { url, wait: now.until(not_before), skew });
        }
        let public_key = listed.key_bytes().map_err(|error| self.unusable(error))?;
        let key =
            IssuerKey::from_public_key(token_type, &public_key).map_err(|error| self.unusable(error))?;
        let batch_limit = self.directory.batch_limit;
        Ok(MintKey { key, not_after: listed.not_after, request_url, batch_limit })
    }

    /// Returns the issuer's preferred key of the challenge's token type.
    pub(crate) fn preferred(&self, challenge: &Challenge) -> Option<TokenKeyId> {
        id_of(self.directory.preferred(type_of(challenge), self.now())?)
    }

    /// Returns `true` if tokens of `key` are valid by this directory.
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

/// Returns the challenge's token type. Unreadable challenges have been skipped already.
fn type_of(challenge: &Challenge) -> TokenType {
    TokenChallenge::parse(&challenge.bytes).map_or(TokenType::BlindRsa2048, |parsed| parsed.token_type())
}

fn id_of(key: &DirectoryKey) -> Option<TokenKeyId> {
    key.key_bytes().ok().map(|spki| TokenKeyId::of(&spki))
}

/// Returns the IP address that a URL has in place of a name.
fn address(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Compares clocks by the `Date` of an answer. Without that field, there is no difference.
fn skew(headers: &HeaderMap) -> Skew {
    date(headers).map_or(Skew::default(), |theirs| Skew::between(UnixSeconds::now(), UnixSeconds(theirs)))
}
