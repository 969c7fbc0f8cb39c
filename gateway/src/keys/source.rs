//! Sources of the issuer's keys: its directory, fetched periodically, or a file. If the source fails, the known keys stay in use
//! until they retire.

use crate::config::{Config, Issuer, StoreKind};
use crate::error::StartError;
use crate::keys::keyring::Lifetimes;
use crate::keys::secrets::Accepted;
use http::header::{AGE, CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use postern_daemon::http::{
    BodyError, ClientOptions, chain, client, date, fetch_limited, no_answer, one_line, quoted,
};
use postern_daemon::utc::rough;
use postern_token::{Directory, TokenTypes, UnixSeconds};
use std::path::PathBuf;
use std::time::Duration;

/// Largest directory that is read, in bytes. Ten keys take about 5 KiB.
const DIRECTORY_LIMIT: usize = 1 << 20;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Tolerated difference of clocks in seconds; harmless because keys are published hours ahead.
const TOLERATED: u64 = 60;
pub(crate) const COST: &str = "the issuer's keys come into use and retire at the wrong time here";
pub(crate) const REMEDY: &str = "set both clocks by NTP (timedatectl shows whether this one is)";

/// The configured source of keys: where they come from, which of them are accepted, and for how long.
#[derive(Clone)]
pub(crate) struct Source {
    from: Origin,
    /// Accepted token types, the preferred one first.
    pub(crate) types: TokenTypes,
    /// Directory with the secrets of private token types.
    secrets: Option<PathBuf>,
    /// File of fetched keys; `None` if there is no place for one.
    pub(crate) saved: Option<PathBuf>,
    pub(crate) lifetimes: Lifetimes,
    /// Longest time between fetches.
    pub(crate) poll: Duration,
}

#[derive(Clone)]
enum Origin {
    /// The directory's URL, and the ETag of the version in use.
    Directory {
        url: String,
        client: reqwest::Client,
        etag: Option<http::HeaderValue>,
    },
    File(PathBuf),
}

#[derive(Default)]
pub(crate) struct Answer {
    /// The present directory; `None` if it has not changed since the last one marked as [`used`](Source::used).
    pub(crate) fresh: Option<Fetched>,
    /// Time for which a copy of the answer may be kept (RFC 9111, section 5.2.2.1).
    pub(crate) max_age: Option<Duration>,
    pub(crate) date: Option<UnixSeconds>,
}

pub(crate) struct Fetched {
    pub(crate) directory: Directory,
    pub(crate) etag: Option<http::HeaderValue>,
    /// The accepted types, with the secrets of private ones.
    pub(crate) accepted: Accepted,
}

/// A failed fetch, with a sentence for operators.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The issuer gave no answer.
    #[error("{0}")]
    Unanswered(String),
    #[error("{0}")]
    Unusable(String),
}

fn types(issuer: &Issuer) -> Result<TokenTypes, StartError> {
    let fault = match TokenTypes::new(&issuer.types) {
        Some(types) => match types.iter().find(|of_type| of_type.is_private() && issuer.secrets.is_none()) {
            None => return Ok(types),
            Some(private) => format!(
                "issuer.types lists type {private}, whose tokens are verified with the issuer's secret key, and issuer.secrets is \
                 not set: name a directory with copies of the issuer's key files, or leave the type out"
            ),
        },
        None => format!(
            "issuer.types = {:?} must list token types that can be accepted, each once: 2 (blind RSA), 5 (ristretto255) or 1 \
             (P-384), such as [2]",
            issuer.types
        ),
    };
    Err(StartError::Config(fault))
}

impl Source {
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let issuer = &config.issuer;
        let store = Some(&config.store).filter(|store| store.kind == StoreKind::Embedded);
        let default = || store.map(|store| store.path.with_file_name("issuer-keys.json"));
        let (without_not_after, removed) = (issuer.key_lifetime.get(), issuer.removed_grace.get());
        Ok(Self {
            types: types(issuer)?,
            from: Origin::new(issuer)?,
            secrets: issuer.secrets.clone(),
            saved: issuer.saved.clone().or_else(default),
            lifetimes: Lifetimes { without_not_after, removed },
            poll: issuer.poll.get(),
        })
    }

    pub(crate) async fn fetch(&self) -> Result<Answer, FetchError> {
        match &self.from {
            Origin::File(path) => {
                let read = async || {
                    let bytes = tokio::fs::read(path).await.map_err(|error| error.to_string())?;
                    self.parse(&bytes, None).await
                };
                let fetched = read().await.map_err(|reason| {
                    let path = path.display();
                    FetchError::Unusable(format!(
                        "the issuer's keys cannot be read from {path}: {reason}; check the file that issuer.keys names"
                    ))
                })?;
                Ok(Answer { fresh: Some(fetched), ..Answer::default() })
            }
            Origin::Directory { url, client, etag } => {
                let mut request = client.get(url);
                if let Some(etag) = etag {
                    request = request.header(IF_NONE_MATCH, etag);
                }
                let place = format!("the issuer's directory at {url}");
                let unanswered =
                    |reason| FetchError::Unanswered(format!("{place} cannot be fetched: {reason}"));
                let unusable = |fault| {
                    let remedy = "is issuer.directory the URL of a key directory?";
                    FetchError::Unusable(format!("{place} {fault}; {remedy}"))
                };
                let response =
                    request.send().await.map_err(|error| unanswered(no_answer(&error, "issuer.ca")))?;
                let (max_age, date) = (max_age(response.headers()), present(response.headers()));
                match response.status() {
                    StatusCode::NOT_MODIFIED => return Ok(Answer { fresh: None, max_age, date }),
                    StatusCode::OK => {}
                    status => {
                        // Without the whole body the status alone is reported.
                        let text = fetch_limited(response, DIRECTORY_LIMIT).await.unwrap_or_default();
                        return Err(unusable(format!("answered {status}{}", quoted(&one_line(&text)))));
                    }
                }
                let unreadable = |reason| unusable(format!("cannot be read: {reason}"));
                let etag = response.headers().get(ETAG).cloned();
                let body = fetch_limited(response, DIRECTORY_LIMIT).await.map_err(|error| match error {
                    BodyError::Broken(_) => unanswered(chain(&error)),
                    BodyError::TooLong { .. } => unreadable(chain(&error)),
                })?;
                let fetched = self.parse(&body, etag).await.map_err(unreadable)?;
                Ok(Answer { fresh: Some(fetched), max_age, date })
            }
        }
    }

    /// Parses a directory, and reads the secrets for it.
    async fn parse(&self, bytes: &[u8], etag: Option<http::HeaderValue>) -> Result<Fetched, String> {
        let directory = Directory::parse(bytes).map_err(|error| error.to_string())?;
        let source = self.clone();
        let accepted = tokio::task::spawn_blocking(move || source.accepted()).await;
        Ok(Fetched { directory, etag, accepted: accepted.map_err(|error| error.to_string())? })
    }

    /// Returns the accepted types with the secrets of private ones. Blocks on the disk.
    pub(crate) fn accepted(&self) -> Accepted {
        Accepted::read(self.types, self.secrets.as_deref())
    }

    /// Stores the ETag of the directory in use. This is separate from the fetch: a directory whose keys are unusable must be
    /// fetched again, and a 304 would report it as unchanged.
    pub(crate) fn used(&mut self, fetched: Option<http::HeaderValue>) {
        if let Origin::Directory { etag, .. } = &mut self.from {
            *etag = fetched;
        }
    }

    /// Returns the directory's URL; `None` for a file, which is read again only on SIGHUP.
    pub(crate) fn url(&self) -> Option<&str> {
        match &self.from {
            Origin::Directory { url, .. } => Some(url),
            Origin::File(_) => None,
        }
    }

    /// Returns the directory's "host:port"; `None` for a file.
    pub(crate) fn address(&self) -> Option<String> {
        let url = self.url()?.parse::<reqwest::Url>().ok()?;
        Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
    }
}

impl Origin {
    fn new(issuer: &Issuer) -> Result<Self, StartError> {
        let fault = match (&issuer.directory, &issuer.keys) {
            (None, Some(path)) => return Ok(Self::File(path.clone())),
            (Some(url), None) => {
                // Checked first, because the other messages repeat the URL.
                if url.contains('@') {
                    "issuer.directory: a name or password in the URL is not used; write it without them".to_owned()
                } else if !url.parse().is_ok_and(|url: reqwest::Url| matches!(url.scheme(), "http" | "https")) {
                    format!("issuer.directory: {url:?} is not an http:// or https:// URL")
                } else {
                let options = ClientOptions {
                    ca_file: issuer.ca.clone(),
                    timeout: FETCH_TIMEOUT,
                    ..ClientOptions::default()
                };
                return Ok(Self::Directory { url: url.clone(), client: client(&options)?, etag: None });
                }
            }
            _ => "issuer: set exactly one of directory (the URL of the issuer's key directory) and keys (a file)".to_owned(),
        };
        Err(StartError::Config(fault))
    }
}

/// Returns the answer's max-age minus the time that caches have kept it (Age); at least 0.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let directives = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = directives.flat_map(|value| value.split(',')).map(str::trim);
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse::<u64>().ok())?
    })?;
    Some(Duration::from_secs(seconds.saturating_sub(age(headers))))
}

/// Returns the issuer's present time: Date plus the time that caches have kept the answer (Age).
fn present(headers: &HeaderMap) -> Option<UnixSeconds> {
    Some(UnixSeconds(date(headers)?.saturating_add(age(headers))))
}

fn age(headers: &HeaderMap) -> u64 {
    headers.get(AGE).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// The difference between this machine's clock and the issuer's, by the last answer with a Date. Keys have validity windows, so a
/// difference makes valid keys look retired, or not yet in use.
#[derive(Default)]
pub(crate) struct Clock {
    /// This machine's clock minus the issuer's, in seconds.
    pub(crate) ahead: i64,
    logged: Option<String>,
}

impl Clock {
    /// Records an answer with the Date `theirs` to a request that was sent at `asked` and answered at `answered`.
    pub(crate) fn compare(&mut self, theirs: UnixSeconds, asked: UnixSeconds, answered: UnixSeconds) {
        let [theirs, asked, answered] =
            [theirs, asked, answered].map(|moment| i64::try_from(moment.0).unwrap_or(i64::MAX));
        // The issuer generated the answer at some time in between.
        self.ahead = match theirs {
            _ if theirs < asked => asked - theirs,
            _ if theirs > answered => answered - theirs,
            _ => 0,
        };
        let differs = self.differs();
        if differs.is_some() != self.logged.is_some() {
            match &differs {
                Some(sentence) => tracing::warn!("{sentence}"),
                None => tracing::info!("this machine's clock agrees with the issuer's again"),
            }
            self.logged = differs;
        }
    }

    /// Returns a sentence with the difference, its consequence and its remedy; `None` while the clocks agree.
    pub(crate) fn differs(&self) -> Option<String> {
        self.apart().map(|apart| format!("{apart}, so {COST}; {REMEDY}"))
    }

    /// Returns the difference in words; `None` while the clocks agree.
    pub(crate) fn apart(&self) -> Option<String> {
        if self.ahead.unsigned_abs() <= TOLERATED {
            return None;
        }
        let (by, way) =
            (rough(self.ahead.unsigned_abs()), if self.ahead > 0 { "ahead of" } else { "behind" });
        Some(format!("this machine's clock is {by} {way} the issuer's"))
    }
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

    fn compared(theirs: u64, asked: u64, answered: u64) -> Option<String> {
        let mut clock = Clock::default();
        clock.compare(UnixSeconds(theirs), UnixSeconds(asked), UnixSeconds(answered));
        clock.differs()
    }

    #[test]
    fn a_difference_is_told_with_its_direction_and_a_slow_answer_is_none() {
        assert_eq!(compared(1_000, 1_000, 1_000), None);
        assert_eq!(compared(1_500, 1_000, 2_000), None, "the answer took long");
        assert_eq!(compared(1_060, 1_000, 1_000), None);
        let behind = compared(4_600, 990, 1_000).unwrap();
        assert!(behind.starts_with("this machine's clock is 60 min behind the issuer's"), "{behind}");
        let ahead = compared(1_000, 5_185_000, 5_185_001).unwrap();
        assert!(ahead.starts_with("this machine's clock is 60 days ahead of the issuer's"), "{ahead}");
        assert!(ahead.contains("NTP"), "{ahead}");
    }
}
