//! Where the issuer's keys come from: its directory, fetched periodically, or a file. If the source fails, the known
//! keys stay in use until they retire.

use crate::config::Issuer;
use http::header::{AGE, CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use postern_daemon::http::{
    BodyError, ClientError, ClientOptions, chain, client, date, fetch_limited, no_answer,
};
use postern_token::{Directory, TokenType, TokenTypes, UnixSeconds};
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

/// The source's answer.
#[derive(Default)]
pub(crate) struct Answer {
    /// The directory as it is now; `None` when it has not changed since the last one that was [`used`](Source::used).
    pub(crate) fresh: Option<Fetched>,
    /// For how long a copy of it may be kept (RFC 9111, section 5.2.2.1).
    pub(crate) max_age: Option<Duration>,
    /// The issuer's clock.
    pub(crate) date: Option<UnixSeconds>,
}

/// A directory.
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
    /// The token types.
    #[error(
        "issuer.types = {0:?} must list token types that can be accepted, each once: 2 (blind RSA), 5 (ristretto255) or 1 (P-384), \
         such as [2]"
    )]
    Types(Vec<u16>),
    /// Private types without the keys to verify their tokens with.
    #[error(
        "issuer.types lists type {0}, whose tokens are verified with the issuer's secret key, and issuer.secrets is not set: name \
         a directory with copies of the issuer's key files, or leave the type out"
    )]
    NoSecrets(TokenType),
    /// The trusted certificates.
    #[error("issuer.ca: {0}")]
    Client(#[from] ClientError),
}

/// The types whose tokens are accepted.
pub(crate) fn types(issuer: &Issuer) -> Result<TokenTypes, SourceError> {
    let types = issuer.token_types().ok_or_else(|| SourceError::Types(issuer.types.clone()))?;
    let private = types.iter().find(|token_type| token_type.is_private());
    match private.filter(|_| issuer.secrets.is_none()) {
        Some(private) => Err(SourceError::NoSecrets(private)),
        None => Ok(types),
    }
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
                let options = ClientOptions {
                    ca_file: issuer.ca.clone(),
                    timeout: FETCH_TIMEOUT,
                    ..ClientOptions::default()
                };
                Ok(Self::Directory { url: url.clone(), client: client(&options)?, etag: None })
            }
            _ => Err(SourceError::NotOne),
        }
    }

    /// The directory as it is now.
    pub(crate) async fn fetch(&self) -> Result<Answer, FetchError> {
        match self {
            Self::File(path) => {
                let fail = |reason: String| FetchError::File { path: path.display().to_string(), reason };
                let bytes = tokio::fs::read(path).await.map_err(|error| fail(error.to_string()))?;
                let directory = Directory::parse(&bytes).map_err(|error| fail(error.to_string()))?;
                Ok(Answer { fresh: Some(Fetched { directory, etag: None }), ..Answer::default() })
            }
            Self::Directory { url, client, etag } => {
                let mut request = client.get(url);
                if let Some(etag) = etag {
                    request = request.header(IF_NONE_MATCH, etag);
                }
                let failed = |reason| FetchError::Request { url: url.clone(), reason };
                let response =
                    request.send().await.map_err(|error| failed(no_answer(&error, "issuer.ca")))?;
                let (max_age, date) = (max_age(response.headers()), present(response.headers()));
                match response.status() {
                    StatusCode::NOT_MODIFIED => return Ok(Answer { fresh: None, max_age, date }),
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
                Ok(Answer { fresh: Some(Fetched { directory, etag }), max_age, date })
            }
        }
    }

    /// Stores the ETag of the directory in use. Not done at the fetch: a directory whose keys cannot be used must be
    /// fetched again, and a 304 would report it as unchanged.
    pub(crate) fn used(&mut self, fetched: Option<http::HeaderValue>) {
        if let Self::Directory { etag, .. } = self {
            *etag = fetched;
        }
    }

    /// The directory's URL; none for a file.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Self::Directory { url, .. } => Some(url),
            Self::File(_) => None,
        }
    }

    /// The directory's "host:port"; none for a file.
    pub(crate) fn address(&self) -> Option<String> {
        let Self::Directory { url, .. } = self else { return None };
        let url = url.parse::<reqwest::Url>().ok()?;
        Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
    }

    /// A file is read again only on SIGHUP.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }
}

/// How long the answer may be kept; less what a cache on the way has kept it already.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let directives = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = directives.flat_map(|value| value.split(',')).map(str::trim);
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse::<u64>().ok())?
    })?;
    Some(Duration::from_secs(seconds.saturating_sub(age(headers))))
}

/// The issuer's present time: the answer was made at Date, and kept by caches for Age.
fn present(headers: &HeaderMap) -> Option<UnixSeconds> {
    Some(UnixSeconds(date(headers)?.saturating_add(age(headers))))
}

fn age(headers: &HeaderMap) -> u64 {
    headers.get(AGE).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |&(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), http::HeaderValue::from_static(value))
        };
        fields.iter().map(field).collect()
    }

    #[test]
    fn what_caches_kept_an_answer_for_is_taken_off_its_max_age_and_added_to_its_date() {
        let fields = [
            ("cache-control", "public, Max-Age=30"),
            ("age", "10"),
            ("date", "Thu, 01 Jan 1970 00:01:40 GMT"),
        ];
        assert_eq!(max_age(&headers(&fields)), Some(Duration::from_secs(20)));
        assert_eq!(present(&headers(&fields)), Some(UnixSeconds(110)));
        assert_eq!(max_age(&headers(&fields[1..])), None);
        assert_eq!(max_age(&headers(&[("cache-control", "max-age=5"), ("age", "9")])), Some(Duration::ZERO));
        for nonsense in ["max-age", "max-age=soon", "max-age=-1", "no-store"] {
            assert_eq!(max_age(&headers(&[("cache-control", nonsense)])), None, "{nonsense}");
        }
        assert_eq!(present(&headers(&[("date", "yesterday")])), None);
    }
}
