//! TLS to PostgreSQL with this program's own rustls.

use postern_daemon::BoxFuture;
use postern_daemon::tls::ClientConfig;
use postern_daemon::writes_through;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};

/// Makes TLS connections that name the host of the URL.
#[derive(Clone, Debug)]
pub(super) struct Connector(pub(super) Arc<ClientConfig>);

pub(super) struct Named(TlsConnector, ServerName<'static>);

pub(super) struct Encrypted<T> {
    stream: T,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Encrypted<ClientStream<S>>;
    type TlsConnect = Named;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Named, Self::Error> {
        // A Unix socket has no name and no TLS: the name is not used.
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Named(TlsConnector::from(self.0.clone()), ServerName::try_from(host.to_owned())?))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Named {
    type Stream = Encrypted<ClientStream<S>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted<ClientStream<S>>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { Ok(Encrypted { stream: self.0.connect(self.1, stream).await? }) })
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<T> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Encrypted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

writes_through!(Encrypted);
