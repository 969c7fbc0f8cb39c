//! `[join]`: what agents need to know of this installation, for `postern issuer account add --join`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What `postern issuer account add --join` puts into a join string beside the API key. The issuer itself uses none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JoinConfig {
    /// This issuer's URLs as agents reach it, in order of preference, such as ["https://issuer.example"]. 8 at most.
    pub issuers: Vec<String>,
    /// URLs of the gateways, in order of preference, such as ["https://proxy.example"]. 32 at most.
    pub gateways: Vec<String>,
    /// The name in the gateways' challenges (`[challenge] origin` there), where it is not the host of their URLs.
    pub origin: Option<String>,
    /// PEM file with the certificates that agents trust for the gateways, where the platform's do not do. Its certificates become a
    /// part of the join string, and nothing else of it.
    pub gateway_ca: Option<PathBuf>,
    /// The same for the issuer.
    pub issuer_ca: Option<PathBuf>,
}
