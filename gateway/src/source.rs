//! Where the issuer's keys come from: its directory, asked again and again, or a file. When neither answers, the keys
//! that are known stay in use until they retire.

use crate::config::Issuer;
use http::StatusCode;
use http::header::{ETAG, IF_NONE_MATCH};
use postern_service::http::{BodyError, ClientError, ClientOptions, chain, client, fetch_limited, no_answer};
use postern_token::Directory;
use std::path::PathBuf;
use std::time::Duration;

/// The largest directory that is read. Ten keys are about 5 KiB.
const DIRECTORY_LIMIT: usize = 1 << 20;
/// How long one attempt may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// A place to get keys from.
pub(crate) enum Source {
    /// The directory's URL, and the ETag of what is in use.
    Directory { url: String, client: reqwest::Client, etag: Option<http::HeaderValue> },
    /// A file with the directory's JSON.
    File(PathBuf),
}

/// What was found there.
pub(crate) struct Fetched {
    pub(crate) directory: Directory,
    pub(crate) etag: Option<http::HeaderValue>,
}

/// Why the configuration names no place.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Neither or both.
    #[error("issuer: set exactly one of directory (the URL of the issuer's key directory) and keys (a file)")]
    NotOne,
    /// The URL.
    #[error("issuer.directory: {0:?} is not an http:// or https:// URL")]
    Url(String),
    /// The URL holds a password, which would be in every message about it.
    #[error("issuer.directory: a name or password in the URL is not used; write it without them")]
    Credentials,
    /// The trusted certificates.
    #[error("issuer.ca: {0}")]
    Client(#[from] ClientError),
}

/// Why there was no answer. Sentences for the operator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("the issuer's directory at {url} cannot be fetched: {reason}")]
    Request { url: String, reason: String },
    #[error(
        "the issuer's directory at {url} answered {status}; is issuer.directory the URL of a key directory?"
    )]
    Status { url: String, status: StatusCode },
    #[error(
        "the issuer's directory at {url} cannot be read: {reason}; is issuer.directory the URL of a key directory?"
    )]
    Content { url: String, reason: String },
    #[error("the issuer's keys cannot be read from {path}: {reason}; check the file that issuer.keys names")]
    File { path: String, reason: String },
}

impl Source {
    pub(crate) fn new(issuer: &Issuer) -> Result<Self, SourceError> {
        match (&issuer.directory, &issuer.keys) {
            (None, Some(path)) => Ok(Self::File(path.clone())),
            (Some(url), None) => {
                // First of all, for every other message repeats the URL.
                if url.contains('@') {
                    return Err(SourceError::Credentials);
                }
                let parsed = url.parse::<reqwest::Url>().map_err(|_| SourceError::Url(url.clone()))?;
                if !matches!(parsed.scheme(), "http" | "https") {
                    return Err(SourceError::Url(url.clone()));
                }
                let options = ClientOptions { ca_file: issuer.ca.clone(), timeout: FETCH_TIMEOUT };
                Ok(Self::Directory { url: url.clone(), client: client(&options)?, etag: None })
            }
            _ => Err(SourceError::NotOne),
        }
    }

    /// The directory as it is now; `None` when it has not changed since the last one that was [`used`](Self::used).
    pub(crate) async fn fetch(&self) -> Result<Option<Fetched>, FetchError> {
        match self {
            Self::File(path) => {
                let fail = |reason: String| FetchError::File { path: path.display().to_string(), reason };
                let bytes = tokio::fs::read(path).await.map_err(|error| fail(error.to_string()))?;
                let directory = Directory::parse(&bytes).map_err(|error| fail(error.to_string()))?;
                Ok(Some(Fetched { directory, etag: None }))
            }
            Self::Directory { url, client, etag } => {
                let mut request = client.get(url);
                if let Some(etag) = etag {
                    request = request.header(IF_NONE_MATCH, etag);
                }
                let failed = |reason| FetchError::Request { url: url.clone(), reason };
                let response = request
                    .send()
                    .await
                    .map_err(|error| failed(no_answer(&error.without_url(), "issuer.ca")))?;
                match response.status() {
                    StatusCode::NOT_MODIFIED => return Ok(None),
                    StatusCode::OK => {}
                    status => return Err(FetchError::Status { url: url.clone(), status }),
                }
                let unreadable = |reason| FetchError::Content { url: url.clone(), reason };
                let etag = response.headers().get(ETAG).cloned();
                let body = fetch_limited(response, DIRECTORY_LIMIT).await.map_err(|error| match error {
                    BodyError::Broken(_) => failed(chain(&error)),
                    BodyError::TooLong { .. } => unreadable(chain(&error)),
                })?;
                let directory = Directory::parse(&body).map_err(|error| unreadable(error.to_string()))?;
                Ok(Some(Fetched { directory, etag }))
            }
        }
    }

    /// Remembers what is in use. Not done when it is fetched: a directory whose keys cannot be used must be asked for
    /// again, and not be told apart from an unchanged one by a 304.
    pub(crate) fn used(&mut self, fetched: Option<http::HeaderValue>) {
        if let Self::Directory { etag, .. } = self {
            *etag = fetched;
        }
    }

    /// Whom it asks, as "host:port"; none for a file.
    pub(crate) fn address(&self) -> Option<String> {
        let Self::Directory { url, .. } = self else { return None };
        let url = url.parse::<reqwest::Url>().ok()?;
        Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
    }

    /// A file changes only when the operator says so (SIGHUP).
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }
}
