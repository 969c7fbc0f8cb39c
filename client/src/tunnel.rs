//! One tunnel, one token: the spend discipline.
//!
//! A token is taken off the disk before it is sent and is never sent twice. A token that was refused, or whose fate is
//! unknown because the connection broke, is replaced by another one, once in all.

use crate::answer::Refusal;
use crate::gateway::{Answer, Connection, ExchangeError, Gateway, Tunnel};
use crate::mint::one_line;
use crate::slot::Unspent;
use crate::supply::Supply;
use crate::target::Target;
use http::StatusCode;
use std::sync::Arc;

/// Opens tunnels. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) supply: Arc<Supply>,
}

impl Opener {
    /// A tunnel to `target`, paid for with one token, or two when the first one was no good.
    pub(crate) async fn open(&self, target: &Target) -> Result<Tunnel, Refusal> {
        let mut is_replacement = false;
        loop {
            let (connection, unspent) = self.fund().await?;
            // From here on the token counts as sent, whatever happens.
            match connection.connect(target, Some(&unspent.token)).await {
                Ok(Answer::Opened(tunnel)) => return Ok(tunnel),
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
        let connection = self.gateway.dial().await?;
        if let Some(unspent) = self.supply.take().await.map_err(Refusal::wallet)? {
            return Ok((connection, unspent));
        }
        // Minting may take longer than the gateway waits for a request.
        drop(connection);
        let unspent = self.supply.wait().await?;
        match self.gateway.dial().await {
            Ok(connection) => Ok((connection, unspent)),
            Err(error) => {
                self.supply.give_back(unspent);
                Err(error.into())
            }
        }
    }
}
