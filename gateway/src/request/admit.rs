//! What a tunnel is opened for: a spent token, or a gateway of the operator's that took one.

use crate::request::peer::Entrusted;
use crate::request::spend::Spent;
use postern_proxy::target::Target;

/// The right to one tunnel to one target.
pub(crate) enum Admitted {
    /// A token was spent for it here.
    Paid(Spent),
    /// A peer answers for it.
    Entrusted(Entrusted),
}

impl Admitted {
    /// Where the tunnel goes.
    pub(crate) fn target(&self) -> &Target {
        match self {
            Self::Paid(spent) => spent.target(),
            Self::Entrusted(entrusted) => entrusted.target(),
        }
    }
}
