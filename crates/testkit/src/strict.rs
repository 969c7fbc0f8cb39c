//! Messages of HTTP/1.1, read so strictly that two readers cannot take them for different ones: one request or answer, framed in one
//! way, and not a byte before or after it (RFC 9112).

use std::str;

/// A message that has one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The request or status line.
    pub line: String,
    /// The fields as they stand, their names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Message {
    /// The value of a field that stands there once at most; empty without it.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        let mut found = self.fields.iter().filter(|(of, _)| of == name);
        let value = found.next().map_or("", |(_, value)| value);
        assert_eq!(found.next(), None, "{name} stands there twice");
        value
    }
}

/// Why bytes are not one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They end before it does.
    Cut,
    /// They can be read in more than one way, or hold more than one message.
    Ambiguous(String),
}

fn ambiguous<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Ambiguous(what.into()))
}

/// Reads what a server got on a connection: one request in origin form.
///
/// # Errors
/// [`Fault`].
pub fn request(bytes: &[u8]) -> Result<Message, Fault> {
    alone(next_request(bytes)?)
}

/// Reads the requests that a server got on a connection that was kept: how many are whole, and what is wrong after them.
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

/// Reads what a client got on a connection: one answer. One to HEAD, or without a body by its status, ends with its head. The end of
/// `bytes` ends a body without a length.
///
/// # Errors
/// [`Fault`].
pub fn answer(bytes: &[u8], is_of_head: bool) -> Result<Message, Fault> {
    let (message, rest) = head(bytes)?;
    let status = message.line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
    let Ok(status @ 100..600) = status.parse::<u16>() else {
        return ambiguous(format!("the status line {:?}", message.line));
    };
    if is_of_head || matches!(status, 100..200 | 204 | 304) {
        return alone((message, rest));
    }
    alone(body(message, rest, true)?)
}

fn head(bytes: &[u8]) -> Result<(Message, &[u8]), Fault> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").ok_or(Fault::Cut)?;
    let (head, rest) = bytes.split_at(end + 4);
    let Ok(head) = str::from_utf8(&head[..end]) else { return ambiguous("the head is no text") };
    if head.replace("\r\n", "").contains(|c: char| c.is_control() && c != '\t') {
        return ambiguous(format!("a control character in {head:?}"));
    }
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

fn body(mut message: Message, rest: &[u8], ends_with_the_bytes: bool) -> Result<(Message, &[u8]), Fault> {
    let framing =
        message.fields.iter().filter(|(name, _)| name == "content-length" || name == "transfer-encoding");
    let (body, rest) = match framing.collect::<Vec<_>>()[..] {
        [] if ends_with_the_bytes => (rest.to_vec(), &b""[..]),
        [] => (Vec::new(), rest),
        [(name, coding)] if name == "transfer-encoding" && coding == "chunked" => chunks(rest)?,
        [(name, length)] if name == "content-length" => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let Ok(length @ 0..100_000_000) = length.parse::<usize>() else {
                return ambiguous(format!("the length {length:?}"));
            };
            if !digits {
                return ambiguous("a length that is no number");
            }
            let (body, rest) = rest.split_at_checked(length).ok_or(Fault::Cut)?;
            (body.to_vec(), rest)
        }
        _ => return ambiguous(format!("the framing of {:?}", message.fields)),
    };
    message.body = body;
    Ok((message, rest))
}

/// Chunks without extensions and trailer fields, and what comes after them.
fn chunks(mut bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), Fault> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n").ok_or(Fault::Cut)?;
        let size = str::from_utf8(&bytes[..end]).unwrap_or_default();
        let Some(size) = size
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| usize::from_str_radix(size, 16).ok().filter(|size| *size < 100_000_000))
            .flatten()
        else {
            return ambiguous(format!("the chunk size {size:?}"));
        };
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
        for cut in ["", "Content-Length: 2\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"] {
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
        ] {
            assert!(matches!(read(two), Err(Fault::Ambiguous(_))), "{two:?}: {:?}", read(two));
        }
        for line in ["GET http://x/ HTTP/1.1", "GET  / HTTP/1.1", "GET / HTTP/1.0", "G(T / HTTP/1.1"] {
            let read = request(format!("{line}\r\nHost: x\r\n\r\n").as_bytes());
            assert!(matches!(read, Err(Fault::Ambiguous(_))), "{line}");
        }
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\n\r\nto the end", false).unwrap().body, b"to the end");
        assert!(answer(b"HTTP/1.1 204 No\r\n\r\nx", false).is_err());
    }
}
