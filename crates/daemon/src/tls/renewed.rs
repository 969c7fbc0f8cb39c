//! The certificate of a server across the reloads of its configuration, and the task that renews it.

use super::{ServerTls, TlsConfig, TlsError};
use crate::drain::Shutdown;
use crate::readiness::{Gate, Readiness};
use tokio::sync::watch;
use tokio::task::AbortHandle;

#[derive(Debug)]
pub struct Renewed {
    name: &'static str,
    tls: Option<ServerTls>,
    renewal: Option<AbortHandle>,
    gate: Option<Gate>,
    readiness: Readiness,
    shutdown: Shutdown,
    ends: fn(u64),
    listening: watch::Receiver<bool>,
}

impl Renewed {
    /// Creates the state with the certificate of the start, if there is one; `name` is its name in readiness. `ends` is called
    /// with its end in Unix seconds, or with 0 if there is none any more. Nothing is ordered from an authority before
    /// `listening`.
    pub fn new(
        name: &'static str,
        tls: Option<ServerTls>,
        readiness: &Readiness,
        shutdown: &Shutdown,
        ends: fn(u64),
        listening: watch::Receiver<bool>,
    ) -> Self {
        let gate = tls.is_some().then(|| readiness.gate(name));
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        Self { name, tls, renewal: None, gate, readiness, shutdown, ends, listening }
    }

    pub fn current(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    /// Opens the certificate of another configuration, and leaves the one in use alone. Blocks on the disk.
    pub fn open(&self, config: Option<&TlsConfig>) -> Result<Option<ServerTls>, TlsError> {
        config.map(|config| config.open_after(self.tls.as_ref())).transpose()
    }

    /// Replaces the certificate, and renews the new one from now on, until the stop.
    pub fn replace(&mut self, tls: Option<ServerTls>) {
        self.tls = tls;
        self.start();
    }

    /// Begins the renewal, and ends the previous one.
    pub fn start(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let Some(tls) = self.tls.clone() else {
            (self.ends)(0);
            self.gate.iter().for_each(Gate::set_ready);
            return;
        };
        let gate = self.gate.get_or_insert_with(|| self.readiness.gate(self.name)).clone();
        let mut listening = self.listening.clone();
        let listening = async move { drop(listening.wait_for(|is_listening| *is_listening).await) };
        let renewal = tokio::spawn(tls.renew(gate, self.ends, listening, self.shutdown.clone()));
        self.renewal = Some(renewal.abort_handle());
    }
}

/// Puts the self-signed certificate of the start into a configuration that was read again.
pub fn keep_signed(tls: &mut Option<TlsConfig>, signed: Option<&TlsConfig>) -> Result<(), TlsError> {
    match (signed, &tls) {
        (Some(_), Some(_)) => Err(TlsError::Unusable(
            "--self-signed made a certificate, and the file has one in [tls]: choose one, and start again without the other"
                .to_owned(),
        )),
        (Some(signed), None) => {
            *tls = Some(signed.clone());
            Ok(())
        }
        (None, _) => Ok(()),
    }
}
