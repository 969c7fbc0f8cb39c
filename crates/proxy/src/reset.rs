//! Ends of connections that the peer cannot mistake for the end of the data, and a bound on what the kernel holds of them.
//!
//! A plain close sends a FIN, which means that the data is complete. If the drain cut it off, or the other side broke, the peer
//! must see an error; otherwise half a file passes for a whole one.

use postern_daemon::farewell::LINGER;
use postern_daemon::tls::Bounded;
use postern_net::tcp_info;
use socket2::SockRef;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;

/// Interval at which delivery to a peer is checked.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// A stream that can end in a reset. One that lies in another stream, as TLS does, passes everything on to that one.
pub trait Reset {
    /// Returns the stream in which this one lies; `None` for a socket, and for a stream that shares its connection.
    fn inner(&self) -> Option<&dyn Reset> {
        None
    }

    /// Makes a later drop of the stream reset the connection instead of ending it. Data that the peer has not received by then is
    /// lost. Over TLS, no `close_notify` is sent either.
    fn reset(&self) {
        self.inner().into_iter().for_each(|inner| inner.reset());
    }

    /// Resets as [`reset`](Self::reset) does, and reports that the peer broke the protocol where an error can say so.
    fn reset_as_malformed(&self) {
        match self.inner() {
            Some(inner) => inner.reset_as_malformed(),
            None => self.reset(),
        }
    }

    /// Returns `true` if the peer's machine has received everything that was written.
    fn is_delivered(&self) -> bool {
        self.inner().is_none_or(|inner| inner.is_delivered())
    }

    /// Bounds the unsent data in the kernel (TCP_NOTSENT_LOWAT). The rest waits where streams take turns.
    fn bound_unsent(&self) {
        self.inner().into_iter().for_each(|inner| inner.bound_unsent());
    }

    /// Returns the socket if the stream is nothing else: their bytes are the same, and dropping the stream after all received
    /// data was read has the same effect on the peer as a shutdown.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// Resets a connection in the middle of an answer. If the peer reads (`is_read`), its machine receives what was written first,
/// unless the result is dropped.
pub fn tear(stream: impl Reset, is_read: bool) -> impl Future<Output = ()> {
    stream.reset();
    async move {
        let began = Instant::now();
        while is_read && !stream.is_delivered() && began.elapsed() < LINGER {
            sleep(TICK).await;
        }
    }
}

impl Reset for TcpStream {
    fn reset(&self) {
        // Fails only if the connection is already gone.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    fn is_delivered(&self) -> bool {
        // Does not wait on systems that cannot detect delivery.
        tcp_info(&SockRef::from(self)).map_or(true, |facts| facts.unacknowledged == 0 && facts.unsent == 0)
    }

    /// Does nothing on other systems: there the kernel's buffer is the bound.
    fn bound_unsent(&self) {
        // 128 KiB: more would delay all other streams. Fails only if the connection is already gone.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(self).set_tcp_notsent_lowat(128 << 10);
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl<S: Reset> Reset for Bounded<S> {
    fn inner(&self) -> Option<&dyn Reset> {
        Some(self.get_ref())
    }
}

impl<S: Reset> Reset for tokio_rustls::server::TlsStream<S> {
    fn inner(&self) -> Option<&dyn Reset> {
        Some(self.get_ref().0)
    }
}

impl<S: Reset> Reset for tokio_rustls::client::TlsStream<S> {
    fn inner(&self) -> Option<&dyn Reset> {
        Some(self.get_ref().0)
    }
}

impl<L: Reset, R: Reset> Reset for Either<L, R> {
    fn inner(&self) -> Option<&dyn Reset> {
        match self {
            Self::Left(stream) => Some(stream),
            Self::Right(stream) => Some(stream),
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

    fn reset_as_malformed(&self) {
        (**self).reset_as_malformed();
    }

    fn is_delivered(&self) -> bool {
        (**self).is_delivered()
    }

    fn bound_unsent(&self) {
        (**self).bound_unsent();
    }

    fn socket(&self) -> Option<&TcpStream> {
        (**self).socket()
    }
}

/// A pipe of this process cannot be reset: its peer sees only its end.
impl Reset for tokio::io::DuplexStream {}
