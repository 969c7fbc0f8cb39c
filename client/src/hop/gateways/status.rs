//! What the status command says of the gateways and of their challenge.

use super::Gateways;
use crate::wallet::challenge::CurrentChallenge;
use postern_daemon::utc::rough;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::time::Instant;

/// One gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// As configured.
    pub url: String,
    /// Whether tunnels go there now.
    pub is_in_use: bool,
    /// Its health, in words.
    pub state: String,
}

impl Gateways {
    /// Each gateway in order of preference, with its health in words.
    pub(crate) fn status(&self) -> Vec<GatewayStatus> {
        let in_use = self.serving();
        let now = Instant::now();
        let list = self.list.load();
        let status = list.iter().map(|endpoint| {
            let health = endpoint.health.lock();
            let is_in_use = in_use.as_ref().is_some_and(|serving| Arc::ptr_eq(serving, endpoint));
            let next = health.next_probe(now).map(|next| next.saturating_duration_since(now).as_secs());
            let state = match health.outage() {
                Some(outage) => {
                    format!("away: {outage}; it is probed again in {} s", next.unwrap_or_default())
                }
                None if is_in_use => "serves".to_owned(),
                None if health.is_serving() => "serves, and is used when those before it are away".to_owned(),
                None => "is being probed".to_owned(),
            };
            GatewayStatus { url: endpoint.gateway.url().to_owned(), is_in_use, state }
        });
        status.collect()
    }

    /// The state of a challenge in words.
    pub(crate) fn describe(&self, current: &CurrentChallenge) -> String {
        if let Err(refused) = self.may_sign(current) {
            return refused.to_string();
        }
        let bound =
            if current.is_marked { "bound to the gateway's records by a mark" } else { "without a mark" };
        match self.trial(current) {
            _ if current.has_context => {
                "another one for each request: tokens are minted when one is needed".to_owned()
            }
            Some(trial) => format!(
                "new, {bound}: each request waits for a token of its own until it has lasted for {} more",
                rough(trial.left.as_secs())
            ),
            None => format!("known, {bound}: tokens are minted ahead for it"),
        }
    }
}
