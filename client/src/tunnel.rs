//! One tunnel, one token: the spend discipline.
//!
//! A token is taken off the disk before it is sent and is never sent twice, not even when the gateway reports that it
//! did not examine it: a token seen twice reveals that two attempts are one person's. A token that was refused, or
//! whose fate is unknown, is replaced by another one, once in all, and only at a gateway that serves.

use crate::answer::Refusal;
use crate::challenge::CurrentChallenge;
use crate::gateway::{Answer, Connection, ExchangeError, Refused, Tunnel};
use crate::gateways::{Chosen, Gateways, Outage};
use crate::mint::one_line;
use crate::recorder::{Fate, Part, Recorder};
use crate::supply::{Shortage, Supply};
use crate::token_guard::ReservedToken;
use http::StatusCode;
use postern_proxy::target::Target;
use postern_token::{Token, TokenKeyId};
use std::sync::Arc;
use std::time::Instant;

/// How often one request may choose a gateway anew for one token.
const CHOICES: usize = 4;

/// Opens tunnels. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) supply: Arc<Supply>,
    pub(crate) recorder: Arc<Recorder>,
}

/// What became of one token.
enum Attempt {
    Opened(Tunnel),
    /// Another token may do.
    Failed(Refusal),
}

impl Opener {
    /// A tunnel to `target`, paid for with one token, or two when the first one was no good.
    pub(crate) async fn open(&self, target: &Target) -> Result<Tunnel, Refusal> {
        let began = Instant::now();
        let first = match self.attempt(target, began).await? {
            Attempt::Opened(tunnel) => return Ok(tunnel),
            Attempt::Failed(refusal) => refusal,
        };
        match self.attempt(target, began).await {
            Ok(Attempt::Opened(tunnel)) => Ok(tunnel),
            Ok(Attempt::Failed(refusal)) => Err(refusal),
            // The gateway's own account of the outage is more precise than ours.
            Err(Refusal::Outage(_)) if matches!(first, Refusal::Passed(_)) => Err(first),
            Err(refusal) => Err(refusal),
        }
    }

    /// One token, sent once. `Err` is final; after [`Attempt::Failed`] another token may do.
    async fn attempt(&self, target: &Target, began: Instant) -> Result<Attempt, Refusal> {
        let (chosen, connection, taken) = self.fund().await?;
        let asked = Instant::now();
        let mut sent = taken.send();
        let exchange = connection.connect(target, Some(&sent.token));
        let answered = self.gateways.watch(&chosen, exchange).await;
        let refused = match answered {
            Ok(Answer::Opened(tunnel)) => {
                self.gateways.heard(&chosen);
                sent.became(Fate::Opened);
                let open = self.recorder.opened(asked.elapsed(), began.elapsed());
                return Ok(Attempt::Opened(tunnel.counted(open)));
            }
            Ok(Answer::Refused(refused)) => refused,
            Err(error) => {
                sent.became(Fate::Unanswered);
                if matches!(error, ExchangeError::Broken { .. }) {
                    self.gateways.doubt(&chosen);
                    return Ok(Attempt::Failed(Refusal::Exchange(error)));
                }
                self.gateways.failed(&chosen, Outage::no_answer(&error));
                return Err(Refusal::Exchange(error));
            }
        };
        self.gateways.heard(&chosen);
        match refused.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                sent.became(Fate::Refused);
                self.learn(&chosen, &sent.token, &refused);
                let reason = one_line(&refused.body);
                Ok(Attempt::Failed(Refusal::TokensRefused { reason }))
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                sent.became(Fate::Unanswered);
                self.gateways.unavailable(&chosen, &refused);
                Ok(Attempt::Failed(Refusal::Passed(refused)))
            }
            _ => {
                sent.became(Fate::TargetFailed);
                Err(Refusal::Passed(refused))
            }
        }
    }

    /// A gateway, a connection to it, and a token for it. The connection comes first: a gateway that is down costs
    /// nothing, and the next one of the list is tried.
    async fn fund(&self) -> Result<(Chosen, Connection, ReservedToken), Refusal> {
        let mut waited_for = None;
        // A choice is made again after a wait for a token, and when gateways took turns meanwhile.
        for _ in 0..CHOICES {
            let (chosen, connection) = self.connect().await?;
            let began = Instant::now();
            let taken = match waited_for.take() {
                None => self.supply.take().await.map_err(Refusal::wallet)?,
                waited_for => waited_for,
            };
            match taken {
                Some(taken) if self.gateways.asks_for(&chosen, taken.token().challenge_digest()) => {
                    self.recorder.took(Part::Token, began.elapsed());
                    return Ok((chosen, connection, taken));
                }
                // Another gateway is in use since the choice, and has another challenge: the token goes back.
                Some(_) => {}
                None => {
                    // Minting may take longer than the gateway waits for a request.
                    drop(connection);
                    waited_for = Some(self.supply.wait().await?);
                    self.recorder.took(Part::Token, began.elapsed());
                }
            }
        }
        Err(Refusal::Shortage(Shortage::Slow))
    }

    async fn connect(&self) -> Result<(Chosen, Connection), Refusal> {
        loop {
            let chosen = self.gateways.choose().await.map_err(Refusal::Outage)?;
            let began = Instant::now();
            match chosen.gateway.dial().await {
                Ok(connection) => {
                    self.recorder.took(Part::Dial, began.elapsed());
                    return Ok((chosen, connection));
                }
                // `choose` ends this when no gateway can come back soon.
                Err(error) => self.gateways.failed(&chosen, error.into()),
            }
        }
    }

    /// Learns from a 407 to `token`: the present challenge, and whether the token's key is still accepted.
    fn learn(&self, chosen: &Chosen, token: &Token, answer: &Refused) {
        let current = match answer.challenge() {
            Ok(challenge) => CurrentChallenge::new(challenge),
            Err(reason) => {
                tracing::warn!(
                    "the gateway refused a token and gave no challenge: {}",
                    one_line(reason.as_bytes())
                );
                None
            }
        };
        let Some(current) = current else { return };
        let asked = current.challenge.token_key.as_deref().map(TokenKeyId::of);
        let asks_for_another_key = asked.is_some_and(|asked| asked != token.token_key_id());
        let is_for_the_key =
            asks_for_another_key && token.challenge_digest() == current.digest && !answer.says_spent();
        self.gateways.learn(chosen, current);
        if is_for_the_key {
            self.supply.doubt(token);
        }
    }
}
