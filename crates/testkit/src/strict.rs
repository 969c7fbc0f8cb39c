//! HTTP/1.1 messages, parsed so strictly that two parsers cannot read them differently: one request or answer with one framing,
//! and no byte before or after it (RFC 9112).

use std::str;

/// A message with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Request line or status line.
    pub line: String,
    /// Fields as received, with their names in lower case.
    pub fields: Vec<(String, String)>,
    /// Body without its framing.
    pub body: Vec<u8>,
}

impl Message {
    /// Returns the value of a field that occurs at most once; empty if the field is absent. Panics if it occurs twice.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        let mut found = self.fields.iter().filter(|(of, _)| of == name);
        let value = found.next().map_or("", |(_, value)| value);
        assert_eq!(found.next(), None, "{name} occurs twice");
        value
    }
}

/// Reason for which bytes are not one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A message that is cut short.
    Cut,
    /// Bytes with more than one interpretation, or with more than one message.
    Ambiguous(String),
}

/// Size from which a body counts as ambiguous, in bytes: no test sends one.
const MOST: usize = 100_000_000;

fn ambiguous<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Ambiguous(what.into()))
}

/// Parses the bytes that a server received on a connection: one request in origin form, or for `*`.
pub fn request(bytes: &[u8]) -> Result<Message, Fault> {
    alone(next_request(bytes)?)
}

/// Parses the requests that a server received on a persistent connection. Returns the complete ones, and the error after them.
#[must_use]
pub fn requests(mut bytes: &[u8]) -> (Vec<Message>, Option<Fault>) {
    let mut whole = Vec::new();
    while !bytes.is_empty() {
        match next_request(bytes) {
            Ok((message, rest)) => {
                whole.push(message);
                bytes = rest;
            }
            Err(fault) => return (whole, Some(fault)),
        }
    }
    (whole, None)
}

fn alone((message, rest): (Message, &[u8])) -> Result<Message, Fault> {
    if rest.is_empty() {
        return Ok(message);
    }
    ambiguous(format!("{:?} after it", String::from_utf8_lossy(rest)))
}

fn next_request(bytes: &[u8]) -> Result<(Message, &[u8]), Fault> {
    let (message, rest) = head(bytes)?;
    let [method, path, "HTTP/1.1"] = message.line.split(' ').collect::<Vec<_>>()[..] else {
        return ambiguous(format!("the request line {:?}", message.line));
    };
    if !is_token(method) || !(path.starts_with('/') || path == "*") {
        return ambiguous(format!("the request line {:?}", message.line));
    }
    if message.fields.iter().filter(|(name, _)| name == "host").count() != 1 {
        return ambiguous("not one Host field");
    }
    body(message, rest, false)
}

/// Parses the bytes that a client received on a connection: one answer. An answer to HEAD, or without a body by its status, ends
/// with its head. The end of `bytes` ends a body without a length.
pub fn answer(bytes: &[u8], is_of_head: bool) -> Result<Message, Fault> {
    let (message, rest) = head(bytes)?;
    let status = match message.line.splitn(3, ' ').collect::<Vec<_>>()[..] {
        ["HTTP/1.1", status, _] if status.len() == 3 => status.parse().unwrap_or(0),
        _ => 0,
    };
    if !(100..600).contains(&status) {
        return ambiguous(format!("the status line {:?}", message.line));
    }
    if is_of_head || matches!(status, 100..200 | 204 | 304) {
        let framing = framing(&message);
        let may_announce = !matches!(status, 100..200 | 204); // RFC 9110, section 8.6, and RFC 9112, section 6.1
        return match framing[..] {
            [] => alone((message, rest)),
            [(name, value)] if may_announce && (name == "transfer-encoding" || length(value).is_some()) => {
                alone((message, rest))
            }
            _ => ambiguous(format!("the framing of a body that is not sent: {framing:?}")),
        };
    }
    alone(body(message, rest, true)?)
}

fn head(bytes: &[u8]) -> Result<(Message, &[u8]), Fault> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let received = end.map_or_else(|| bytes.strip_suffix(b"\r").unwrap_or(bytes), |end| &bytes[..end]);
    let Ok(head) = str::from_utf8(received) else { return ambiguous("the head is not text") };
    if head.replace("\r\n", "").contains(|c: char| c.is_control() && c != '\t') {
        return ambiguous(format!("a control character in {head:?}"));
    }
    let rest = &bytes[end.ok_or(Fault::Cut)? + 4..];
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let mut fields = Vec::new();
    for line in lines {
        match line.split_once(':') {
            Some((name, value)) if is_token(name) => {
                fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
            }
            _ => return ambiguous(format!("the field line {line:?}")),
        }
    }
    Ok((Message { line, fields, body: Vec::new() }, rest))
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Returns the fields that frame a body.
fn framing(message: &Message) -> Vec<&(String, String)> {
    let is_framing = |name: &str| name == "content-length" || name == "transfer-encoding";
    message.fields.iter().filter(|(name, _)| is_framing(name)).collect()
}

/// Parses a length: digits alone, below [`MOST`].
fn length(text: &str) -> Option<usize> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|length| is_number && *length < MOST)
}

fn body(mut message: Message, rest: &[u8], ends_with_the_bytes: bool) -> Result<(Message, &[u8]), Fault> {
    let (body, rest) = match framing(&message)[..] {
        [] if ends_with_the_bytes => (rest.to_vec(), &b""[..]),
        [] => (Vec::new(), rest),
        [(name, coding)] if name == "transfer-encoding" && coding == "chunked" => chunks(rest)?,
        [(name, value)] if name == "content-length" => {
            let Some(length) = length(value) else { return ambiguous(format!("the length {value:?}")) };
            let (body, rest) = rest.split_at_checked(length).ok_or(Fault::Cut)?;
            (body.to_vec(), rest)
        }
        _ => return ambiguous(format!("the framing of {:?}", message.fields)),
    };
    message.body = body;
    Ok((message, rest))
}

/// Parses chunks without extensions and trailer fields. Returns the body and the bytes after it.
fn chunks(mut bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), Fault> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n");
        let size = end.map_or_else(|| bytes.strip_suffix(b"\r").unwrap_or(bytes), |end| &bytes[..end]);
        if !size.iter().all(u8::is_ascii_hexdigit) {
            return ambiguous(format!("the chunk size {:?}", String::from_utf8_lossy(size)));
        }
        let end = end.ok_or(Fault::Cut)?;
        let size = str::from_utf8(size).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size < MOST) else { return ambiguous("the size of a chunk") };
        let (data, rest) = bytes[end + 2..].split_at_checked(size).ok_or(Fault::Cut)?;
        body.extend_from_slice(data);
        match rest.split_at_checked(2).ok_or(Fault::Cut)? {
            (b"\r\n", rest) if size == 0 => return Ok((body, rest)),
            (b"\r\n", rest) => bytes = rest,
            (other, _) => return ambiguous(format!("{other:?} after a chunk")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_read_and_what_could_be_two_is_not() {
        let read = |rest: &str| request(format!("POST /a HTTP/1.1\r\nHost: x\r\n{rest}").as_bytes());
        assert_eq!(read("Content-Length: 2\r\n\r\nab").unwrap().body, b"ab");
        assert_eq!(
            read("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n").unwrap().body,
            b"abc"
        );
        assert_eq!(read("\r\n").unwrap().value("host"), "x");
        for cut in [
            "",
            "A: b\r",
            "Content-Length: 2\r\n\r\na",
            "Transfer-Encoding: chunked\r\n\r\n1\r",
            "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        ] {
            assert_eq!(read(cut), Err(Fault::Cut), "{cut:?}");
        }
        for two in [
            "\r\nx",
            "Host: y\r\n\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
            "Content-Length: \r\n\r\n",
            "Content-Length: +1\r\n\r\na",
            "Content-Length: 1\r\n\r\nab",
            "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
            "A : b\r\n\r\n",
            "A: b\r\n c\r\n\r\n",
            "A: b\rc\r\n\r\n",
            "A: b\nC: d\r\n\r\n",
            "A: b\n\nGET",
            "Transfer-Encoding: chunked\r\n\r\nz\r",
        ] {
            assert!(matches!(read(two), Err(Fault::Ambiguous(_))), "{two:?}: {:?}", read(two));
        }
        for line in ["GET http://x/ HTTP/1.1", "GET  / HTTP/1.1", "GET / HTTP/1.0", "G(T / HTTP/1.1"] {
            let read = request(format!("{line}\r\nHost: x\r\n\r\n").as_bytes());
            assert!(matches!(read, Err(Fault::Ambiguous(_))), "{line}");
        }
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\n\r\nto the end", false).unwrap().body, b"to the end");
    }

    #[test]
    fn an_answer_without_a_body_announces_one_only_where_it_may() {
        let read = |line: &str, rest: &str, is_of_head| {
            answer(format!("HTTP/1.1 {line}\r\n{rest}").as_bytes(), is_of_head)
        };
        for (line, rest, is_of_head) in [
            ("204 No", "\r\n", false),
            ("304 Not Modified", "Content-Length: 4\r\n\r\n", false),
            ("200 OK", "Content-Length: 4\r\n\r\n", true),
            ("200 ", "Transfer-Encoding: chunked\r\n\r\n", true),
        ] {
            assert!(read(line, rest, is_of_head).is_ok(), "{line} {rest:?}");
        }
        for (line, rest, is_of_head) in [
            ("204 No", "\r\nx", false),
            ("204 No", "Content-Length: 0\r\n\r\n", false),
            ("103 Early Hints", "Transfer-Encoding: chunked\r\n\r\n", false),
            ("200 OK", "Content-Length: 4\r\nContent-Length: 5\r\n\r\n", true),
            ("200 OK", "Content-Length: 4, 5\r\n\r\n", true),
            ("2000 OK", "\r\n", false),
            ("200OK", "\r\n", false),
            ("200", "\r\n", false),
        ] {
            let read = read(line, rest, is_of_head);
            assert!(matches!(read, Err(Fault::Ambiguous(_))), "{line} {rest:?}: {read:?}");
        }
    }

    #[test]
    fn requests_of_one_connection_are_read_one_after_another() {
        let (whole, fault) =
            requests(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: x\r\n\r\nGET");
        let lines: Vec<_> = whole.iter().map(|message| &*message.line).collect();
        assert_eq!((&lines[..], fault), (&["GET / HTTP/1.1", "OPTIONS * HTTP/1.1"][..], Some(Fault::Cut)));
    }
}
