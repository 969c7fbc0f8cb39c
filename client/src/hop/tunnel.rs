//! One tunnel, of TCP or UDP, one token: the spend discipline.
//!
//! A token is removed from the disk before it is sent, and is never sent twice, not even if the gateway reports that it did not
//! examine the token: a token seen twice links two attempts to one client. A token that was refused, or whose fate is unknown, is
//! replaced at most once per tunnel, and only at a gateway that serves.

use super::connection::{Answer, CHALLENGE_TARGET, Connection, ExchangeError, Refused};
use super::gateway::{HopBefore, RouteError};
use super::gateways::{Endpoint, Gateways};
use super::health::Outage;
use super::limits::{Cap, FailedTargets};
use crate::recorder::{Fate, Part, Recorder};
use crate::sentence::{full_stop, retry_after};
use crate::wallet::challenge::CurrentChallenge;
use crate::wallet::guard::ReservedToken;
use crate::wallet::supply::{Shortage, Supply, Wanted};
use http::StatusCode;
use postern_daemon::BoxFuture;
use postern_daemon::http::one_line;
use postern_proxy::target::{Target, Transport};
use postern_proxy::tunnel::Tunnel;
use postern_token::Token;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of older marks that one request may lose before it takes one for the present challenge.
pub const OLDER_TOKENS: usize = 2;
/// Maximum choices of a gateway for one token of a request.
const CHOICES: usize = 4;

pub(crate) struct Opener {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) supply: Arc<Supply>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) cap: Cap,
    pub(crate) failed: FailedTargets,
}

/// The reason why no tunnel was opened. Messages are for the user, and never name the target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// A request meant for a gateway: for a challenge, or with a token.
    #[error(
        "this is an agent, which pays with tokens of its own: give the gateway's address in place of this one"
    )]
    ForGateway,
    /// The gateway's own answer, which is passed on.
    #[error("the gateway answered {}", .0.status)]
    Passed(Refused),
    #[error("{} No token was sent", full_stop(.0))]
    Outage(Outage),
    #[error(
        "the gateway {0} carries no UDP over HTTP/2 (its SETTINGS do not allow extended CONNECT): ask its operator, or use \
         another gateway. No token was sent"
    )]
    NoUdp(String),
    #[error("{0}")]
    FirstHop(Outage),
    /// The gateway did not answer; after a broken connection, it did not answer the replacement either.
    #[error("{} The token that was sent is given up", full_stop(.0))]
    Exchange(ExchangeError),
    #[error(
        "the gateway refused two tokens, one after the other{}. If this goes on, the gateway and the issuer do not \
         belong together, or do not agree on a key",
        message_of(reason)
    )]
    TokensRefused { reason: String },
    #[error("{0}")]
    Shortage(#[from] Shortage),
    #[error(
        "programs on this machine send tokens faster than the agent's configuration allows ([wallet] most_per_minute); no token was sent"
    )]
    AboveCap(Duration),
}

fn message_of(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!("; its message: \"{reason}\"") }
}

impl OpenError {
    /// Returns the time to wait before a retry, in whole seconds, rounded up so that the client is not too early.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Shortage(Shortage::Issuer { retry_after, .. }) => Some(retry_after.as_secs() + 1),
            Self::Shortage(Shortage::Slow) => Some(1),
            Self::AboveCap(wait) => Some(wait.as_secs() + 1),
            Self::Outage(outage) | Self::FirstHop(outage) if outage.is_unavailable => {
                Some(outage.retry_after.map_or(1, |asked| asked.as_secs().max(1)))
            }
            _ => None,
        }
    }

    /// Converts a first hop's failure into one of the route to the gateway behind it. If the first hop works and only reports
    /// that gateway's failure, the error is `RouteError::Io`.
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
        let is_unavailable = match &self {
            Self::Passed(refused) if !refused.is_unavailable() => {
                return RouteError::Io(io::Error::other(sentence));
            }
            Self::Outage(outage) | Self::FirstHop(outage) => outage.is_unavailable,
            Self::ForGateway | Self::NoUdp(_) | Self::Exchange(_) | Self::TokensRefused { .. } => false,
            Self::Shortage(shortage) => !matches!(shortage, Shortage::Gateway(_)),
            Self::Passed(_) | Self::AboveCap(_) => true,
        };
        let outage = Outage::no_answer(sentence);
        RouteError::FirstHop(Outage { is_unavailable, retry_after, is_of_first_hop: true, ..outage })
    }
}

impl HopBefore for Opener {
    /// Ignores recently failed targets: the next hop decides how often to retry.
    fn open_way<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Tunnel, RouteError>> {
        Box::pin(async { self.pay(target).await.map_err(OpenError::at_first_hop) })
    }
}

enum Attempt {
    Opened(Tunnel),
    /// Another token may succeed.
    Failed(OpenError),
    /// The gateway rejected a token of an older mark.
    Outdated,
}

impl Opener {
    /// Opens a tunnel to `target`. If the target failed a few seconds ago, returns the gateway's answer of that time and sends no
    /// token.
    pub(crate) async fn open(&self, target: &Target) -> Result<Tunnel, OpenError> {
        if target.authority() == CHALLENGE_TARGET {
            return Err(OpenError::ForGateway); // from an agent or `token mint` that takes this agent for a gateway
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

    /// Pays for a tunnel with one token, or with a second one if the first failed. Tries up to [`OLDER_TOKENS`] tokens of older
    /// marks before.
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
                // The gateway's own answer describes the outage more precisely than ours.
                (Err(OpenError::Outage(_)), Some(OpenError::Passed(refused))) => {
                    return Err(OpenError::Passed(refused));
                }
                (Err(refusal), _) => return Err(refusal),
            }
        }
    }

    /// Sends one token once. `Err` is final; after [`Attempt::Failed`] another token may succeed.
    async fn attempt(&self, target: &Target, began: Instant, wanted: Wanted) -> Result<Attempt, OpenError> {
        let transport = target.transport();
        self.cap.check(transport, began).map_err(OpenError::AboveCap)?; // before a wait for a token, and a dial
        let (chosen, connection, taken) = self.fund(wanted, transport).await?;
        let asked = Instant::now();
        self.cap.count(transport, asked).map_err(OpenError::AboveCap)?;
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
                self.gateways.fail(&chosen, Outage::no_answer(&error), false);
                return Err(OpenError::Exchange(error));
            }
        };
        self.gateways.heard(&chosen);
        match refused.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                sent.became(Fate::Refused);
                let digest = sent.token.challenge_digest();
                let was_current = chosen.offers(digest);
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
            // After 503 and 429, no further token is sent until a probe without a token has succeeded.
            _ if refused.is_unavailable() => {
                sent.became(Fate::Unanswered);
                self.gateways.fail(&chosen, Outage::unavailable(chosen.gateway.url(), &refused), false);
                Ok(Attempt::Failed(OpenError::Passed(refused)))
            }
            status => {
                sent.became(Fate::TargetFailed);
                if status == StatusCode::LOOP_DETECTED {
                    self.gateways.doubt(&chosen); // a probe finds out whether all targets lead in a circle
                }
                Err(OpenError::Passed(refused))
            }
        }
    }

    /// Chooses a gateway, connects to it, and takes a token for it. The connection comes first: a gateway that is down costs no
    /// token, and the next one in the list is tried.
    async fn fund(
        &self,
        wanted: Wanted,
        transport: Transport,
    ) -> Result<(Arc<Endpoint>, Connection, ReservedToken), OpenError> {
        let mut waited_for = None;
        // The choice is repeated after a wait for a token, and if another gateway has come into use.
        for _ in 0..CHOICES {
            let (chosen, connection) = self.connect().await?;
            if transport == Transport::Udp && !connection.carries_udp() {
                return Err(OpenError::NoUdp(chosen.gateway.url().to_owned()));
            }
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
                    // Another gateway has come into use and has another challenge, or the connection has died: the token returns
                    // to the wallet.
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

    async fn connect(&self) -> Result<(Arc<Endpoint>, Connection), OpenError> {
        loop {
            let chosen = self.gateways.choose().await.map_err(OpenError::Outage)?;
            let began = Instant::now();
            match chosen.gateway.dial().await {
                Ok(connection) => {
                    self.recorder.took(Part::Dial, began.elapsed());
                    return Ok((chosen, connection));
                }
                // `choose` ends the loop if no gateway can come back soon.
                Err(outage) if !outage.is_of_first_hop => self.gateways.fail(&chosen, outage, false),
                Err(outage) => return Err(OpenError::FirstHop(outage)),
            }
        }
    }

    /// Learns from a 407 to `token`: the present challenge, and whether the token's key is still accepted. Returns the reason if
    /// the challenge is rejected.
    fn learn(&self, chosen: &Endpoint, token: &Token, answer: &Refused) -> Option<String> {
        let refused = |reason: &String| {
            tracing::warn!(
                "the gateway refused a token and gave no challenge: {}",
                one_line(reason.as_bytes())
            );
        };
        let current = CurrentChallenge::new(answer.challenge().inspect_err(refused).ok()?)?;
        let asks_for_another_key = current.key.is_some_and(|asked| asked != token.token_key_id());
        let is_for_the_key =
            asks_for_another_key && token.challenge_digest() == current.digest && !answer.says_spent();
        if let Err(reason) = self.gateways.learn(chosen, current) {
            tracing::warn!("the gateway {} cannot be used: {reason}", chosen.gateway.url());
            return Some(reason);
        }
        if is_for_the_key {
            self.supply.doubt(token);
        }
        None
    }
}
