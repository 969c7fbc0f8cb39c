//! Each name server by itself, for an operator: one that does not answer hides behind the others.

use super::{Parts, ResolverError, build, parts, tls};
use crate::config::ResolverConfig as Settings;
use hickory_resolver::TokioResolver;
use hickory_resolver::proto::rr::{Name, RecordType};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A name server.
pub(crate) struct OneServer {
    pub(crate) address: SocketAddr,
    resolver: TokioResolver,
}

/// What a name server did with a question.
pub(crate) enum Asked {
    /// There is an answer, whatever it says.
    Answered(Duration),
    /// There is none, for this reason.
    Failed(String),
}

/// The name servers of these settings.
pub(crate) fn each_server(settings: &Settings) -> Result<Vec<OneServer>, ResolverError> {
    let Parts { servers, mut options, .. } = parts(settings)?;
    options.attempts = 1;
    let one = |server: hickory_resolver::config::NameServerConfig| {
        let port = server.connections.first().map_or(53, |connection| connection.port);
        let (address, tls) = (SocketAddr::new(server.ip, port), tls(settings)?);
        Ok(OneServer { address, resolver: build(vec![server], options.clone(), tls)? })
    };
    servers.into_iter().map(one).collect()
}

impl OneServer {
    /// Asks for the servers of the root zone.
    pub(crate) async fn ask(&self) -> Asked {
        let began = Instant::now();
        match self.resolver.lookup(Name::root(), RecordType::NS).await {
            Ok(_) => Asked::Answered(began.elapsed()),
            Err(error) if error.is_no_records_found() => Asked::Answered(began.elapsed()),
            Err(error) => Asked::Failed(error.to_string()),
        }
    }
}
