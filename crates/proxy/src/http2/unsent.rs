//! What the kernel holds of a connection and has not sent.

use super::stream::Http2Stream;
use postern_daemon::tls::Bounded;
use tokio::net::TcpStream;
use tokio_util::either::Either;

/// A stream over a socket.
pub trait Unsent {
    /// Bounds what the kernel holds and has not sent (TCP_NOTSENT_LOWAT): the rest waits where streams take turns.
    fn bound_unsent(&self);
}

impl Unsent for TcpStream {
    fn bound_unsent(&self) {
        bound(self);
    }
}

impl<S: Unsent> Unsent for Bounded<S> {
    fn bound_unsent(&self) {
        self.get_ref().bound_unsent();
    }
}

impl<S: Unsent> Unsent for tokio_rustls::server::TlsStream<S> {
    fn bound_unsent(&self) {
        self.get_ref().0.bound_unsent();
    }
}

impl<S: Unsent> Unsent for tokio_rustls::client::TlsStream<S> {
    fn bound_unsent(&self) {
        self.get_ref().0.bound_unsent();
    }
}

impl<L: Unsent, R: Unsent> Unsent for Either<L, R> {
    fn bound_unsent(&self) {
        match self {
            Self::Left(stream) => stream.bound_unsent(),
            Self::Right(stream) => stream.bound_unsent(),
        }
    }
}

impl<S: Unsent + ?Sized> Unsent for Box<S> {
    fn bound_unsent(&self) {
        (**self).bound_unsent();
    }
}

/// Its connection is bound already.
impl Unsent for Http2Stream {
    fn bound_unsent(&self) {}
}

#[cfg(target_os = "linux")]
fn bound(socket: &TcpStream) {
    /// In bytes. More would be in front of every other stream's.
    const UNSENT: u32 = 128 << 10;
    // It fails where the connection is gone already.
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT);
}

/// On other systems as much is unsent as the kernel buffers.
#[cfg(not(target_os = "linux"))]
fn bound(_socket: &TcpStream) {}
