//! Transfer from one socket to another without a copy, through a pipe of the kernel (splice(2)).

use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::pipe2;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Maximum number of pipes per process, with two descriptors each. A tunnel without a pipe copies.
static MOST: LazyLock<usize> = LazyLock::new(|| {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    most(usize::try_from(files).unwrap_or(usize::MAX))
});

/// Returns the maximum for a limit on descriptors. The pipes' descriptors are among those that daemons leave free next to
/// connections: a quarter of the limit, or 512.
fn most(files: usize) -> usize {
    (files / 64).min(64)
}

/// Maximum size of a splice, in bytes: the same as of a copy, so that tunnels take turns equally often.
const PIECE: usize = 64 * 1024;

static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// An empty pipe. A tunnel holds it only while it contains data, so its thread seldom needs another one.
    static EMPTY: Cell<Option<Pipe>> = const { Cell::new(None) };
}

pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pipe {
    /// Returns an empty pipe; `None` if the maximum is reached or no descriptor is left.
    pub(super) fn take() -> Option<Self> {
        #[cfg(test)]
        if FORBIDDEN.get() {
            return None;
        }
        EMPTY.take().or_else(Self::open)
    }

    fn open() -> Option<Self> {
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < *MOST).then_some(open + 1))
            .ok()?;
        let Ok((reader, writer)) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK) else {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            return None; // no descriptor is left
        };
        Some(Self { reader, writer, held: 0 })
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Keeps an empty pipe for the next tunnel that needs one.
    pub(super) fn give_back(self) {
        if self.held == 0 {
            EMPTY.set(Some(self));
        }
    }

    /// Fills the empty pipe from the socket, and returns the number of bytes. `WouldBlock` and 0 do not show what there is: a
    /// splice stops before urgent data.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        self.held = splice_some(from, &self.writer, PIECE)?;
        #[cfg(test)]
        SPLICED.set(SPLICED.get() + self.held);
        Ok(self.held)
    }

    /// Writes the pipe's content as far as the socket takes it.
    pub(super) fn poll_empty(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            match to.try_io(Interest::WRITABLE, || splice_some(&self.reader, to, self.held)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(taken) => {
                    self.held -= taken;
                    return Poll::Ready(Ok(taken));
                }
            }
        }
    }
}

fn splice_some(from: impl AsFd, to: impl AsFd, length: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    splice(from, None, to, None, length, flags).map_err(io::Error::from)
}

#[cfg(test)]
#[test]
fn pipes_take_a_small_share_of_the_descriptors() {
    assert_eq!([0, 63, 1024, 65_536, usize::MAX].map(most), [0, 0, 16, 64, 64]);
    let all: Vec<Pipe> = std::iter::from_fn(Pipe::take).take(2 * *MOST).collect();
    assert!((1..=*MOST).contains(&all.len()), "{} pipes", all.len());
}

#[cfg(test)]
thread_local! {
    static SPLICED: Cell<usize> = const { Cell::new(0) };
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Denies pipes to this thread, as if others held the maximum.
#[cfg(test)]
pub(super) fn forbid(forbidden: bool) {
    FORBIDDEN.set(forbidden);
}

/// Returns the number of bytes that this thread has read into pipes.
#[cfg(test)]
pub(super) fn spliced() -> usize {
    SPLICED.get()
}
