//! Where the gateway of a configuration opens tunnels.

use crate::daemon::environment;
use crate::failure::Failure;
use postern_gateway::{Config, ExplainError, explain};
use std::path::Path;

/// Says what decides about `target`. Refused is a failure.
pub(super) async fn check(target: &str, path: &Path) -> Result<(), Failure> {
    let (config, _) = postern_config::open::<Config>(path, environment())?;
    let explained = explain(&config.egress, target).await.map_err(|error| match error {
        ExplainError::Target(error) => Failure::usage(format_args!("--egress {target}: {error}")),
        ExplainError::Resolver(error) => Failure::runtime(error),
    })?;
    explained.sentences.iter().for_each(|sentence| println!("{sentence}"));
    if explained.is_allowed {
        println!("{target}: the gateway of {} opens tunnels there.", path.display());
        return Ok(());
    }
    Err(Failure::runtime(format_args!("{target}: the gateway of {} opens no tunnel there", path.display())))
}
