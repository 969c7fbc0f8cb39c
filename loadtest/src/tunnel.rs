//! The client's side of a tunnel.

use crate::http2::Connections;
use crate::target::{PATIENCE, Target};
use crate::tls::{self, Tls};
use crate::udp::{self, Capsules};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustls::ClientConfig;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Options of a tunnel.
#[derive(Debug, Args)]
pub(crate) struct Through {
    /// The proxy
    #[arg(long, value_name = "ADDR")]
    pub(crate) proxy: SocketAddr,
    /// The target's address; a port of the system's choosing by default
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) target: SocketAddr,
    /// The proxy relays each connection to the target by itself: send no CONNECT
    #[arg(long, conflicts_with_all = ["tokens", "authorization", "http2"])]
    pub(crate) direct: bool,
    /// The proxy speaks TLS, with a certificate for localhost of the authority in this PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Open the tunnels on this many HTTP/2 connections, in turn, rather than on one each
    #[arg(long, value_name = "CONNECTIONS")]
    pub(crate) http2: Option<usize>,
    /// Close these tunnels by a reset, not by the end of the stream
    #[arg(long, requires = "http2")]
    pub(crate) reset: bool,
    /// The tunnels carry UDP
    #[arg(long, requires = "http2")]
    pub(crate) udp: bool,
    /// One Proxy-Authorization value a line, each used for one tunnel
    #[arg(long, value_name = "FILE", conflicts_with = "authorization")]
    pub(crate) tokens: Option<PathBuf>,
    /// Skip this many lines of the tokens: earlier runs used them
    #[arg(long, default_value_t = 0)]
    pub(crate) skip: usize,
    /// One Proxy-Authorization value for all tunnels
    #[arg(long, value_name = "VALUE")]
    pub(crate) authorization: Option<String>,
    /// Print "ready" before the work, and begin when a line comes on standard input
    #[arg(long)]
    pub(crate) wait: bool,
}

impl Through {
    /// Waits for the measuring process, if `wait` is set, so that it can read its clocks first.
    pub(crate) fn begin(&self) -> Result<()> {
        if self.wait {
            print_line("ready")?;
            ensure!(stdin().read_line(&mut String::new())? > 0, "standard input ended before the work began");
        }
        Ok(())
    }

    /// Starts the target: see [`Target::start`].
    pub(crate) fn target(&self, most: usize, keeps: bool) -> Result<Target> {
        if self.udp {
            Ok(Target::elsewhere(udp::serve(self.target)?))
        } else {
            Target::start(self.target, most, keeps)
        }
    }

    fn authorizations(&self, count: usize) -> Result<Vec<String>> {
        if self.direct {
            return Ok(Vec::new());
        }
        if let Some(path) = &self.tokens {
            let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let lines = BufReader::new(file).lines().skip(self.skip).take(count);
            let lines = lines.collect::<Result<Vec<_>, _>>()?;
            ensure!(lines.len() == count, "{} holds only {} usable lines", path.display(), lines.len());
            return Ok(lines);
        }
        let value = self.authorization.clone();
        Ok(vec![value.context("give --tokens, --authorization or --direct")?])
    }
}

/// Prints a line and flushes it, because standard output may be a pipe.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

pub(crate) struct Opener {
    way: Way,
    target: SocketAddr,
    is_udp: bool,
    /// Values of Proxy-Authorization: one for all tunnels, or one for each; none if no request is sent to the proxy.
    authorizations: Vec<String>,
}

/// Connections to the proxy.
enum Way {
    /// One connection per tunnel.
    Own { proxy: SocketAddr, tls: Option<Arc<ClientConfig>> },
    /// One stream of a shared connection per tunnel.
    Shared(Connections),
}

/// The client's end of a tunnel.
pub(crate) trait Tunnel: Read + Write + Send {}

impl<T: Read + Write + Send> Tunnel for T {}

/// An open tunnel, and the time from the first packet to the proxy's 200.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Tunnel>,
    pub(crate) began: Instant,
    pub(crate) answered: Duration,
}

impl Way {
    fn of(through: &Through) -> Result<Self> {
        let protocols: &[&[u8]] = if through.http2.is_some() { &[b"h2"] } else { &[b"http/1.1"] };
        let tls = through.ca.as_deref().map(|ca| tls::config(ca, protocols)).transpose()?;
        match through.http2 {
            Some(connections) => {
                let ways = (through.reset, through.udp);
                Ok(Self::Shared(Connections::new(through.proxy, tls, connections, ways)?))
            }
            None => Ok(Self::Own { proxy: through.proxy, tls }),
        }
    }
}

impl Opener {
    /// Creates an opener for up to `count` tunnels to `target`.
    pub(crate) fn new(through: &Through, target: SocketAddr, count: usize) -> Result<Self> {
        let authorizations = through.authorizations(count)?;
        Ok(Self { way: Way::of(through)?, target, is_udp: through.udp, authorizations })
    }

    /// Opens the tunnel `number` for UDP.
    pub(crate) fn open_udp(&self, number: usize) -> Result<Capsules> {
        let Way::Shared(connections) = &self.way else { bail!("UDP needs --http2 and --udp") };
        let stream = connections.open(number, self.target, self.authorization(number).unwrap_or_default())?;
        Ok(Capsules::new(stream))
    }

    fn authorization(&self, number: usize) -> Option<&str> {
        let index = number.checked_rem(self.authorizations.len())?;
        Some(&self.authorizations[index])
    }

    /// Waits until the proxy has ended the streams of all tunnels that were left.
    pub(crate) fn wait_until_ended(&self) -> Result<()> {
        if let Way::Shared(connections) = &self.way { connections.wait_until_ended() } else { Ok(()) }
    }

    /// Opens the tunnel `number`. With tokens, each number may be used once.
    pub(crate) fn open(&self, number: usize) -> Result<Opened> {
        let began = Instant::now();
        let authorization = self.authorization(number);
        let stream: Box<dyn Tunnel> = match &self.way {
            Way::Shared(_) if self.is_udp => Box::new(self.open_udp(number)?),
            Way::Shared(connections) => {
                Box::new(connections.open(number, self.target, authorization.unwrap_or_default())?)
            }
            Way::Own { proxy, tls } => {
                let mut stream = connect(*proxy, tls.as_ref())?;
                if let Some(value) = authorization {
                    ask(&mut *stream, self.target, value)?;
                }
                stream
            }
        };
        Ok(Opened { stream, began, answered: began.elapsed() })
    }
}

/// Sends a CONNECT and reads the answer.
fn ask(stream: &mut dyn Tunnel, target: SocketAddr, authorization: &str) -> Result<()> {
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {authorization}\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    read_answer(stream)
}

fn connect(proxy: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Box<dyn Tunnel>> {
    let stream = TcpStream::connect(proxy).context("the proxy does not accept")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(match tls {
        Some(config) => Box::new(Tls::new(config, stream)?),
        None => Box::new(stream),
    })
}

/// Reads the head of an answer, which must be a 200. Nothing follows the head, because the target never sends first.
fn read_answer(stream: &mut dyn Tunnel) -> Result<()> {
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

/// `true` if the status is complete and is not 200. A refusal's body is not needed for that.
fn is_refusal(head: &[u8]) -> bool {
    head.get(9..12).is_some_and(|status| status != b"200")
}

/// Sends one byte to the target and reads its echo.
pub(crate) fn echo(stream: &mut dyn Tunnel) -> Result<()> {
    stream.write_all(b"x")?;
    stream.flush()?;
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
