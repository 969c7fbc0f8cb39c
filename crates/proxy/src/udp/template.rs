//! The target of UDP in a request's path (RFC 9298, sections 2 and 3).

use super::describes_content;
use crate::target::{Host, Target, TargetError, Transport};
use http::request;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

/// Begin of each path of the default template.
pub const WELL_KNOWN_BEGIN: &str = "/.well-known/masque/udp/";
/// Path of the default template.
pub const WELL_KNOWN: &str = "/.well-known/masque/udp/{target_host}/{target_port}/";

const HOST: &str = "{target_host}";
const PORT: &str = "{target_port}";

/// Template of the paths at which a proxy carries UDP: literal text around a host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: Box<str>,
    between: Box<str>,
    after: Box<str>,
}

const NO_PATH: &str = "the template must begin with / and hold only characters of a URL's path and query";
const NO_VARIABLES: &str =
    "the template must have {target_host} once and after it {target_port} once, with text between them";

/// Reasons why a request for UDP has no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// It has a field about content, which its capsules are not (RFC 9297, section 3.2).
    Content,
    /// Its path matches no template.
    Path,
    /// The path matches a template, and its host or port is not valid.
    Target(TargetError),
}

impl Default for Template {
    fn default() -> Self {
        let [before, between, after] = [WELL_KNOWN_BEGIN, "/", "/"].map(Box::from);
        Self { before, between, after }
    }
}

impl Template {
    /// Parses a template such as [`WELL_KNOWN`] or `/udp?h={target_host}&p={target_port}`: the host before the port, each by simple
    /// expansion (RFC 6570, section 3.2.2).
    pub fn parse(template: &str) -> Result<Self, &'static str> {
        let (before, rest) = template.split_once(HOST).ok_or(NO_VARIABLES)?;
        let (between, after) = rest.split_once(PORT).ok_or(NO_VARIABLES)?;
        let texts = [before, between, after];
        if texts.iter().any(|text| text.contains(['{', '}'])) {
            return Err(NO_VARIABLES);
        }
        // An encoded host holds the other characters: where it ends must be plain.
        let ends_host = between.bytes().next().is_some_and(|byte| !is_of_value(byte));
        if !ends_host {
            return Err(NO_VARIABLES);
        }
        let is_of_url = |byte: u8| is_of_value(byte) || b"/?!$&'()*+,;=@".contains(&byte);
        if !before.starts_with('/') || !texts.iter().all(|text| text.bytes().all(is_of_url)) {
            return Err(NO_PATH);
        }
        let [before, between, after] = texts.map(Box::from);
        Ok(Self { before, between, after })
    }

    /// Returns the target, over UDP, in the path and query of a request; `None` if they do not match the template.
    ///
    /// # Errors
    /// [`TargetError`]: they match, and the host or the port is not valid. The rules are those of [`Target::parse`], and an IPv6
    /// address has no brackets.
    pub fn target(&self, path_and_query: &str) -> Option<Result<Target, TargetError>> {
        let values = path_and_query.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let (host, port) = values.split_once(&*self.between)?;
        Some(target(host, port))
    }

    /// Returns the path and query that name `target`. Not for a log.
    pub fn expand(&self, target: &Target) -> String {
        let host = match target.host() {
            Host::Name(name) => encoded(name),
            Host::Address(address) => encoded(&address.to_string()),
        };
        [&self.before, &*host, &self.between, &target.port().to_string(), &self.after].concat()
    }
}

/// Returns the target of a request for UDP, by the first of these templates that its path matches.
pub fn target_of<'t>(
    head: &request::Parts,
    templates: impl IntoIterator<Item = &'t Template>,
) -> Result<Target, RequestFault> {
    if describes_content(&head.headers) {
        return Err(RequestFault::Content);
    }
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let target = templates.into_iter().find_map(|template| template.target(path));
    target.ok_or(RequestFault::Path)?.map_err(RequestFault::Target)
}

fn target(host: &str, port: &str) -> Result<Target, TargetError> {
    let host = decoded(host).ok_or(TargetError::Host)?;
    let port = decoded(port).ok_or(TargetError::Port)?;
    let host = match host.parse::<Ipv6Addr>() {
        Ok(address) => Host::Address(IpAddr::from(address)),
        Err(_) if host.starts_with('[') => return Err(TargetError::Host),
        Err(_) => Host::parse(&host)?,
    };
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or(TargetError::Port)?;
    Ok(Target::new(host, port)?.over(Transport::Udp))
}

/// Returns `true` for a byte that an expanded value may hold, and the colon that some clients do not encode.
const fn is_of_value(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b':')
}

/// Encodes all but the unreserved characters (RFC 6570, section 3.2.2).
fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if is_of_value(byte) && byte != b'%' && byte != b':' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // writing to a string cannot fail
        }
    }
    encoded
}

fn decoded(value: &str) -> Option<String> {
    let (mut decoded, mut bytes) = (Vec::with_capacity(value.len()), value.bytes());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' { hex(bytes.next()?)? << 4 | hex(bytes.next()?)? } else { byte });
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Option<Result<String, TargetError>> {
        Template::default().target(path).map(|target| target.map(|target| target.authority()))
    }

    #[test]
    fn names_and_addresses_are_read_from_the_path() {
        for (host, authority) in [
            ("example.com/443", "example.com:443"),
            ("example.com./443", "example.com:443"),
            ("192.0.2.6/443", "192.0.2.6:443"),
            ("2001%3Adb8%3A%3A42/443", "[2001:db8::42]:443"),
            ("2001%3adb8::42/%34%343", "[2001:db8::42]:443"),
            ("a%2Cb/1", "a,b:1"),
        ] {
            let path = format!("/.well-known/masque/udp/{host}/");
            assert_eq!(read(&path), Some(Ok(authority.to_owned())), "{path}");
        }
    }

    #[test]
    fn the_rules_for_a_target_are_those_of_connect() {
        for (values, error) in [
            ("/443", TargetError::Host),
            ("a..b/443", TargetError::Host),
            ("127.1/443", TargetError::Host),
            ("0x7f.1/443", TargetError::Host),
            ("a%2Fb/443", TargetError::Host),
            ("a%00/443", TargetError::Host),
            ("%C3%A4.example/443", TargetError::Host),
            ("%ff/443", TargetError::Host),
            ("a%/443", TargetError::Host),
            ("a%3/443", TargetError::Host),
            ("a%zz/443", TargetError::Host),
            ("a%253A/443", TargetError::Host),
            ("user%40example.com/443", TargetError::Host),
            ("fe80%3A%3A1%25eth0/443", TargetError::Host),
            ("%5B%3A%3A1%5D/443", TargetError::Host),
            ("example.com/", TargetError::Port),
            ("example.com/0", TargetError::Port),
            ("example.com/65536", TargetError::Port),
            ("example.com/+1", TargetError::Port),
            ("example.com/4/43", TargetError::Port),
        ] {
            let path = format!("/.well-known/masque/udp/{values}/");
            assert_eq!(read(&path), Some(Err(error)), "{path}");
        }
    }

    #[test]
    fn other_paths_have_no_target() {
        for path in [
            "/",
            "",
            "/.well-known/masque/udp/",
            "/.well-known/masque/udp/example.com/443",
            "/.well-known/masque/udp/example.com/443/?x",
            "/.well-known/masque/ip/example.com/443/",
            "/x/.well-known/masque/udp/example.com/443/",
        ] {
            assert_eq!(read(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_expanded_is_read_as_the_same_target() {
        let templates = [WELL_KNOWN, "/udp?h={target_host}&p={target_port}", "/{target_host}/{target_port}"];
        for template in templates.map(|template| Template::parse(template).unwrap()) {
            for authority in ["example.com:443", "192.0.2.1:53", "[2001:db8::1]:1", "a!$&'()*+,;=~b_-:65535"]
            {
                let target = Target::parse(authority, None).unwrap().over(Transport::Udp);
                let path = template.expand(&target);
                assert!(path.parse::<http::uri::PathAndQuery>().is_ok());
                assert!(template.target(&path) == Some(Ok(target)), "{path}");
            }
        }
        let target = Target::parse("[2001:db8::42]:443", None).unwrap();
        let expected = "/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/";
        assert_eq!(Template::default().expand(&target), expected);
        assert_eq!(Template::parse(WELL_KNOWN), Ok(Template::default()));
    }

    #[test]
    fn a_template_needs_both_variables_apart_and_a_path() {
        for template in [
            "",
            "/udp",
            "/{target_host}",
            "/{target_port}/{target_host}",
            "/{target_host}{target_port}",
            "/{target_host}-{target_port}",
            "/{target_host}/{target_port}/{target_host}",
            "/{?target_host,target_port}",
        ] {
            assert_eq!(Template::parse(template), Err(NO_VARIABLES), "{template}");
        }
        for template in [
            "udp/{target_host}/{target_port}",
            "/u p/{target_host}/{target_port}",
            "/{target_host}/{target_port}#x",
        ] {
            assert_eq!(Template::parse(template), Err(NO_PATH), "{template}");
        }
    }
}
