//! One tunnel, one token: the spend discipline.
//!
//! A token is taken off the disk before it is sent and is never sent twice, not even when the gateway reports that it
//! did not examine it: a token seen twice reveals that two attempts are one person's. A token that was refused, or
//! whose fate is unknown, is replaced by another one, once in all, and only at a gateway that serves.

use super::connection::{Answer, Connection, ExchangeError, Refused};
use super::fetch_challenge::CHALLENGE_TARGET;
use super::gateway::{HopBefore, NoWay, RouteError};
use super::gateways::{Chosen, Gateways};
use super::health::{Outage, OutageKind};
use super::limits::{AboveCap, Cap, FailedTargets};
use crate::recorder::{Fate, Part, Recorder};
use crate::sentence::{full_stop, retry_after};
use crate::wallet::challenge::CurrentChallenge;
use crate::wallet::guard::ReservedToken;
use crate::wallet::supply::{Shortage, Supply, Wanted};
use http::StatusCode;
use postern_daemon::BoxFuture;
use postern_daemon::http::one_line;
use postern_proxy::target::Target;
use postern_proxy::tunnel::Tunnel;
use postern_token::{Token, TokenKeyId};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of older marks that one request may lose before it takes one for the present challenge.
pub const OLDER_TOKENS: usize = 2;
/// Times that one request may choose a gateway for one token.
const CHOICES: usize = 4;

/// Opens tunnels. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) supply: Arc<Supply>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) cap: Arc<Cap>,
    pub(crate) failed: Arc<FailedTargets>,
}

/// The reason why there is no tunnel. The sentences are for the user, and never name the target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The request is one to a gateway: for a challenge, or with a token.
    #[error(
        "this is an agent, which pays with tokens of its own: give the gateway's address in place of this one"
    )]
    ForGateway,
    /// The gateway's own answer.
    #[error("the gateway answered {}", .0.status)]
    Passed(Refused),
    /// No gateway serves. No token was sent.
    #[error("{} No token was sent", full_stop(.0))]
    Outage(Outage),
    /// The hop before the gateway opens no way there.
    #[error("{0}")]
    FirstHop(Outage),
    /// No answer from the gateway, and for a broken connection none to the replacement either.
    #[error("{} The token that was sent is given up", full_stop(.0))]
    Exchange(ExchangeError),
    /// A token and its replacement were refused.
    #[error(
        "the gateway refused two tokens, one after the other{}. If this goes on, the gateway and the issuer do not \
         belong together, or do not agree on a key",
        message_of(reason)
    )]
    TokensRefused {
        /// What the gateway wrote.
        reason: String,
    },
    /// No token to send.
    #[error("{0}")]
    Shortage(#[from] Shortage),
    /// As many tokens were sent as may be.
    #[error(
        "programs on this machine send tokens faster than the agent's configuration allows ([wallet] most_per_minute); no token was sent"
    )]
    AboveCap(AboveCap),
}

fn message_of(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!("; its message: \"{reason}\"") }
}

impl OpenError {
    /// Returns when to try again, in whole seconds, rounded up so that a client that waits this long is not too early.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Shortage(Shortage::Issuer { retry_after, .. }) => Some(retry_after.as_secs() + 1),
            Self::Shortage(Shortage::Slow) => Some(1),
            Self::AboveCap(above) => Some(above.retry_after.as_secs() + 1),
            Self::Outage(outage) | Self::FirstHop(outage) if outage.kind == OutageKind::Unavailable => {
                Some(outage.retry_after.map_or(1, |asked| asked.as_secs().max(1)))
            }
            _ => None,
        }
    }

    /// Converts a first hop's failure into what it means for the gateway behind it. A first hop that answered for that
    /// gateway did its part.
    fn at_first_hop(self) -> RouteError {
        let (sentence, retry_after) = match &self {
            Self::Passed(refused) => {
                (format!("the first hop {}", refused.words()), retry_after(&refused.headers))
            }
            other => (
                format!("the first hop opens no way to the second: {other}"),
                other.retry_after().map(Duration::from_secs),
            ),
        };
        let kind = match &self {
            Self::Passed(refused) if !refused.is_unavailable() => {
                return RouteError::Io(io::Error::other(sentence));
            }
            Self::Passed(Refused { status: StatusCode::LOOP_DETECTED, .. }) => OutageKind::Unreachable,
            Self::Outage(outage) | Self::FirstHop(outage) if outage.kind != OutageKind::Unavailable => {
                OutageKind::Unreachable
            }
            Self::ForGateway
            | Self::Exchange(_)
            | Self::TokensRefused { .. }
            | Self::Shortage(Shortage::Gateway(_)) => OutageKind::Unreachable,
            Self::Passed(_) | Self::Outage(_) | Self::FirstHop(_) | Self::Shortage(_) | Self::AboveCap(_) => {
                OutageKind::Unavailable
            }
        };
        RouteError::FirstHop(Outage { kind, retry_after, ..Outage::no_answer(sentence) })
    }
}

impl HopBefore for Opener {
    /// Pays without looking at targets that failed: the hop behind decides how often to try.
    fn open_way<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Tunnel, RouteError>> {
        Box::pin(async { self.pay(target).await.map_err(OpenError::at_first_hop) })
    }
}

/// The fate of one token.
enum Attempt {
    Opened(Tunnel),
    /// Another token may do.
    Failed(OpenError),
    /// The token was of an older mark, and the gateway does not take it any more.
    Outdated,
}

impl Opener {
    /// Opens a tunnel to `target`. If the gateway failed to a moment ago, returns its answer and sends no token.
    pub(crate) async fn open(&self, target: &Target) -> Result<Tunnel, OpenError> {
        if target.authority() == CHALLENGE_TARGET {
            return Err(OpenError::ForGateway); // of an agent or `token mint` that takes this agent for a gateway
        }
        if let Some(refused) = self.failed.answer(target, Instant::now()) {
            return Err(OpenError::Passed(refused));
        }
        let opened = self.pay(target).await;
        if let Err(OpenError::Passed(refused)) = &opened
            && !refused.is_unavailable()
        {
            self.failed.add(target, refused, Instant::now());
        }
        opened
    }

    /// Pays for a tunnel with one token, or two if the first one was no good. Up to [`OLDER_TOKENS`] of older marks are
    /// tried before.
    async fn pay(&self, target: &Target) -> Result<Tunnel, OpenError> {
        let began = Instant::now();
        let (mut first, mut outdated) = (None, 0);
        loop {
            let wanted = if outdated < OLDER_TOKENS { Wanted::Any } else { Wanted::Current };
            match (self.attempt(target, began, wanted).await, first.take()) {
                (Ok(Attempt::Opened(tunnel)), _) => return Ok(tunnel),
                (Ok(Attempt::Outdated), failed) => (outdated, first) = (outdated + 1, failed),
                (Ok(Attempt::Failed(refusal)), None) => first = Some(refusal),
                (Ok(Attempt::Failed(refusal)), Some(_)) => return Err(refusal),
                // The gateway's own account of the outage is more precise than ours.
                (Err(OpenError::Outage(_)), Some(OpenError::Passed(refused))) => {
                    return Err(OpenError::Passed(refused));
                }
                (Err(refusal), _) => return Err(refusal),
            }
        }
    }

    /// Sends one token once. `Err` is final; after [`Attempt::Failed`] another token may do.
    async fn attempt(&self, target: &Target, began: Instant, wanted: Wanted) -> Result<Attempt, OpenError> {
        let (chosen, connection, taken) = self.fund(wanted).await?;
        let asked = Instant::now();
        self.cap.count(asked).map_err(OpenError::AboveCap)?;
        let mut sent = taken.send();
        let exchange = connection.connect(target, Some(&sent.token));
        let answered = self.gateways.watch(&chosen, exchange).await;
        let refused = match answered {
            Ok(Answer::Opened(tunnel)) => {
                self.gateways.heard(&chosen);
                self.gateways.accepted(&chosen, sent.token.challenge_digest());
                sent.became(Fate::Opened);
                let open = self.recorder.opened(asked.elapsed(), began.elapsed());
                return Ok(Attempt::Opened(tunnel.holding(open)));
            }
            Ok(Answer::Refused(refused)) => refused,
            Err(error) => {
                sent.became(Fate::Unanswered);
                if matches!(error, ExchangeError::Broken { .. } | ExchangeError::Dead { .. }) {
                    self.gateways.doubt(&chosen);
                    return Ok(Attempt::Failed(OpenError::Exchange(error)));
                }
                self.gateways.failed(&chosen, Outage::no_answer(&error));
                return Err(OpenError::Exchange(error));
            }
        };
        self.gateways.heard(&chosen);
        match refused.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                sent.became(Fate::Refused);
                let digest = sent.token.challenge_digest();
                let was_current = self.gateways.is_current(&chosen, digest);
                let unfit = self.learn(&chosen, &sent.token, &refused);
                if !was_current && wanted == Wanted::Any {
                    if !refused.says_spent() {
                        self.gateways.refused(&chosen, digest);
                    }
                    return Ok(Attempt::Outdated);
                }
                let reason = unfit.unwrap_or_else(|| one_line(&refused.body));
                Ok(Attempt::Failed(OpenError::TokensRefused { reason }))
            }
            // Also for 429 and 508 no further token is sent before a request without one is answered as it should be.
            _ if refused.is_unavailable() => {
                sent.became(Fate::Unanswered);
                self.gateways.unavailable(&chosen, &refused);
                Ok(Attempt::Failed(OpenError::Passed(refused)))
            }
            _ => {
                sent.became(Fate::TargetFailed);
                Err(OpenError::Passed(refused))
            }
        }
    }

    /// Gets a gateway, a connection to it, and a token for it. The connection comes first: a gateway that is down costs
    /// nothing, and the next one of the list is tried.
    async fn fund(&self, wanted: Wanted) -> Result<(Chosen, Connection, ReservedToken), OpenError> {
        let mut waited_for = None;
        // A choice is made again after a wait for a token, and when gateways took turns meanwhile.
        for _ in 0..CHOICES {
            let (chosen, connection) = self.connect().await?;
            let began = Instant::now();
            let taken = match waited_for.take() {
                None => self.supply.take(wanted).await.map_err(Shortage::Wallet)?,
                waited_for => waited_for,
            };
            match taken {
                Some(taken) => {
                    let is_asked_for = self.gateways.asks_for(&chosen, taken.token().challenge_digest());
                    if is_asked_for && connection.answers().await {
                        self.recorder.took(Part::Token, began.elapsed());
                        return Ok((chosen, connection, taken));
                    }
                    // Another gateway is in use since the choice, and has another challenge, or the connection has died: the
                    // token goes back.
                }
                None => {
                    // Minting may take longer than the gateway waits for a request.
                    drop(connection);
                    waited_for = Some(self.supply.wait(wanted).await?);
                    self.recorder.took(Part::Token, began.elapsed());
                }
            }
        }
        Err(OpenError::Shortage(Shortage::Slow))
    }

    async fn connect(&self) -> Result<(Chosen, Connection), OpenError> {
        loop {
            let chosen = self.gateways.choose().await.map_err(OpenError::Outage)?;
            let began = Instant::now();
            match chosen.gateway().dial().await {
                Ok(connection) => {
                    self.recorder.took(Part::Dial, began.elapsed());
                    return Ok((chosen, connection));
                }
                // `choose` ends this when no gateway can come back soon.
                Err(NoWay::Dial(error)) => self.gateways.failed(&chosen, error.into()),
                Err(NoWay::FirstHop(outage)) => return Err(OpenError::FirstHop(outage)),
            }
        }
    }

    /// Learns from a 407 to `token`: the present challenge, and whether the token's key is still accepted. Returns why the
    /// challenge is not accepted, if so.
    fn learn(&self, chosen: &Chosen, token: &Token, answer: &Refused) -> Option<String> {
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
        let current = current?;
        let asked = current.challenge.token_key.as_deref().map(TokenKeyId::of);
        let asks_for_another_key = asked.is_some_and(|asked| asked != token.token_key_id());
        let is_for_the_key =
            asks_for_another_key && token.challenge_digest() == current.digest && !answer.says_spent();
        if let Err(reason) = self.gateways.learn(chosen, current) {
            tracing::warn!("the gateway {} cannot be used: {reason}", chosen.gateway().url());
            return Some(reason);
        }
        if is_for_the_key {
            self.supply.doubt(token);
        }
        None
    }
}
