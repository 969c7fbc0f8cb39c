//! The drain's part of a configuration.

use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Shutdown on SIGTERM. `SECONDS` is the default of the deadline.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainConfig<const SECONDS: u64> {
    /// Time that open tunnels and requests may continue.
    #[serde(default = "deadline::<SECONDS>")]
    pub deadline: ConfigDuration,
}

impl<const SECONDS: u64> Default for DrainConfig<SECONDS> {
    fn default() -> Self {
        Self { deadline: deadline::<SECONDS>() }
    }
}

fn deadline<const SECONDS: u64>() -> ConfigDuration {
    ConfigDuration::secs(SECONDS)
}
