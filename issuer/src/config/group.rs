//! Several issuers that share accounts and token keys.

use crate::StartError;
use crate::share::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A group of issuers with the same token keys and accounts: the first one, which makes the keys and where accounts are changed, and
/// others that follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// What the metrics call the group. All issuers of it have the same name.
    #[serde(default = "GroupConfig::name")]
    pub name: String,
    /// Which part of every quota and rate this issuer gives: an exact fraction, rounded down to whole tokens. Those of the group must not
    /// add up to more than 1. A smaller share counts at once, a larger one from the next period of a quota on, and a new follower
    /// begins with the period after its first start. So lower first, then raise.
    pub share: Share,
    /// A directory with copies of the first issuer's key files, of its `accounts.secret`, and of its database as `accounts.sqlite`
    /// (made by `postern issuer backup`), each mode 0600. This issuer then follows the first one: it makes no keys and no accounts, and
    /// looks there every second. It writes nothing there, and keeps in `keys.directory` what it has taken up. The times
    /// and types under `[keys]` and the tiers have to be the first issuer's.
    #[serde(default)]
    pub follow: Option<PathBuf>,
}

impl GroupConfig {
    fn name() -> String {
        "issuers".to_owned()
    }

    pub(super) fn check(&self, keys: &Path) -> Result<(), StartError> {
        if self.share == Share::NONE {
            return Err(StartError::Config(
                "[group] share is 0: this issuer would give no token; write a part such as \"1/3\", or stop it".to_owned(),
            ));
        }
        match &self.follow {
            Some(follow) if follow == keys => Err(StartError::Config(format!(
                "[group] follow is keys.directory itself ({}): name the directory that the first issuer's files are copied to, which is \
                 another one",
                keys.display()
            ))),
            _ => Ok(()),
        }
    }
}
