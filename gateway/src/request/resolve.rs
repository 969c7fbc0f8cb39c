//! Names to addresses, by the system's configuration (/etc/resolv.conf and /etc/hosts), without its search domains: a
//! client's name means the same through every gateway.

use crate::observe::catalogue;
use crate::observe::labels::LookupEnded;
use crate::request::deny::Refusal;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;
use metrics::{Counter, counter};
use parking_lot::Mutex;
use postern_telemetry::metrics::from_zero;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long a failure is remembered. A name server that is down fails each question for it, and a token buys a question.
const FAILED: Duration = Duration::from_secs(1);
/// Failures remembered at once, of 253 bytes each at most.
const MOST_FAILED: usize = 1024;

/// A caching resolver: equal questions in flight are one, and answers are kept for their time to live. Each worker has its
/// own, since its background tasks live on the worker's runtime.
pub(crate) struct Resolver {
    resolver: TokioResolver,
    failed: Mutex<Failed>,
    ended: Vec<Counter>,
}

/// Why the system's resolver configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the system's resolver configuration: {0}; /etc/resolv.conf must name a DNS server")]
pub struct ResolverError(String);

impl Resolver {
    pub(crate) fn new() -> Result<Self, ResolverError> {
        let fail = |error: NetError| ResolverError(error.to_string());
        let (system, options) = read_system_conf().map_err(fail)?;
        Self::of(system.name_servers().to_vec(), options).map_err(fail)
    }

    fn of(servers: Vec<NameServerConfig>, mut options: ResolverOpts) -> Result<Self, NetError> {
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let ended = |ended: &LookupEnded| {
            from_zero(counter!(catalogue::LOOKUPS, LookupEnded::LABEL => ended.as_str()))
        };
        Ok(Self {
            resolver: builder.build()?,
            failed: Mutex::default(),
            ended: LookupEnded::ALL.iter().map(ended).collect(),
        })
    }

    /// All addresses of a name, those of IPv6 first: `dial` begins with the first family.
    pub(crate) async fn resolve(&self, name: &str, deadline: Instant) -> Result<Vec<IpAddr>, Refusal> {
        let (ended, result) = if self.failed.lock().contains(name, Instant::now()) {
            (LookupEnded::FailedBefore, Err(Refusal::Unresolved))
        } else {
            match timeout_at(deadline, self.resolver.lookup_ip(name)).await {
                Ok(Ok(found)) => (LookupEnded::Found, Ok(found.iter().collect())),
                Ok(Err(_)) => {
                    self.failed.lock().remember(name, Instant::now());
                    (LookupEnded::Failed, Err(Refusal::Unresolved))
                }
                Err(_) => (LookupEnded::TimedOut, Err(Refusal::ResolveTimeout)),
            }
        };
        self.ended[ended as usize].increment(1);
        result
    }
}

/// Names that could not be resolved, and until when that is believed.
#[derive(Default)]
struct Failed(HashMap<Box<str>, Instant>);

impl Failed {
    fn contains(&self, name: &str, now: Instant) -> bool {
        self.0.get(name).is_some_and(|until| now < *until)
    }

    fn remember(&mut self, name: &str, now: Instant) {
        if self.0.len() >= MOST_FAILED {
            self.0.retain(|_, until| now < *until);
        }
        if self.0.len() < MOST_FAILED {
            self.0.insert(name.into(), now + FAILED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::config::ConnectionConfig;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::UdpSocket;

    /// A name server that fails every question, and a count of them.
    async fn failing() -> (Resolver, Arc<AtomicUsize>) {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, client)) = server.recv_from(&mut question).await {
                count.fetch_add(1, Ordering::Relaxed);
                question[2..4].copy_from_slice(&[0x81, 0x82]); // an answer: SERVFAIL
                let _ = server.send_to(&question[..length], client).await;
            }
        });
        let mut connection = ConnectionConfig::udp();
        connection.port = address.port();
        let server = NameServerConfig::new(address.ip(), true, vec![connection]);
        (Resolver::of(vec![server], ResolverOpts::default()).unwrap(), asked)
    }

    #[tokio::test]
    async fn a_failure_is_remembered_for_a_second_and_for_its_name_alone() {
        let (resolver, asked) = failing().await;
        let deadline = Instant::now() + Duration::from_secs(60);
        let fails = async |name| {
            let before = asked.load(Ordering::Relaxed);
            let failed = resolver.resolve(name, deadline).await;
            assert!(matches!(failed, Err(Refusal::Unresolved)), "{failed:?}");
            asked.load(Ordering::Relaxed) > before
        };
        assert!(fails("broken.example.").await);
        resolver.failed.lock().0.insert("broken.example.".into(), deadline); // however slow the machine is
        assert!(!fails("broken.example.").await, "the same question again");
        assert!(fails("other.example.").await);
        resolver.failed.lock().0.insert("broken.example.".into(), Instant::now());
        assert!(fails("broken.example.").await, "after its time");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_makes_room_by_itself() {
        let (mut failed, now) = (Failed::default(), Instant::now());
        for n in 0..2 * MOST_FAILED {
            failed.remember(&n.to_string(), now);
        }
        assert_eq!(failed.0.len(), MOST_FAILED);
        assert!(failed.contains("0", now) && !failed.contains("0", now + FAILED));
        failed.remember("new", now + FAILED);
        assert_eq!(failed.0.len(), 1);
    }
}
