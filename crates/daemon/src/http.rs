//! HTTP code shared by the daemons: a client with strict defaults, size-limited bodies, plain answers.

use crate::tls::{self, OwnCertificate, TlsError};
use ::http::header::{DATE, HOST, HeaderMap};
use ::http::uri::Authority;
use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use postern_net::Lookups;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lifetime of a late lookup result: the longest pause of a client between two attempts.
const LOOKUP_KEPT: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// PEM certificates to trust instead of the platform's.
    pub ca_file: Option<PathBuf>,
    /// Certificate for a server that requires one (mutual TLS); it restricts the client to TLS 1.3.
    pub own: Option<OwnCertificate>,
    /// Time limit of a whole request: connecting, sending, and reading the body.
    pub timeout: Duration,
    /// Time limit of connecting; `None` for that of the whole request.
    pub connect_timeout: Option<Duration>,
    /// Predicate for the addresses that a name resolves to; only accepted ones are connected to. A URL with an address in place
    /// of a name is not looked up, so the caller must check it.
    pub allows: fn(IpAddr) -> bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            ca_file: None,
            own: None,
            timeout: Duration::from_secs(10),
            connect_timeout: None,
            allows: |_| true,
        }
    }
}

/// Builds a client that connects directly: no proxy from the environment, no redirects, no cookies, HTTP/1.1.
pub fn client(options: &ClientOptions) -> Result<reqwest::Client, ClientError> {
    let tls = tls::client_config_showing(options.ca_file.as_deref(), options.own.as_ref())?;
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls::ClientConfig::clone(&tls))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(options.timeout)
        .dns_resolver(Names { allows: options.allows, lookups: Arc::new(Lookups::keeping(LOOKUP_KEPT)) });
    if let Some(limit) = options.connect_timeout {
        builder = builder.connect_timeout(limit);
    }
    Ok(builder.build()?)
}

/// The system's resolver, without the addresses that must not be connected to. reqwest takes the addresses all at once, so those
/// of a late family are left for the next request.
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

/// [`ClientOptions::allows`] rejects every address of a name.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("none of its addresses may be connected to")]
pub struct NoneAllowed;

impl NoneAllowed {
    /// `true` if this error is in the chain of causes of `error`.
    pub fn is_cause_of(error: &(dyn Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.is::<Self>())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Tls(#[from] TlsError),
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the body broke off: {0}")]
    Broken(String),
}

/// Formats an error with all its causes in one line; reqwest's own text omits them.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// `true` if a character has no glyph and may change the display of the text around it: controls, those of bidirectional text
/// (U+202E reverses the rest of a line), and the other format characters (Unicode categories Cc, Cf, Zl and Zp).
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

/// Returns the first 300 characters of a foreign text, cleaned for use in one line.
pub fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let clean: String = text.chars().map(|c| if is_invisible(c) { ' ' } else { c }).take(300).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Quotes a server's message, to follow the status. Empty if there is no message.
pub fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": \"{text}\"") }
}

/// Formats the reason that a request got no answer, with advice and without its URL. `ca` is the setting that names trusted
/// certificates. A `reqwest` error must still contain the URL (not `without_url`): the advice for https and http differs.
pub fn no_answer(error: &(dyn Error + 'static), ca: &str) -> String {
    tls::diagnose(error, ca).unwrap_or_else(|| {
        // reqwest's own text contains the whole URL; callers print the URL as it was configured.
        let request = error.downcast_ref::<reqwest::Error>();
        let over_tls = request.and_then(reqwest::Error::url).is_some_and(|url| url.scheme() == "https");
        let advice = match connection_error(error) {
            Some(error) if error.is_parse() => {
                "what answers is no HTTP: write https:// in place of http:// if it serves TLS".to_owned()
            }
            // In TLS 1.3 a client completes the handshake before the server has verified its certificate, and a request may cross
            // the alert.
            Some(_) if over_tls => format!(
                "the server ended the connection without an answer: if it accepts only clients with a certificate, get one \
                 from its operator, and set `certificate` and `key` next to {ca}"
            ),
            _ => "is it running, and is this its address?".to_owned(),
        };
        format!("{}; {advice}", chain(request.and_then(Error::source).unwrap_or(error)))
    })
}

/// Returns the error of an HTTP connection, which occurs after the TLS handshake.
fn connection_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a hyper::Error> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| cause.downcast_ref())
}

/// `true` if a request names this machine by an address or as localhost. A web page whose name was made to resolve to loopback
/// (DNS rebinding) sends that name as Host, and could otherwise use services that are open to everyone on this machine.
pub fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Some(authority) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    is_localhost(name) || name.parse::<IpAddr>().is_ok()
}

/// `true` if a name denotes the machine that looks it up (RFC 6761, section 6.3).
pub fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next();
    last.is_some_and(|label| label.eq_ignore_ascii_case("localhost"))
}

/// Returns the time of an answer by its server's clock, in Unix seconds (`Date`: RFC 9110, section 6.6.1).
pub fn date(headers: &HeaderMap) -> Option<u64> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Returns the `Date` of an answer made now, which hyper adds for HTTP/1.1.
pub fn date_now() -> HeaderValue {
    HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now())).unwrap_or(HeaderValue::from_static("")) // the text is ASCII
}

/// Serialises the head of an HTTP/1.1 answer that hyper does not write.
pub fn head(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in fields {
        head.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    head
}

pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_text_neither_breaks_its_line_nor_turns_it_around() {
        let text = "no \u{202e}tnuocca\u{2066}\r\n\u{1b}[2J such\u{200f}";
        assert_eq!(one_line(text.as_bytes()), "no tnuocca [2J such");
        assert_eq!(one_line("x".repeat(400).as_bytes()).len(), 300);
    }
}
