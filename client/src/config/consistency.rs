//! How the agent finds out that an issuer shows it something that it shows no one else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The most mirrors in a list.
pub(super) const MOST_MIRRORS: usize = 8;

/// How the issuer's keys are compared with what others see of them. A key that is made for one client alone marks each of its
/// tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConsistencyConfig {
    /// URLs that serve a copy of the issuer's directory, run by others than the issuer's operator, 8 at most. A URL without a path has it
    /// at the well-known path, as an issuer. Before tokens are minted for a key that is new, at least one mirror has to list it as the
    /// issuer does, and none may differ. Mirrors see this agent's address, and that it is about to mint.
    pub mirrors: Vec<String>,
    /// PEM certificates to trust for https mirrors instead of the platform's.
    pub ca: Option<PathBuf>,
}
