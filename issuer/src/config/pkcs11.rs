//! `[keys.pkcs11]`: token keys in an HSM.

use crate::StartError;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An HSM for the keys of type 2, by PKCS#11. Keys that are in files when this is set serve until their end. Keys of types 5 and
/// 1 stay in files: PKCS#11 has no operation for them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pkcs11Config {
    /// Shared library of the HSM's maker; statically linked builds load none.
    pub module: PathBuf,
    /// Label or serial number; it must sign with `CKM_RSA_X_509`.
    pub token: String,
    /// File (mode 0600) with the user's PIN. If it is refused, correct it and send SIGHUP.
    pub pin_file: PathBuf,
    /// Time for a signature, then 503.
    #[serde(default = "Pkcs11Config::timeout")]
    pub timeout: ConfigDuration,
    /// Make new keys in the HSM, else in files.
    #[serde(default = "Pkcs11Config::new_keys")]
    pub new_keys: bool,
}

impl Pkcs11Config {
    fn timeout() -> ConfigDuration {
        ConfigDuration::secs(5)
    }

    const fn new_keys() -> bool {
        true
    }

    pub(super) fn check(&self) -> Result<(), StartError> {
        if self.token.is_empty() {
            return Err(StartError::Config(
                "[keys.pkcs11] token is empty: write the label of the HSM's token, or its serial number"
                    .to_owned(),
            ));
        }
        if self.timeout.get().is_zero() {
            return Err(StartError::Config(
                "[keys.pkcs11] timeout is zero, which no HSM can meet: write \"5s\"".to_owned(),
            ));
        }
        Ok(())
    }
}
