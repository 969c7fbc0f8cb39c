//! One tunnel, from the client's side.

use crate::Through;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a proxy may take for anything. Only a broken one takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What opens each tunnel.
pub(crate) struct Opener {
    proxy: SocketAddr,
    target: SocketAddr,
    credentials: Credentials,
}

enum Credentials {
    None,
    Same(String),
    Each(Vec<String>),
}

/// An open tunnel, and how long it took from the first packet to the proxy's 200.
pub(crate) struct Opened {
    pub(crate) stream: TcpStream,
    pub(crate) began: Instant,
    pub(crate) answered: Duration,
}

impl Opener {
    /// Opens up to `count` tunnels to `target`.
    pub(crate) fn new(through: &Through, target: SocketAddr, count: usize) -> Result<Self> {
        Ok(Self { proxy: through.proxy, target, credentials: Credentials::of(through, count)? })
    }

    /// The tunnel of this number; a token's number is used once.
    pub(crate) fn open(&self, number: usize) -> Result<Opened> {
        let began = Instant::now();
        let mut stream = TcpStream::connect(self.proxy).context("the proxy does not accept")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let authorization = match &self.credentials {
            Credentials::None => return Ok(Opened { stream, began, answered: began.elapsed() }),
            Credentials::Same(value) => value,
            Credentials::Each(values) => &values[number],
        };
        let target = self.target;
        let request = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {authorization}\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        read_answer(&mut stream)?;
        Ok(Opened { stream, began, answered: began.elapsed() })
    }
}

impl Credentials {
    fn of(through: &Through, count: usize) -> Result<Self> {
        if through.direct {
            return Ok(Self::None);
        }
        if let Some(path) = &through.tokens {
            let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let lines = BufReader::new(file).lines().skip(through.skip).take(count);
            let lines = lines.collect::<Result<Vec<_>, _>>()?;
            ensure!(lines.len() == count, "{} holds only {} usable lines", path.display(), lines.len());
            return Ok(Self::Each(lines));
        }
        let value = through.authorization.clone().context("give --tokens, --authorization or --direct")?;
        Ok(Self::Same(value))
    }
}

/// Reads the head of an answer, which must be a 200. The target sends nothing on its own, so nothing follows it.
fn read_answer(stream: &mut TcpStream) -> Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the proxy closed the connection");
        head.extend_from_slice(&buffer[..read]);
        if !head.starts_with(&b"HTTP/1."[..head.len().min(7)]) || is_refusal(&head) {
            let line = head.split(|&byte| byte == b'\r').next().unwrap_or(&head);
            bail!("the proxy answered {}", String::from_utf8_lossy(line));
        }
    }
    Ok(())
}

/// Whether the status is there and is not 200. A refusal's body need not be read to know that.
fn is_refusal(head: &[u8]) -> bool {
    head.get(9..12).is_some_and(|status| status != b"200")
}

/// One byte to the target and back.
pub(crate) fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"x")?;
    let mut echoed = [0];
    stream.read_exact(&mut echoed)?;
    ensure!(echoed == *b"x", "another byte came back");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_refusal;

    #[test]
    fn only_200_opens_a_tunnel() {
        assert!(is_refusal(b"HTTP/1.1 407 Proxy Authentication Required\r\n"));
        assert!(is_refusal(b"HTTP/1.1 503"));
        assert!(!is_refusal(b"HTTP/1.1 200 OK\r\n"));
        assert!(!is_refusal(b"HTTP/1.0 200 Connection established\r\n"));
        assert!(!is_refusal(b"HTTP/1.1 2"), "not all there yet");
    }
}
