//! Join strings of `postern issuer account add --join` and `postern init`.

use crate::args::Joining;
use crate::failure::Failure;
use postern_client::join::{Join, certificates};
use postern_issuer::JoinConfig;
use std::path::PathBuf;

/// Prepares the join string of a new account, without its API key. Reports every error before the account is created.
pub(crate) fn prepare(config: &JoinConfig, args: Joining) -> Result<Option<Join>, Failure> {
    if !args.join {
        return Ok(None);
    }
    let missing = |key: &str, flag: &str, example: &str| {
        Failure::usage(format_args!(
            "a join string needs {key}, and neither the command line nor [join] of the issuer's configuration has it: add {flag}, \
             or {key} = {example} under [join]. No account was made"
        ))
    };
    let gateways = if args.gateways.is_empty() { config.gateways.clone() } else { args.gateways };
    if gateways.is_empty() {
        return Err(missing("gateways", "--gateway URL", "[\"https://proxy.example\"]"));
    }
    let issuers = if args.issuers.is_empty() { config.issuers.clone() } else { args.issuers };
    if issuers.is_empty() {
        return Err(missing("issuers", "--issuer URL", "[\"https://issuer.example\"]"));
    }
    let join = Join {
        gateways,
        origin: args.origin.or_else(|| config.origin.clone()),
        gateway_ca: trusted(args.gateway_ca.as_ref().or(config.gateway_ca.as_ref()))?,
        issuers,
        issuer_ca: trusted(args.issuer_ca.as_ref().or(config.issuer_ca.as_ref()))?,
        api_key: None,
    };
    join.format().map_err(|error| Failure::usage(format_args!("{error}. No account was made")))?;
    Ok(Some(join))
}

/// Reads the certificates of a PEM file.
fn trusted(path: Option<&PathBuf>) -> Result<Option<String>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let refused = |reason: String| {
        Failure::configuration(format_args!(
            "{} cannot go into a join string: {reason}. No account was made",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let found = certificates(&text)
        .ok_or_else(|| refused("it holds no whole PEM certificate (BEGIN CERTIFICATE)".to_owned()))?;
    Ok(Some(found))
}
