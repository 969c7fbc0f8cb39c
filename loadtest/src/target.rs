//! The target of the tunnels. The first byte of a connection selects the target's behaviour. `d` and a length: the target sends
//! that many bytes. `u` and a length: it reads that many and answers with one. `C`: the byte begins a CONNECT from a proxy that
//! can only forward it; the answer is 200, and the next byte selects the behaviour. Any other byte is echoed, like all bytes
//! after it.

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum size of one read or write, in bytes.
pub(crate) const CHUNK: usize = 256 * 1024;

/// Maximum time that a proxy may take to close a tunnel that its client has left.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Direction {
    /// From the target to the client
    Down,
    /// From the client to the target
    Up,
}

impl Direction {
    /// Returns the first bytes from the client to the target.
    pub(crate) fn request(self, length: u64) -> [u8; 9] {
        let mut request = [0; 9];
        request[0] = match self {
            Self::Down => b'd',
            Self::Up => b'u',
        };
        request[1..].copy_from_slice(&length.to_be_bytes());
        request
    }
}

pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    open: Arc<AtomicUsize>,
    kept: Option<Kept>,
}

/// Connections whose first byte was echoed, and on which no more is expected.
type Kept = Arc<Mutex<Vec<TcpStream>>>;

impl Target {
    /// Serves up to `most` connections at once, each on a thread that was started in advance. A target that `keeps` echoes the
    /// first byte of each connection, and then keeps the connection open: `most` limits only concurrent first bytes.
    pub(crate) fn start(address: SocketAddr, most: usize, keeps: bool) -> Result<Self> {
        let kept = keeps.then(Kept::default);
        let listener = Arc::new(TcpListener::bind(address)?);
        let target = Self { address: listener.local_addr()?, open: Arc::default(), kept };
        for _ in 0..most {
            let (listener, open) = (Arc::clone(&listener), Arc::clone(&target.open));
            let kept = target.kept.clone();
            thread::Builder::new().stack_size(128 * 1024).spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    open.fetch_add(1, Ordering::SeqCst);
                    let _ = serve(stream, kept.as_ref()); // the client detects missing data
                    open.fetch_sub(1, Ordering::SeqCst);
                }
            })?;
        }
        Ok(target)
    }

    /// Returns a target that is served elsewhere.
    pub(crate) fn elsewhere(address: SocketAddr) -> Self {
        Self { address, open: Arc::default(), kept: None }
    }

    /// Waits until the proxy has closed every connection, so that closing is part of the measurement.
    pub(crate) fn wait_until_left(&self) -> Result<()> {
        let began = Instant::now();
        while self.open.load(Ordering::SeqCst) > 0 {
            ensure!(began.elapsed() < PATIENCE, "the proxy keeps connections to the target open");
            thread::sleep(Duration::from_millis(1));
        }
        for mut stream in self.kept.iter().flat_map(|kept| std::mem::take(&mut *kept.lock())) {
            stream.set_read_timeout(Some(PATIENCE))?;
            let left =
                stream.read(&mut [0]).context("the proxy keeps an idle connection to the target open")?;
            ensure!(left == 0, "more came than was sent");
        }
        Ok(())
    }
}

fn serve(mut stream: TcpStream, kept: Option<&Kept>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(mut first) = read_first(&mut stream)? else { return Ok(()) };
    if first == b'C' {
        answer_connect(&mut stream)?;
        let Some(next) = read_first(&mut stream)? else { return Ok(()) };
        first = next;
    }
    match first {
        b'd' => {
            let length = read_length(&mut stream)?;
            send(&mut stream, length)?;
            stream.read(&mut [0]).map(drop)
        }
        b'u' => {
            let length = read_length(&mut stream)?;
            take(&mut stream, length)?;
            stream.write_all(&[first])?;
            stream.read(&mut [0]).map(drop)
        }
        _ => {
            stream.write_all(&[first])?;
            match kept {
                Some(kept) => kept.lock().push(stream),
                None => echo(stream)?,
            }
            Ok(())
        }
    }
}

fn read_first(stream: &mut TcpStream) -> io::Result<Option<u8>> {
    let mut first = [0];
    Ok((stream.read(&mut first)? > 0).then_some(first[0]))
}

/// Reads the rest of a CONNECT's head and answers it. No data follows the head before the answer.
fn answer_connect(stream: &mut TcpStream) -> io::Result<()> {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}

fn read_length(stream: &mut TcpStream) -> io::Result<u64> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    Ok(u64::from_be_bytes(length))
}

pub(crate) fn send(stream: &mut impl Write, length: u64) -> io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    let mut left = length;
    while left > 0 {
        let now = left.min(CHUNK as u64);
        stream.write_all(&chunk[..now as usize])?;
        left -= now;
    }
    Ok(())
}

pub(crate) fn take(stream: &mut impl Read, length: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let most = left.min(CHUNK as u64) as usize;
        match stream.read(&mut chunk[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    Ok(())
}
