//! How the agent finds out that an issuer shows it something that it shows no one else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The most mirrors in a list.
pub(super) const MOST_MIRRORS: usize = 8;

/// Comparison of the issuer's keys with what others see of them. A key that is made for one client alone marks each of its
/// tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConsistencyConfig {
    /// URLs of the directory at other operators, 8 at most. New keys wait until one confirms and none differs. Mirrors see your
    /// address.
    pub mirrors: Vec<String>,
    /// Trusted authorities (PEM), instead of the platform's.
    pub ca: Option<PathBuf>,
}
