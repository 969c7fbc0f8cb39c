//! One tunnel, one token: the spend discipline.
//!
//! A token is taken off the disk before it is sent and is never sent twice. A token that was refused, or whose fate is
//! unknown because the connection broke, is replaced by another one, once in all.

use crate::answer::Refusal;
use crate::gateway::{Answer, Connection, DialError, ExchangeError, Gateway, Tunnel};
use crate::mint::one_line;
use crate::recorder::{Part, Recorder};
use crate::slot::Unspent;
use crate::supply::Supply;
use crate::target::Target;
use http::StatusCode;
use std::sync::Arc;
use std::time::Instant;

/// Opens tunnels. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) supply: Arc<Supply>,
    pub(crate) recorder: Arc<Recorder>,
}

impl Opener {
    /// A tunnel to `target`, paid for with one token, or two when the first one was no good.
    pub(crate) async fn open(&self, target: &Target) -> Result<Tunnel, Refusal> {
        let began = Instant::now();
        let mut is_replacement = false;
        loop {
            let (connection, unspent) = self.fund().await?;
            let asked = Instant::now();
            // From here on the token counts as sent, whatever happens.
            match connection.connect(target, Some(&unspent.token)).await {
                Ok(Answer::Opened(tunnel)) => {
                    return Ok(tunnel.counted(self.recorder.opened(asked.elapsed(), began.elapsed())));
                }
                Ok(Answer::Refused(refused))
                    if refused.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED =>
                {
                    self.supply.refused(&unspent.token, &refused);
                    if is_replacement {
                        return Err(Refusal::TokensRefused { reason: one_line(&refused.body) });
                    }
                }
                Ok(Answer::Refused(refused)) => return Err(Refusal::Passed(refused)),
                Err(ExchangeError::Broken { .. }) if !is_replacement => {}
                Err(error) => return Err(Refusal::Exchange(error)),
            }
            is_replacement = true;
        }
    }

    /// A connection and a token for it. The connection comes first: a gateway that is down costs nothing.
    async fn fund(&self) -> Result<(Connection<'_>, Unspent), Refusal> {
        let connection = self.dial().await?;
        let began = Instant::now();
        if let Some(unspent) = self.supply.take().await.map_err(Refusal::wallet)? {
            self.recorder.took(Part::Token, began.elapsed());
            return Ok((connection, unspent));
        }
        // Minting may take longer than the gateway waits for a request.
        drop(connection);
        let unspent = self.supply.wait().await?;
        self.recorder.took(Part::Token, began.elapsed());
        match self.dial().await {
            Ok(connection) => Ok((connection, unspent)),
            Err(error) => {
                self.supply.give_back(unspent);
                Err(error.into())
            }
        }
    }

    async fn dial(&self) -> Result<Connection<'_>, DialError> {
        let began = Instant::now();
        let connection = self.gateway.dial().await?;
        self.recorder.took(Part::Dial, began.elapsed());
        Ok(connection)
    }
}
