//! How a gateway is reached: over TCP, or through a tunnel of the hop before it.

use super::{DialError, Gateway};
use crate::front::answer::Refusal;
use crate::hop::gateways::Outage;
use crate::hop::tunnel::Opener;
use postern_lookup::Lookup;
use postern_proxy::target::Target;
use postern_proxy::tunnel::{Io, Received};
use std::io;

/// How a gateway is reached.
pub(super) enum Route {
    /// Over TCP.
    Direct(Lookup),
    /// Through the hop before it, for which the gateway is a target.
    Through(Opener, Target),
}

/// Why there is no connection to a gateway.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoWay {
    /// The gateway cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The hop before it opens no way there, for a reason that is not this gateway's.
    #[error("{0}")]
    FirstHop(Outage),
}

/// The same, while the gateway's name is not in it yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum RouteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    FirstHop(Outage),
}

/// A stream to a gateway, on which nothing was sent.
pub(super) struct Reached {
    pub(super) stream: Box<dyn Io>,
    /// To be kept taking by the task that reads the stream.
    pub(super) received: Received,
}

impl Route {
    pub(super) async fn reach(&self, gateway: &Gateway) -> Result<Reached, RouteError> {
        match self {
            Self::Direct(lookup) => {
                let host = gateway.host.trim_start_matches('[').trim_end_matches(']');
                let stream = lookup.connect(host, gateway.port, gateway.connect_timeout).await?;
                stream.set_nodelay(true)?;
                Ok(Reached { stream: Box::new(stream), received: Received::default() })
            }
            Self::Through(first, target) => {
                let tunnel = first.open_way(target).await.map_err(RouteError::at_first_hop)?;
                let received = tunnel.received();
                Ok(Reached { stream: Box::new(tunnel), received })
            }
        }
    }
}

impl RouteError {
    /// A first hop that answered for the gateway behind it did its part.
    fn at_first_hop(refusal: Refusal) -> Self {
        match (refusal.of_first_hop(), refusal) {
            (Some(outage), _) => Self::FirstHop(outage),
            (None, Refusal::Passed(refused)) => {
                Self::Io(io::Error::other(format!("the first hop {}", refused.words())))
            }
            (None, refusal) => Self::Io(io::Error::other(refusal.to_string())),
        }
    }
}
