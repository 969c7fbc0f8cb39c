//! The error with which a gateway fails to start.

use postern_daemon::exit;
use postern_daemon::http::ClientError;
use postern_daemon::listen::BindError;
use postern_daemon::tls::TlsError;
use postern_spend::StoreError;
use postern_telemetry::traces::TracerError;

/// An error that prevents a gateway from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value of the configuration that its type cannot reject, with what to write.
    #[error("{0}")]
    Config(String),
    /// Certificate files cannot be used.
    #[error("{place}: {source}")]
    Tls {
        /// The part of the configuration that names them.
        place: String,
        /// Cause.
        source: TlsError,
    },
    /// The client of the issuer's directory cannot be built.
    #[error("issuer.ca: {0}")]
    Client(#[from] ClientError),
    /// The embedded store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A listening address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The exporter of traces cannot be started.
    #[error(transparent)]
    Tracer(#[from] TracerError),
    /// The machine is at fault.
    #[error("{0}")]
    Machine(String),
}

impl StartError {
    pub(crate) fn tls(place: impl Into<String>) -> impl FnOnce(TlsError) -> Self {
        |source| Self::Tls { place: place.into(), source }
    }

    /// Returns the exit code: [`exit::CONFIG`] if the configuration must be edited, otherwise [`exit::RUNTIME`].
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Tls { source: TlsError::State(_), .. } => exit::RUNTIME,
            Self::Config(_)
            | Self::Tls { .. }
            | Self::Client(_)
            | Self::Tracer(TracerError::Config { .. }) => exit::CONFIG,
            Self::Store(_) | Self::Bind(_) | Self::Tracer(_) | Self::Machine(_) => exit::RUNTIME,
        }
    }
}
