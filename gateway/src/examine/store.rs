//! The double-spend store of a configuration: is it there, does it keep records, is it of a version without known faults?

use crate::backend;
use crate::config::{Config, MemcachedConfig, StoreConfig, StoreKind};
use crate::health::way_out;
use crate::keys::keyring::CLOCK_TOLERANCE;
use postern_daemon::examination::{Examinations, Finding, PATIENCE, directory, written};
use postern_daemon::tls;
use postern_daemon::utc::rough;
use postern_lookup::Lookup;
use postern_spend::Unknown;
use postern_spend::memcached::{Address, Memory, Server, Tls, inspect, release};
use postern_token::UnixSeconds;
use std::time::Duration;

/// What it costs to be without an address of the store.
const WITHOUT: &str = "where no address of the store answers, every request is answered 503";
/// The same without one of three replicas.
const WITHOUT_REPLICA: &str = "two of the three replicas decide, as long as both answer: without one more, every request is answered 503";
/// How many looks a server gets that answers later than the gateway waits.
const LOOKS: usize = 5;
/// A memory, or a number of connections, that is used up to this part deserves a look.
const FULL: f64 = 0.8;

/// Versions of memcached that anyone who reaches them can crash or take over, first and last.
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

/// The hosts of a shared store.
pub(super) fn hosts(config: &StoreConfig) -> Vec<String> {
    let host = |address: Address| match address {
        Address::Tcp { host, .. } => Some(host),
        Address::Unix(_) => None,
    };
    addresses(config).into_iter().filter_map(host).collect()
}

fn addresses(config: &StoreConfig) -> Vec<Address> {
    if config.kind == StoreKind::Embedded {
        return Vec::new();
    }
    let memcached = &config.memcached;
    let texts = memcached.addresses.iter().chain(memcached.replicas.iter().flatten());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Begins to look at each address, or at the directory.
pub(super) fn begin(config: &Config, examinations: &mut Examinations) {
    let store = config.store.clone();
    if store.kind == StoreKind::Embedded {
        let late = Finding::bad("disk", "the disk of store.path does not answer")
            .costs("every request is answered 503");
        return examinations.begin(late, async move {
            let examining = move || {
                directory(
                    "store.path",
                    &store.path,
                    "no spent token can be recorded, so every request is answered 503",
                )
            };
            tokio::task::spawn_blocking(examining).await.into_iter().collect()
        });
    }
    let Ok(tls) = store.memcached.tls.as_ref().map(backend::store_tls).transpose() else { return };
    let timeout = store.memcached.timeout.get();
    let without = if store.memcached.replicas.is_empty() { WITHOUT } else { WITHOUT_REPLICA };
    begin_together(&store.memcached, tls.as_ref(), examinations);
    for address in addresses(&store) {
        begin_certificate(&address, tls.as_ref(), examinations);
        let tls = tls.clone();
        let late =
            Finding::bad("store", format!("{address} does not answer within {} s", PATIENCE.as_secs()))
                .costs(without)
                .remedy("check that it runs, and the way to it");
        examinations.begin(late, async move {
            match inspect_unhurried(&address, tls.as_ref(), timeout).await {
                Ok(server) => judge(&address, &server, timeout, UnixSeconds::now()),
                Err(reason) => vec![
                    Finding::bad("store", format!("{address}: {reason}"))
                        .costs(without)
                        .remedy(way_out(reason)),
                ],
            }
        });
    }
}

/// The quickest of a few looks: on a busy machine one look may be late for reasons of its own.
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

/// What no address shows by itself.
fn begin_together(config: &MemcachedConfig, tls: Option<&Tls>, examinations: &mut Examinations) {
    let of = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect::<Vec<Address>>();
    let (plain, tls) = (of(&config.addresses), tls.cloned());
    let replicas: Vec<Vec<Address>> = config.replicas.iter().map(|replica| of(replica)).collect();
    let late = Finding::look("store", "whether its addresses lead to the same records was not seen in time");
    examinations.begin(late, async move {
        let apart = apart(&plain, tls.as_ref()).await;
        let twice = twice(&replicas).await;
        apart.into_iter().chain(twice).collect()
    });
}

/// Two addresses of one store that are two memcacheds, each with records of its own.
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
    Some(
        Finding::bad(
            "store",
            format!("{first} and {other} are two memcacheds, and store.memcached.addresses is of one store"),
        )
        .costs("a token could be spent once on each: the gateway notices, and answers every request 503")
        .remedy("name one of them, or a router before both; or three lists in store.memcached.replicas"),
    )
}

/// One server in two replicas, under one name or two.
async fn twice(replicas: &[Vec<Address>]) -> Option<Finding> {
    let mut known: Vec<(usize, String, &Address)> = Vec::new();
    for (number, replica) in replicas.iter().enumerate() {
        for address in replica {
            for place in places(address).await {
                let is_it = |(of, at, _): &&(usize, String, &Address)| *of != number && *at == place;
                if let Some((.., before)) = known.iter().find(is_it) {
                    return Some(one_server(before, address));
                }
                known.push((number, place, address));
            }
        }
    }
    None
}

fn one_server(before: &Address, address: &Address) -> Finding {
    let seen = format!("{before} and {address} are one server, in two lists of store.memcached.replicas");
    Finding::bad("store", seen)
        .costs("its votes are one, so no mark is offered, and every request is answered 503")
        .remedy("give each of the three lists servers of its own")
}

/// Where connections to an address go.
async fn places(address: &Address) -> Vec<String> {
    match address {
        Address::Unix(path) => vec![path.display().to_string()],
        // Of a name without addresses another finding says so.
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

/// What is to be said of a server that answers at `now`.
fn judge(address: &Address, server: &Server, timeout: Duration, now: UnixSeconds) -> Vec<Finding> {
    let mut found = Vec::new();
    if server.took >= timeout {
        let seen = format!(
            "{address} answers in {}, and store.memcached.timeout is {timeout:?}",
            written(server.took)
        );
        let finding = Finding::bad("store", seen)
            .costs("what takes longer than the timeout has no answer, and its connection is closed: of three replicas it has no vote then, and alone it has requests refused with 503")
            .remedy("check the load of the server and the way to it, or raise the timeout");
        found.push(finding);
    }
    let version = server.version.as_deref().filter(|_| server.memcached.is_some());
    found.extend(version.and_then(|version| faults(address, version)));
    if let Some(memory) = &server.memcached {
        found.extend(of_memory(address, memory, now));
    }
    if found.is_empty() {
        let used = server.memcached.map_or_else(String::new, |memory| {
            format!(", {} of {} MiB used, and it evicts nothing", memory.used >> 20, memory.most >> 20)
        });
        let seen = format!("{address} answers in {}: {server}{used}", written(server.took));
        found.push(Finding::well("store", seen));
    }
    found
}

fn faults(address: &Address, version: &str) -> Option<Finding> {
    let present = release(version)?;
    let (.., what) = FAULTY.iter().find(|(first, last, _)| (*first..=*last).contains(&present))?;
    Some(
        Finding::bad("store", format!("{address} is memcached {version}, which has {what}"))
            .costs("records can be lost there: of three replicas it has no vote then, and alone it makes tokens void that clients hold")
            .remedy("install a newer memcached there; until then let nothing but gateways reach its port"),
    )
}

fn of_memory(address: &Address, memory: &Memory, now: UnixSeconds) -> Vec<Finding> {
    let mut found = Vec::new();
    if memory.evicts {
        let dropped = match memory.evicted {
            0 => String::new(),
            evicted => format!(", and has dropped {evicted} since its start"),
        };
        let finding = Finding::bad("store", format!("{address} drops records when it is full{dropped}"))
            .costs("no mark is planted there: of three replicas it has no vote, and alone no token can be admitted")
            .remedy("start memcached with -M");
        found.push(finding);
    }
    let is_full = |used: u64, most: u64| most > 0 && used as f64 >= FULL * most as f64;
    let is_short = is_full(memory.used, memory.most) && !memory.evicts;
    if is_short && memory.rejected == 0 {
        let seen = format!("{address} uses {} of its {} MiB", memory.used >> 20, memory.most >> 20);
        let finding = Finding::look("store", seen)
            .costs("once it is full it rejects every new record: of three replicas it has no vote then, and alone it has requests refused with 503")
            .remedy("start memcached with a larger -m (docs/operate/capacity.md), one replica after the other");
        found.push(finding);
    }
    if is_short && memory.rejected > 0 {
        let finding = Finding::bad(
            "store",
            format!("{address} is full: it has rejected {} records since its start", memory.rejected),
        )
        .costs("of three replicas it has no vote now; alone it has every request refused with 503")
        .remedy("start memcached with a larger -m (docs/operate/capacity.md)");
        found.push(finding);
    }
    if is_full(memory.connections, memory.most_connections) {
        let seen = format!(
            "{address} has {} of at most {} connections",
            memory.connections, memory.most_connections
        );
        let finding = Finding::look("store", seen)
            .costs("some gateways get no connection: of three replicas it has no vote at them, and alone they refuse requests with 503")
            .remedy("start memcached with a larger -c");
        found.push(finding);
    }
    let apart = memory.time.abs_diff(now.0);
    if apart > CLOCK_TOLERANCE.as_secs() {
        let way = if memory.time > now.0 { "ahead of" } else { "behind" };
        let finding = Finding::bad("clock", format!("the clock of {address} is {} {way} this machine's", rough(apart)))
            .costs("records of spent tokens end too early, or too late: where that is noticed, of three replicas it has no vote, and alone it has requests refused with 503")
            .remedy("set both clocks by NTP (timedatectl shows whether one is)");
        found.push(finding);
    }
    found
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
