//! Where tokens come from: the issuers of the configuration, or the one that the challenge names.

use crate::config::{IssuerConfig, Urls};
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::mint::issuers::Issuers;
use crate::recorder::Attempts;
use crate::wallet::challenge::CurrentChallenge;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;
use std::time::Duration;
use tokio::time::Instant;

/// The link table's name for an issuer that only a challenge names. Using the challenge's name would let a gateway fill
/// the table.
const BY_CHALLENGE: &str = "by challenge";

/// Where tokens come from.
pub(crate) struct TokenSource {
    live: Live,
    config: IssuerConfig,
    /// Those of the configuration; none where only challenges name one.
    issuers: Issuers<IssuerClient>,
    /// Of the one that a challenge names, whose client is made when the challenge is known.
    attempts: Attempts,
    named: Option<(String, IssuerClient)>,
}

impl TokenSource {
    /// The issuers of `config`, whose requests `live` shows.
    pub(crate) fn new(config: IssuerConfig, live: &Live) -> Result<Self, MintError> {
        let attempts = |address: &str| Attempts::over(live.link(LinkKind::Issuer, address));
        let client = |url: &String| {
            let client = IssuerClient::configured(url, &config)?;
            let attempts = attempts(&client.address());
            Ok(client.recorded(attempts))
        };
        let urls = config.url.as_ref().map_or(&[][..], Urls::list);
        let issuers = Issuers::new(urls.iter().map(client).collect::<Result<Vec<_>, MintError>>()?);
        let attempts = if urls.is_empty() { attempts(BY_CHALLENGE) } else { Attempts::default() };
        Ok(Self { live: live.clone(), config, issuers, attempts, named: None })
    }

    /// Other issuers, or another account at them.
    pub(crate) fn replace(&mut self, config: IssuerConfig) -> Result<(), MintError> {
        *self = Self::new(config, &self.live)?;
        Ok(())
    }

    /// How many issuers can be tried one after the other: one at least.
    pub(crate) fn tries(&self) -> usize {
        self.issuers.len().max(1)
    }

    /// The issuer to mint with for a challenge.
    pub(crate) fn of(&mut self, current: &CurrentChallenge) -> Result<IssuerClient, MintError> {
        if let Some(client) = self.issuers.choose(Instant::now()) {
            return Ok(client.clone());
        }
        match &self.named {
            Some((name, client)) if *name == current.issuer_name => Ok(client.clone()),
            _ => {
                let client = IssuerClient::named(&current.issuer_name, self.config.ca.clone())?;
                let client = client.recorded(self.attempts.clone());
                self.named = Some((current.issuer_name.clone(), client.clone()));
                Ok(client)
            }
        }
    }

    /// Minting failed. Whether another issuer is to be tried at once.
    pub(crate) fn turns_from(&mut self, error: &MintError) -> bool {
        let turns = self.issuers.turns_from(error, Instant::now());
        if turns {
            tracing::warn!("{error}; the next issuer of the list is used meanwhile");
        }
        turns
    }

    /// How long until an issuer of the list is not away; nothing where only challenges name one.
    pub(crate) fn back_in(&self) -> Option<Duration> {
        self.issuers.back_in(Instant::now())
    }

    /// Minting worked.
    pub(crate) fn worked(&mut self) {
        self.issuers.worked();
    }
}
