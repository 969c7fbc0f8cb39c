//! Small pieces of HTTP that every daemon uses: a client without surprises, bodies with a limit, plain answers.

use crate::tls::{self, OwnCertificate, TlsError};
use ::http::header::{DATE, HOST, HeaderMap};
use ::http::uri::Authority;
use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use postern_lookup::Lookups;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As long as a client pauses at most between two attempts.
const LOOKUP_KEPT: Duration = Duration::from_mins(1);

/// How [`client`] behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// PEM certificates to trust instead of the platform's.
    pub ca_file: Option<PathBuf>,
    /// What is shown to a server that asks for a certificate (mutual TLS); with it only TLS 1.3 is spoken.
    pub own: Option<OwnCertificate>,
    /// The whole of a request: connecting, sending, and reading the body.
    pub timeout: Duration,
    /// Of the addresses that a name resolves to, which may be connected to. A URL that has an address in place of a name is
    /// for the caller to judge: none is looked up.
    pub allows: fn(IpAddr) -> bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { ca_file: None, own: None, timeout: Duration::from_secs(10), allows: |_| true }
    }
}

/// An HTTP client that connects directly: no proxy from the environment, no redirects, no cookies, HTTP/1.1.
///
/// # Errors
/// When the CA file cannot be read or holds no certificate.
pub fn client(options: &ClientOptions) -> Result<reqwest::Client, ClientError> {
    let ca = options.ca_file.as_deref();
    let tls = match &options.own {
        Some(own) => tls::client_config_showing(ca, own)?,
        None => tls::client_config(ca)?,
    };
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls::ClientConfig::clone(&tls))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(options.timeout)
        .dns_resolver(Names { allows: options.allows, lookups: Arc::new(Lookups::keeping(LOOKUP_KEPT)) })
        .build()?;
    Ok(client)
}

/// The system's resolver, without the addresses that may not be connected to. reqwest takes the addresses at once, so those of a
/// family that comes late are for the next request.
struct Names {
    allows: fn(IpAddr) -> bool,
    lookups: Arc<Lookups>,
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let (allows, lookups) = (self.allows, Arc::clone(&self.lookups));
        Box::pin(async move {
            let mut families = lookups.find(name.as_str(), 0);
            let judge = |found: &[SocketAddr]| {
                let allowed: Vec<_> = found.iter().copied().filter(|found| allows(found.ip())).collect();
                (!allowed.is_empty()).then_some(allowed)
            };
            match families.first(judge).await {
                Some(allowed) => Ok(Box::new(allowed.into_iter()) as Addrs),
                None if families.found().is_empty() => Err(families.error().into()),
                None => Err(NoneAllowed.into()),
            }
        })
    }
}

/// Every address of a name is one that [`ClientOptions::allows`] rules out.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("none of its addresses may be connected to")]
pub struct NoneAllowed;

impl NoneAllowed {
    /// Whether it is what an error was caused by.
    #[must_use]
    pub fn is_cause_of(error: &(dyn Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.is::<Self>())
    }
}

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The trusted certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client itself.
    #[error("cannot set up the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// Reads the body of an answer, `limit` bytes at most.
///
/// # Errors
/// [`BodyError::TooLong`] as soon as one byte more than `limit` has come, without reading the rest.
pub async fn fetch_limited(mut response: reqwest::Response, limit: usize) -> Result<Bytes, BodyError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| BodyError::Broken(chain(&error)))? {
        if chunk.len() > limit - body.len() {
            return Err(BodyError::TooLong { limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Reads the body of a request, `limit` bytes at most. The caller sets the time limit.
///
/// # Errors
/// [`BodyError::TooLong`] as soon as one byte more than `limit` has come.
pub async fn read_limited<B>(body: B, limit: usize) -> Result<Bytes, BodyError>
where
    B: ::http_body_util::BodyExt<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLong { limit }),
        Err(error) => Err(BodyError::Broken(error.to_string())),
    }
}

/// Why a body could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// More bytes than allowed.
    #[error("the body is longer than {limit} bytes")]
    TooLong {
        /// The most that is read.
        limit: usize,
    },
    /// The connection ended, or the time ran out.
    #[error("the body broke off: {0}")]
    Broken(String),
}

/// An error with everything that caused it, in one line: reqwest's own text leaves the cause out.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// Whether a character shows nothing itself, and may change how the text around it is shown: controls, those of bidirectional text
/// (U+202E turns the rest of a line around), and the other format characters (Unicode's categories Cc, Cf, Zl and Zp).
#[must_use]
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
                | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// The first 300 characters of someone else's text, fit for one line of ours.
#[must_use]
pub fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let clean: String = text.chars().map(|c| if is_invisible(c) { ' ' } else { c }).take(300).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why a request got no answer, and what to do, without its URL. `ca` is the setting that names trusted certificates.
/// An error of `reqwest` must still hold the URL (not `without_url`): https and http have different advice.
#[must_use]
pub fn no_answer(error: &(dyn Error + 'static), ca: &str) -> String {
    tls::diagnose(error, ca).unwrap_or_else(|| {
        // Its own sentence holds the whole URL, which callers name as it was configured.
        let request = error.downcast_ref::<reqwest::Error>();
        let over_tls = request.and_then(reqwest::Error::url).is_some_and(|url| url.scheme() == "https");
        let advice = match connection_error(error) {
            Some(error) if error.is_parse() => {
                "what answers is no HTTP: write https:// in place of http:// if it serves TLS".to_owned()
            }
            // In TLS 1.3 a client is done before the server has looked at its certificate, and a request may cross the alert.
            Some(_) if over_tls => format!(
                "the server ended the connection without an answer: if it accepts only clients with a certificate, get one \
                 from its operator, and set `certificate` and `key` beside {ca}"
            ),
            _ => "is it running, and is this its address?".to_owned(),
        };
        format!("{}; {advice}", chain(request.and_then(Error::source).unwrap_or(error)))
    })
}

/// What happened to an HTTP connection, the TLS handshake of which was over.
fn connection_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a hyper::Error> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| cause.downcast_ref())
}

/// Whether a request means this machine by an address or as localhost. A web page whose name was made to lead to
/// loopback (DNS rebinding) sends that name as Host, and could otherwise use what is open to everyone here.
#[must_use]
pub fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Some(authority) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    is_localhost(name) || name.parse::<IpAddr>().is_ok()
}

/// Whether a name means the machine on which it is looked up (RFC 6761, section 6.3).
#[must_use]
pub fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next();
    last.is_some_and(|label| label.eq_ignore_ascii_case("localhost"))
}

/// When an answer was made, by its server's clock, in seconds since 1970 (`Date`: RFC 9110, section 6.6.1).
#[must_use]
pub fn date(headers: &HeaderMap) -> Option<u64> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// The `Date` of an answer that is made now, which hyper adds for HTTP/1.1.
#[must_use]
pub fn date_now() -> HeaderValue {
    HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now())).unwrap_or(HeaderValue::from_static("")) // it is ASCII
}

/// The head of an answer of HTTP/1.1, as bytes, for what hyper does not write.
#[must_use]
pub fn head(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in fields {
        head.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    head
}

/// A plain text answer.
#[must_use]
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
