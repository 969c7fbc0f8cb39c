//! The arguments of `postern status`.

use clap::Args;
use std::path::PathBuf;

/// Print what of Postern runs on this machine: each daemon, its version, whether it is ready or why not, and its live page.
///
/// It asks the admin listeners that the configurations in DIR name, or those given by --config; where there is none, the default
/// admin ports, such as that of `postern up`. `postern client status` says more of an agent, `postern doctor` of what is wrong.
///
/// Exit code 0 when all are ready, 1 when one is not, 3 when none runs.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The folder of the configurations, such as that of `postern init`
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// A daemon's configuration file, with the environment variables as they are now; repeat it for several
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "directory")]
    pub(crate) config: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
