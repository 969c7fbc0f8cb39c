//! Names to addresses, by the system's configuration (/etc/resolv.conf and /etc/hosts), without its search domains: a
//! client's name means the same through every gateway.

use crate::observe::catalogue;
use crate::observe::labels::LookupEnded;
use crate::request::deny::Refusal;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup_ip::LookupIp;
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
/// Of an answer so many addresses are kept. A name can have thousands, and `connect` tries few.
const MOST_ADDRESSES: usize = 16;
/// Names of which the answer is remembered: 253 bytes each at most, and the addresses, so some 5 MiB.
const MOST_NAMES: usize = 8192;

/// A caching resolver: equal questions in flight are one, and answers are kept for their time to live. Each worker has its
/// own, since its background tasks live on the worker's runtime.
pub(crate) struct Resolver {
    resolver: TokioResolver,
    answers: Mutex<Answers>,
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
        options.cache_size = 0; // it is bounded by answers, whatever their size
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let ended = |ended: &LookupEnded| {
            from_zero(counter!(catalogue::LOOKUPS, LookupEnded::LABEL => ended.as_str()))
        };
        Ok(Self {
            resolver: builder.build()?,
            answers: Mutex::default(),
            ended: LookupEnded::ALL.iter().map(ended).collect(),
        })
    }

    /// Addresses of a name, those of IPv6 first: `dial` begins with the first family.
    pub(crate) async fn resolve(&self, name: &str, deadline: Instant) -> Result<Vec<IpAddr>, Refusal> {
        let known = self.answers.lock().find(name, Instant::now());
        let (ended, addresses) = match known {
            Some(addresses) if addresses.is_empty() => (LookupEnded::FailedBefore, addresses),
            Some(addresses) => (LookupEnded::Kept, addresses),
            None => match timeout_at(deadline, self.resolver.lookup_ip(name)).await {
                Ok(found) => self.remember(name, found.ok().as_ref()),
                Err(_) => {
                    self.ended[LookupEnded::TimedOut as usize].increment(1);
                    return Err(Refusal::ResolveTimeout);
                }
            },
        };
        self.ended[ended as usize].increment(1);
        if addresses.is_empty() { Err(Refusal::Unresolved) } else { Ok(addresses) }
    }

    fn remember(&self, name: &str, found: Option<&LookupIp>) -> (LookupEnded, Vec<IpAddr>) {
        let now = Instant::now();
        let all: Vec<IpAddr> = found.into_iter().flat_map(LookupIp::iter).collect();
        let addresses = of_both_families(&all);
        let (ended, until) = match found {
            Some(found) if !addresses.is_empty() => (LookupEnded::Found, found.valid_until().into()),
            _ => (LookupEnded::Failed, now + FAILED),
        };
        self.answers.lock().remember(name, &addresses, until, now);
        (ended, addresses)
    }
}

/// The first addresses, half of them of IPv4 where there are that many, so that a name with many of one family does not
/// lose the other one.
fn of_both_families(all: &[IpAddr]) -> Vec<IpAddr> {
    let (mut v6, mut v4): (Vec<IpAddr>, Vec<IpAddr>) = all.iter().partition(|address| address.is_ipv6());
    v4.truncate(MOST_ADDRESSES - v6.len().min(MOST_ADDRESSES / 2));
    v6.truncate(MOST_ADDRESSES - v4.len());
    v6.append(&mut v4);
    v6
}

/// What is known of names, and until when: their addresses, or none.
#[derive(Default)]
struct Answers(HashMap<Box<str>, (Box<[IpAddr]>, Instant)>);

impl Answers {
    fn find(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        self.0.get(name).filter(|(_, until)| now < *until).map(|(addresses, _)| addresses.to_vec())
    }

    fn remember(&mut self, name: &str, addresses: &[IpAddr], until: Instant, now: Instant) {
        if self.0.len() >= MOST_NAMES && !self.0.contains_key(name) {
            self.0.retain(|_, (_, until)| now < *until);
            if self.0.len() >= MOST_NAMES {
                self.0.clear(); // names that live long must not keep all others out
            }
        }
        self.0.insert(name.into(), (addresses.into(), until));
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
        resolver.answers.lock().0.insert("broken.example.".into(), ([].into(), deadline)); // however slow the machine is
        assert!(!fails("broken.example.").await, "the same question again");
        assert!(fails("other.example.").await);
        resolver.answers.lock().0.insert("broken.example.".into(), ([].into(), Instant::now()));
        assert!(fails("broken.example.").await, "after its time");
    }

    #[tokio::test]
    async fn what_was_found_is_kept_for_its_time_to_live() {
        let (resolver, asked) = failing().await;
        let (deadline, addresses) =
            (Instant::now() + Duration::from_secs(60), ["192.0.2.1".parse().unwrap()]);
        resolver.answers.lock().remember("known.example", &addresses, deadline, Instant::now());
        assert_eq!(resolver.resolve("known.example", deadline).await.unwrap(), addresses);
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_makes_room_by_itself() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        for n in 0..MOST_NAMES {
            answers.remember(&n.to_string(), &[], if n < 9 { later } else { now + FAILED }, now);
        }
        assert_eq!(answers.0.len(), MOST_NAMES);
        answers.remember("new", &[], later, now + FAILED);
        assert_eq!(answers.0.len(), 10, "what has expired goes first");
        for n in 0..MOST_NAMES {
            answers.remember(&n.to_string(), &[], later, now);
        }
        assert!(answers.0.len() < MOST_NAMES && answers.find(&(MOST_NAMES - 1).to_string(), now).is_some());
    }

    #[test]
    fn of_many_addresses_some_of_each_family_are_kept() {
        let v4 = |n: u8| IpAddr::from([192, 0, 2, n]);
        let v6 = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        let kept = |six: u16, four: u8| {
            let all: Vec<_> = (0..six).map(v6).chain((0..four).map(v4)).collect();
            let kept = of_both_families(&all);
            assert!(kept.is_sorted_by_key(IpAddr::is_ipv4), "IPv6 first: {kept:?}");
            let of_v4 = kept.iter().filter(|address| address.is_ipv4()).count();
            (kept.len() - of_v4, of_v4)
        };
        assert_eq!((kept(0, 0), kept(1, 2), kept(3, 200)), ((0, 0), (1, 2), (3, 13)));
        assert_eq!((kept(200, 0), kept(200, 3), kept(200, 200)), ((16, 0), (13, 3), (8, 8)));
    }
}
