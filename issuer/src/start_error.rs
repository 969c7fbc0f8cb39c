//! Why an issuer does not start.

use crate::accounts::AccountsError;
use crate::keys::KeysError;
use postern_daemon::exit;
use postern_daemon::http::ClientError;
use postern_daemon::listen::BindError;
use postern_daemon::tls::TlsError;
use std::net::SocketAddr;

/// Why an issuer did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value of the configuration that only makes no sense beside others.
    #[error("{0}")]
    Config(String),
    /// Issuance would be open to everyone.
    #[error(
        "the issuer would give tokens to everyone who reaches {address}: make an account for who may have them \
         (`postern issuer account add NAME --quota 10000/1d --config FILE`, or `account apply` where a file declares them), \
         or listen on loopback ([listen] address = \"127.0.0.1:8081\"), where no account \
         is needed"
    )]
    Open {
        /// The address of the configuration.
        address: SocketAddr,
    },
    /// The certificate or its key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client of the authorizer.
    #[error("[authorizer] {0}")]
    Authorizer(#[from] ClientError),
    /// The token keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The accounts and their usage.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    /// The signing threads.
    #[error("cannot start the signing threads: {0}; set fewer with [signing] threads")]
    Threads(#[source] std::io::Error),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The runtime went away meanwhile.
    #[error("the start was interrupted: reading the keys ended early; start it again")]
    Interrupted,
}

impl StartError {
    /// The code to exit with: [`exit::CONFIG`] when the configuration must be edited, [`exit::RUNTIME`] otherwise.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Tls(TlsError::State(_)) => exit::RUNTIME,
            Self::Keys(
                KeysError::Encrypted { .. }
                | KeysError::Undecryptable { .. }
                | KeysError::PassphraseFile { .. }
                | KeysError::Module { .. }
                | KeysError::PinFile { .. }
                | KeysError::NoHsm { .. },
            ) => exit::CONFIG,
            Self::Config(_) | Self::Open { .. } | Self::Tls(_) | Self::Authorizer(_) => exit::CONFIG,
            Self::Keys(_) | Self::Accounts(_) | Self::Threads(_) | Self::Listen(_) | Self::Interrupted => {
                exit::RUNTIME
            }
        }
    }
}
