//! The service that knows whose API keys are good, where users are kept elsewhere.

use crate::StartError;
use postern_config::ConfigDuration;
use postern_daemon::http::{ClientError, ClientOptions, client, is_localhost};
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// The service that knows API keys which are not this issuer's own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthorizerConfig {
    /// https URL, or http on this machine, that gets API keys by POST.
    pub url: String,
    /// Time for an answer, 10 ms to 30 s.
    #[serde(default = "timeout")]
    pub timeout: ConfigDuration,
    /// Time that answers apply, 1 s to 1 h, even for withdrawn keys; SIGHUP forgets them.
    #[serde(default = "cache")]
    pub cache: ConfigDuration,
    /// Trusted authorities (PEM), instead of the platform's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

fn timeout() -> ConfigDuration {
    ConfigDuration::secs(2)
}

fn cache() -> ConfigDuration {
    ConfigDuration::minutes(1)
}

impl AuthorizerConfig {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let refused = |why: &str| {
            // Not the URL: there may be a password in it.
            Err(StartError::Config(format!(
                "[authorizer] url {why}: write \"https://users.example/authorize\", or \"http://127.0.0.1:9000/authorize\" for a \
                 service on this machine"
            )))
        };
        let Ok(url) = self.url.parse::<Url>() else { return refused("is not a URL") };
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_here = is_localhost(host) || address.is_ok_and(|address| address.is_loopback());
        match url.scheme() {
            _ if host.is_empty() => return refused("has no host"),
            _ if !url.username().is_empty() || url.password().is_some() => {
                return refused("has a user name or password, which would not be sent");
            }
            "https" => {}
            "http" if is_here => {}
            "http" => return refused("would send API keys over the network in the clear"),
            _ => return refused("is neither https nor http"),
        }
        if !(ConfigDuration(std::time::Duration::from_millis(10))..=ConfigDuration::secs(30))
            .contains(&self.timeout)
        {
            return Err(StartError::Config(format!(
                "[authorizer] timeout ({}) must be from 10 ms to 30 s: write \"2s\"",
                self.timeout
            )));
        }
        if !(ConfigDuration::secs(1)..=ConfigDuration::hours(1)).contains(&self.cache) {
            return Err(StartError::Config(format!(
                "[authorizer] cache ({}) must be from one second to one hour: write \"1m\"",
                self.cache
            )));
        }
        Ok(())
    }

    /// Reads the certificates to trust.
    pub(crate) fn client(&self) -> Result<reqwest::Client, ClientError> {
        let options = ClientOptions {
            ca_file: self.ca.clone(),
            timeout: self.timeout.get(),
            ..ClientOptions::default()
        };
        client(&options)
    }
}
