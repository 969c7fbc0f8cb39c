//! Ending a connection in a way that the peer cannot take for the end of what was sent.
//!
//! A plain close is a FIN: "that was all". Where it was not, because the drain cut it off or the other side broke, the
//! peer has to see an error, or half a file passes for a whole one.

use postern_daemon::tls::Bounded;
use postern_tcp_info::tcp_info;
use socket2::SockRef;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;

/// How often to check whether a peer has received the data.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// A stream whose end can be made a reset.
pub trait Reset {
    /// From now on, dropping the stream resets the connection instead of ending it; what the peer has not got yet, it
    /// never gets. Over TLS there is no `close_notify` either.
    fn reset(&self);

    /// Whether the peer's machine has everything that was written.
    fn is_delivered(&self) -> bool;

    /// The socket, where the stream is nothing else: each byte of the one is a byte of the other, and dropping the stream when
    /// all that came was read tells the peer the same as a shutdown.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// Returns when the peer's machine has everything that was written, or after `limit`.
pub async fn delivered(stream: &impl Reset, limit: Duration) {
    let began = Instant::now();
    while !stream.is_delivered() && began.elapsed() < limit {
        sleep(TICK).await;
    }
}

impl Reset for TcpStream {
    fn reset(&self) {
        // It fails where the connection is gone already.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    fn is_delivered(&self) -> bool {
        // Where the system cannot detect it, do not wait for it.
        tcp_info(&SockRef::from(self)).map_or(true, |facts| facts.unacknowledged == 0 && facts.unsent == 0)
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl<S: Reset> Reset for Bounded<S> {
    fn reset(&self) {
        self.get_ref().reset();
    }

    fn is_delivered(&self) -> bool {
        self.get_ref().is_delivered()
    }
}

impl<S: Reset> Reset for tokio_rustls::server::TlsStream<S> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }

    fn is_delivered(&self) -> bool {
        self.get_ref().0.is_delivered()
    }
}

impl<S: Reset> Reset for tokio_rustls::client::TlsStream<S> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }

    fn is_delivered(&self) -> bool {
        self.get_ref().0.is_delivered()
    }
}

impl<L: Reset, R: Reset> Reset for Either<L, R> {
    fn reset(&self) {
        match self {
            Self::Left(stream) => stream.reset(),
            Self::Right(stream) => stream.reset(),
        }
    }

    fn is_delivered(&self) -> bool {
        match self {
            Self::Left(stream) => stream.is_delivered(),
            Self::Right(stream) => stream.is_delivered(),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Left(stream) => stream.socket(),
            Self::Right(stream) => stream.socket(),
        }
    }
}

impl<S: Reset + ?Sized> Reset for Box<S> {
    fn reset(&self) {
        (**self).reset();
    }

    fn is_delivered(&self) -> bool {
        (**self).is_delivered()
    }

    fn socket(&self) -> Option<&TcpStream> {
        (**self).socket()
    }
}

/// A pipe of this process has nothing to reset: its end is all that its other end sees.
impl Reset for tokio::io::DuplexStream {
    fn reset(&self) {}

    fn is_delivered(&self) -> bool {
        true
    }
}
