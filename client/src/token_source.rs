//! Where tokens come from: the issuer of the configuration, or the one that the challenge names.

use crate::challenge::CurrentChallenge;
use crate::config::IssuerConfig;
use crate::mint::{IssuerClient, MintError};
use crate::recorder::Attempts;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::Live;

/// The link table's name for an issuer that only a challenge names. Using the challenge's name would let a gateway fill
/// the table.
const BY_CHALLENGE: &str = "by challenge";

/// Where tokens come from.
pub(crate) struct TokenSource {
    live: Live,
    config: IssuerConfig,
    attempts: Attempts,
    /// The issuer's client, and the issuer's name in the challenge.
    client: Option<(String, IssuerClient)>,
}

impl TokenSource {
    /// The issuer of `config`, whose requests `live` shows. One that the challenge names is made when the challenge is
    /// known.
    pub(crate) fn new(config: IssuerConfig, live: &Live) -> Result<Self, MintError> {
        let attempts = |address: &str| Attempts::over(live.link(LinkKind::Issuer, address));
        let Some(url) = &config.url else {
            return Ok(Self { live: live.clone(), attempts: attempts(BY_CHALLENGE), config, client: None });
        };
        let client = config.client(url)?;
        let attempts = attempts(&client.address());
        let client = Some((String::new(), client.recorded(attempts.clone())));
        Ok(Self { live: live.clone(), config, attempts, client })
    }

    /// Another issuer, or another account at it.
    pub(crate) fn replace(&mut self, config: IssuerConfig) -> Result<(), MintError> {
        *self = Self::new(config, &self.live)?;
        Ok(())
    }

    /// The issuer to mint with for a challenge.
    pub(crate) fn of(&mut self, current: &CurrentChallenge) -> Result<IssuerClient, MintError> {
        match &self.client {
            Some((name, client)) if self.config.url.is_some() || *name == current.issuer_name => {
                Ok(client.clone())
            }
            _ => {
                let client = IssuerClient::named(&current.issuer_name, self.config.ca.clone())?;
                let client = client.recorded(self.attempts.clone());
                self.client = Some((current.issuer_name.clone(), client.clone()));
                Ok(client)
            }
        }
    }
}
