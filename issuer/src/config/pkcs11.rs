//! `[keys.pkcs11]`: token keys in an HSM.

use crate::StartError;
use crate::config::invalid;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An HSM for the keys of type 2, by PKCS#11. Keys that are in files when this is set serve until their end. Keys of types 5 and 1 stay
/// in files: PKCS#11 has no operation for them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pkcs11Config {
    /// The PKCS#11 module, a shared library of the HSM's maker, such as "/usr/lib/softhsm/libsofthsm2.so". Builds that are linked
    /// statically cannot load one and refuse this section.
    pub module: PathBuf,
    /// The label of the token in the HSM, or its serial number. It must sign with `CKM_RSA_X_509`.
    pub token: String,
    /// A file whose first line is the PIN of the token's user (no other user may read it: mode 0600). A PIN that is refused is not tried
    /// again before the file has another and the issuer is reloaded or restarted, because HSMs lock after a few.
    pub pin_file: PathBuf,
    /// How long a signature is waited for. After it the request is answered 503, and so are others until calls return again.
    #[serde(default = "Pkcs11Config::timeout")]
    pub timeout: ConfigDuration,
    /// Whether new keys of type 2 are made in the HSM. With false they are made in files, and those in the HSM serve until their
    /// end: the way back.
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
            return Err(invalid(
                "[keys.pkcs11] token is empty: write the label of the HSM's token, or its serial number"
                    .to_owned(),
            ));
        }
        if self.timeout.get().is_zero() {
            return Err(invalid(
                "[keys.pkcs11] timeout is zero, which no HSM can meet: write \"5s\"".to_owned(),
            ));
        }
        Ok(())
    }
}
