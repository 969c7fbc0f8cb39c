//! Examination of the configured double-spend store: reachability, retention of records, and versions with known faults.

use crate::config::{Config, StoreConfig, StoreKind};
use crate::health::way_out;
use crate::memories::{NEARLY_FULL, skew};
use crate::settings::{replicas, store_tls};
use postern_daemon::examination::{Examinations, Finding, PATIENCE, directory, silent_disk, written};
use postern_daemon::tls;
use postern_net::Lookup;
use postern_spend::Unknown;
use postern_spend::memcached::{Address, Memory, Replicas, Server, Tls, inspect, release};
use postern_token::UnixSeconds;
use std::time::Duration;

const WITHOUT: &str = "where no address of the store answers, every request is answered 503";
const WITHOUT_REPLICA: &str =
    "two of the three replicas decide: while fewer answer, every request is answered 503";
const NO_RECORD: &str = "no spent token can be recorded, so every request is answered 503";
/// Number of attempts for a server that answers later than the gateway waits.
const LOOKS: usize = 5;

/// Versions of memcached, first and last, that anyone who reaches them can crash or take over.
const FAULTY: [([u32; 3], [u32; 3], &str); 2] = [
    (
        [0, 0, 0],
        [1, 4, 32],
        "CVE-2016-8704, CVE-2016-8705 and CVE-2016-8706: who reaches it can run programs there",
    ),
    (
        [1, 6, 0],
        [1, 6, 2],
        "CVE-2020-10931 and CVE-2020-22570: who reaches it can crash it, and its records are lost",
    ),
];

pub(super) fn hosts(config: &StoreConfig) -> Vec<String> {
    let host = |(_, address): (usize, &Address)| match address {
        Address::Tcp { host, .. } => Some(host.clone()),
        Address::Unix(_) => None,
    };
    let replicas = (config.kind == StoreKind::Memcached).then(|| replicas(&config.memcached).ok());
    replicas.flatten().iter().flat_map(Replicas::addresses).filter_map(host).collect()
}

/// Begins the examination of each address, or of the embedded store's directory.
pub(super) fn begin(config: &Config, examinations: &mut Examinations) {
    let store = config.store.clone();
    if store.kind == StoreKind::Embedded {
        let late = silent_disk("store.path", NO_RECORD);
        return examinations.begin(late, async move {
            let examining = move || directory("store.path", &store.path, NO_RECORD);
            tokio::task::spawn_blocking(examining).await.into_iter().collect()
        });
    }
    let Ok(tls) = store.memcached.tls.as_ref().map(store_tls).transpose() else { return };
    let Ok(replicas) = replicas(&store.memcached) else { return };
    let timeout = store.memcached.timeout.get();
    let without = if store.memcached.replicas.is_empty() { WITHOUT } else { WITHOUT_REPLICA };
    for (_, address) in replicas.addresses() {
        begin_certificate(address, tls.as_ref(), examinations);
        let (address, tls) = (address.clone(), tls.clone());
        let late = Finding::bad(
            "store",
            format!("{address} does not answer within {} s", PATIENCE.as_secs()),
            without,
            "check that it runs, and the way to it",
        );
        examinations.begin(late, async move {
            match inspect_unhurried(&address, tls.as_ref(), timeout).await {
                Ok(server) => judge(&address, &server, timeout, UnixSeconds::now()),
                Err(reason) => {
                    vec![Finding::bad("store", format!("{address}: {reason}"), without, way_out(reason))]
                }
            }
        });
    }
    begin_together(replicas, tls, examinations);
}

/// Returns the fastest of a few attempts: on a busy machine a single one may be late for other reasons.
async fn inspect_unhurried(
    address: &Address,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<Server, Unknown> {
    let mut quickest = inspect(address, tls, PATIENCE).await?;
    for _ in 1..LOOKS {
        if quickest.took < timeout {
            break;
        }
        let again = inspect(address, tls, PATIENCE).await?;
        if again.took < quickest.took {
            quickest = again;
        }
    }
    Ok(quickest)
}

fn begin_together(replicas: Replicas, tls: Option<Tls>, examinations: &mut Examinations) {
    let late = Finding::look("store", "whether its addresses lead to the same records was not seen in time");
    examinations.begin(late, async move {
        let found = match &replicas {
            Replicas::One(addresses) => apart(addresses, tls.as_ref()).await,
            Replicas::Three(replicas) => twice(replicas).await,
        };
        found.into_iter().collect()
    });
}

/// Finds two addresses of one store that lead to two memcacheds, each with separate records.
async fn apart(addresses: &[Address], tls: Option<&Tls>) -> Option<Finding> {
    let mut servers: Vec<(&Address, Memory)> = Vec::new();
    for address in addresses {
        let server = inspect(address, tls, PATIENCE).await.ok();
        servers.extend(server.and_then(|server| Some((address, server.memcached?))));
    }
    let (first, of_first) = servers.first()?;
    let started = |memory: &Memory| memory.time.saturating_sub(memory.uptime);
    let is_other =
        |memory: &Memory| memory.pid != of_first.pid || started(memory).abs_diff(started(of_first)) > 2;
    let (other, _) = servers.iter().find(|(_, memory)| is_other(memory))?;
    Some(Finding::bad(
        "store",
        format!("{first} and {other} are two memcacheds, and store.memcached.addresses is of one store"),
        "a token could be spent once on each: the gateway notices, and answers every request 503",
        "name one of them, or a router before both; or three lists in store.memcached.replicas",
    ))
}

/// Finds one server in two replicas, under one name or two.
async fn twice(replicas: &[Vec<Address>]) -> Option<Finding> {
    let mut known: Vec<(usize, String, &Address)> = Vec::new();
    for (number, replica) in replicas.iter().enumerate() {
        for address in replica {
            for place in places(address).await {
                let is_it = |(of, at, _): &&(usize, String, &Address)| *of != number && *at == place;
                if let Some((.., before)) = known.iter().find(is_it) {
                    return Some(Finding::bad(
                        "store",
                        format!(
                            "{before} and {address} are one server, in two lists of store.memcached.replicas"
                        ),
                        "its votes are one, so no mark is offered, and every request is answered 503",
                        "give each of the three lists its own servers",
                    ));
                }
                known.push((number, place, address));
            }
        }
    }
    None
}

async fn places(address: &Address) -> Vec<String> {
    match address {
        Address::Unix(path) => vec![path.display().to_string()],
        // Another finding reports a name without addresses.
        Address::Tcp { host, port } => {
            let mut families = Lookup::keeping(Duration::ZERO).find(host.trim_matches(['[', ']']), *port);
            families.rest().await;
            families.found().iter().map(ToString::to_string).collect()
        }
    }
}

fn begin_certificate(address: &Address, tls: Option<&Tls>, examinations: &mut Examinations) {
    if let (Address::Tcp { host, port }, Some(tls)) = (address, tls) {
        let name = tls.server_name.as_ref().unwrap_or(host);
        tls::begin_shown(examinations, (host, *port), name, tls.config.clone());
    }
}

/// Returns the findings about a server that answered at `now`.
fn judge(address: &Address, server: &Server, timeout: Duration, now: UnixSeconds) -> Vec<Finding> {
    let (mut found, took) = (Vec::new(), written(server.took));
    if server.took >= timeout {
        found.push(Finding::bad(
            "store",
            format!("{address} answers in {took}, and store.memcached.timeout is {timeout:?}"),
            "what takes longer than the timeout has no answer, and its connection is closed: of three replicas it has no vote then, and alone it has requests refused with 503",
            "check the load of the server and the way to it, or raise the timeout",
        ));
    }
    if let Some(memory) = &server.memcached {
        found.extend(server.version.as_deref().and_then(|version| faults(address, version)));
        found.extend(of_memory(address, memory, now));
    }
    if found.is_empty() {
        let used = server.memcached.map_or_else(String::new, |memory| {
            format!(", {} of {} MiB used, and it evicts nothing", memory.used >> 20, memory.most >> 20)
        });
        found.push(Finding::well("store", format!("{address} answers in {took}: {server}{used}")));
    }
    found
}

fn faults(address: &Address, version: &str) -> Option<Finding> {
    let present = release(version)?;
    let (.., what) = FAULTY.iter().find(|(first, last, _)| (*first..=*last).contains(&present))?;
    Some(Finding::bad(
        "store",
        format!("{address} is memcached {version}, which has {what}"),
        "records can be lost there: of three replicas it has no vote then, and alone it makes tokens void that clients hold",
        "install a newer memcached there; until then let nothing but gateways reach its port",
    ))
}

fn of_memory(address: &Address, memory: &Memory, now: UnixSeconds) -> Vec<Finding> {
    let Memory { used, most, rejected, connections, most_connections, .. } = *memory;
    let is_full = |used: u64, most: u64| most > 0 && used as f64 >= NEARLY_FULL * most as f64;
    let evicts = memory.evicts.then(|| {
        let dropped = match memory.evicted {
            0 => String::new(),
            evicted => format!(", and has dropped {evicted} since its start"),
        };
        Finding::bad(
            "store",
            format!("{address} drops records when it is full{dropped}"),
            "no mark is planted there: of three replicas it has no vote, and alone no token can be admitted",
            "start memcached with -M",
        )
    });
    let is_short = !memory.evicts && is_full(used, most);
    let short = is_short.then(|| match rejected {
        0 => Finding::look("store", format!("{address} uses {} of its {} MiB", used >> 20, most >> 20))
            .costs("once it is full it rejects every new record: of three replicas it has no vote then, and alone it has requests refused with 503")
            .remedy("start memcached with a larger -m (docs/operate/capacity.md), one replica after the other"),
        _ => Finding::bad(
            "store",
            format!("{address} is full: it has rejected {rejected} records since its start"),
            "of three replicas it has no vote now; alone it has every request refused with 503",
            "start memcached with a larger -m (docs/operate/capacity.md)",
        ),
    });
    let crowded = is_full(connections, most_connections).then(|| {
        Finding::look("store", format!("{address} has {connections} of at most {most_connections} connections"))
            .costs("some gateways get no connection: of three replicas it has no vote at them, and alone they refuse requests with 503")
            .remedy("start memcached with a larger -c")
    });
    let skewed = skew(&address.to_string(), memory.time, now).map(|skew| Finding::bad(
        "clock",
        skew,
        "records of spent tokens end too early, or too late: where that is noticed, of three replicas it has no vote, and alone it has requests refused with 503",
        "set both clocks by NTP (timedatectl shows whether one is)",
    ));
    [evicts, short, crowded, skewed].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_daemon::examination::Verdict;

    const MEMORY: Memory = Memory {
        evicts: false,
        evicted: 0,
        rejected: 0,
        used: 1 << 20,
        most: 64 << 20,
        connections: 10,
        most_connections: 1024,
        time: 1_000_000,
        pid: 7,
        uptime: 60,
    };

    fn verdicts(memory: Memory, version: &str) -> Vec<(Verdict, String)> {
        let server = Server {
            took: Duration::from_millis(1),
            version: Some(version.to_owned()),
            memcached: Some(memory),
        };
        let address = "cache.example:11211".parse().unwrap();
        let found = judge(&address, &server, Duration::from_millis(100), UnixSeconds(1_000_000));
        for finding in found.iter().filter(|finding| finding.verdict != Verdict::Well) {
            let costs = finding.cost.as_deref().unwrap_or_default();
            assert!(costs.contains("of three replicas"), "{costs}");
        }
        found.into_iter().map(|finding| (finding.verdict, finding.seen)).collect()
    }

    #[test]
    fn each_fault_of_a_memcached_is_one_finding() {
        let well = verdicts(MEMORY, "1.6.18");
        assert!(
            matches!(&well[..], [(Verdict::Well, seen)] if seen.contains("memcached 1.6.18")),
            "{well:?}"
        );
        for (memory, version, verdict, part) in [
            (Memory { evicts: true, evicted: 7, ..MEMORY }, "1.6.18", Verdict::Bad, "has dropped 7 since"),
            (Memory { used: 60 << 20, ..MEMORY }, "1.6.18", Verdict::Look, "uses 60 of its 64 MiB"),
            (
                Memory { used: 60 << 20, rejected: 3, ..MEMORY },
                "1.6.18",
                Verdict::Bad,
                "it has rejected 3 records",
            ),
            (Memory { connections: 1000, ..MEMORY }, "1.6.18", Verdict::Look, "has 1000 of at most 1024"),
            (Memory { time: 1_007_200, ..MEMORY }, "1.6.18", Verdict::Bad, "is 2 h ahead of this machine's"),
            (Memory { time: 990_000, ..MEMORY }, "1.6.18", Verdict::Bad, "behind this machine's"),
            (MEMORY, "1.4.25", Verdict::Bad, "CVE-2016-8704"),
            (MEMORY, "1.6.2", Verdict::Bad, "CVE-2020-22570"),
        ] {
            let found = verdicts(memory, version);
            assert!(matches!(&found[..], [(of, seen)] if *of == verdict && seen.contains(part)), "{found:?}");
        }
        for version in ["1.4.33", "1.5.6", "1.6.3", "1.7.0"] {
            assert_eq!(verdicts(MEMORY, version)[0].0, Verdict::Well, "{version}");
        }
    }
}
