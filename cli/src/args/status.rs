//! The arguments of `postern status`.

use clap::Args;
use std::path::PathBuf;

/// Print what of Postern runs on this machine: each daemon, its version, whether it is ready or why not, and its live page.
///
/// It asks the admin listeners that the configurations in a folder name, or those given by --config; where there is none, the default
/// admin ports, such as that of `postern up`. A URL is that of one admin listener, whose links are printed, too: attempts, losses and
/// times of each. `postern client status` says more of an agent, `postern doctor` of what is wrong.
///
/// Exit code 0 when all are ready, 1 when one is not, 3 when none runs: fit for health checks.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The folder of the configurations, such as that of `postern init`, or the URL of a daemon's admin listener
    #[arg(value_name = "DIR|URL", default_value = ".")]
    pub(crate) place: String,
    /// A daemon's configuration file, with the environment variables as they are now; repeat it for several
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "place")]
    pub(crate) config: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Status {
    /// The URL of an admin listener, where one is named.
    pub(crate) fn admin(&self) -> Option<&str> {
        let is_url = self.place.starts_with("http://") || self.place.starts_with("https://");
        is_url.then_some(self.place.as_str())
    }
}
