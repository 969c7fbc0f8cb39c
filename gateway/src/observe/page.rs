//! The gateway's sections of the live page: checks, store, keys, tunnels.
//!
//! The page's own thread builds each section once a second from existing counters.

use crate::observe::catalogue::CHECK_BUCKETS;
use crate::observe::labels::{CheckStage, Outcome};
use crate::observe::recorder::Recorder;
use crate::state::Core;
use postern_daemon::admin::live::{Endings, Heat, Live, Rate, Section, Show, Stages, Table, Tokens};
use postern_spend::Backend;
use postern_spend::memcached::{EndpointHealth, Memcached, Unfit};
use postern_token::UnixSeconds;
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Adds the gateway's sections to the page. They hold only weak references to the gateway.
pub(crate) fn add(live: &Live, core: &Arc<Core>) {
    live.add(while_alive(core, checks(core)));
    live.add(while_alive(core, store()));
    live.add(while_alive(core, keys));
    live.add(while_alive(core, tunnels()));
    let core = Arc::downgrade(core);
    live.tokens(move || {
        core.upgrade().map(|core| (Tokens::Spent, core.recorder.spent.load(Relaxed))).into_iter().collect()
    });
}

fn while_alive<S>(core: &Arc<Core>, mut section: S) -> impl FnMut() -> Section + Send + use<S>
where
    S: FnMut(&Core) -> Section + Send,
{
    let core: Weak<Core> = Arc::downgrade(core);
    move || match core.upgrade() {
        Some(core) => section(&core),
        None => Section::new("stopped", "A gateway that has stopped"),
    }
}

/// Builds the section with admission rate, latency percentiles, heat map and refusals.
fn checks(core: &Core) -> impl FnMut(&Core) -> Section + Send + use<> {
    let stages =
        CheckStage::ALL.iter().rev().map(|stage| (words(*stage), &core.recorder.spreads[*stage as usize]));
    let mut stages = Stages::over(stages);
    let (mut refusals, mut admitted) = (Endings::default(), Rate::default());
    move |core| {
        // A request without a token fetches a challenge, as agents do, and does not count as a refusal.
        let is_refusal = |outcome: &&Outcome| !matches!(outcome, Outcome::Opened | Outcome::NoToken);
        let refused = Outcome::ALL.iter().filter(is_refusal);
        let refused = refused.map(|outcome| (outcome.as_str(), core.recorder.total(*outcome)));
        let in_all: u64 = refused.clone().map(|(_, total)| total).sum();
        let (table, rate) = refusals.tick("Refusals by reason", "Nothing was refused.", refused);
        let opened = core.recorder.total(Outcome::Opened);
        let percentiles = stages.tick();
        let mut section = Section::new("checks", "Double-spend checks")
            .tile("Admitted", Show::Count, opened as f64)
            .tile("Admitted a second", Show::Rate, admitted.tick(opened))
            .tile("Refused", Show::Count, in_all as f64)
            .tile("Refused a second", Show::Rate, rate)
            .tile("Asked for a challenge", Show::Count, core.recorder.total(Outcome::NoToken) as f64)
            .tile("p99 of a check, 1 min", Show::Duration, stages.p99(words(CheckStage::Total)));
        section.latency = Some(percentiles);
        section.heat = Some(Heat {
            label: "Check latency",
            bounds: CHECK_BUCKETS,
            column: stages.column(words(CheckStage::Total), CHECK_BUCKETS),
        });
        section.tables.push(table);
        section
    }
}

const fn words(stage: CheckStage) -> &'static str {
    match stage {
        CheckStage::PoolWait => "wait for a connection",
        CheckStage::Get => "look for the record",
        CheckStage::Verify => "verify the signature",
        CheckStage::Add => "record as spent",
        CheckStage::Total => "the whole check",
    }
}

/// Builds the store section: one row per address of a shared store, or the size of the embedded store.
fn store() -> impl FnMut(&Core) -> Section + Send {
    let mut hits = Rate::default();
    move |core| match &*core.generation.load().backend {
        Backend::Embedded(store) => {
            let records = store.stats().records as f64;
            Section::new("store", "Store: embedded").tile("Records", Show::Count, records)
        }
        Backend::Memcached(memcached) => shared(core, memcached, &mut hits),
    }
}

fn shared(core: &Core, memcached: &Memcached, hits: &mut Rate) -> Section {
    let (health, totals) = (memcached.health(), memcached.totals());
    let columns = [
        ("address", Show::Text),
        ("state", Show::State),
        ("memory", Show::Percent),
        ("connections", Show::Count),
        ("outstanding", Show::Count),
        ("occupancy", Show::Percent),
        ("failed connects", Show::Count),
    ];
    let mut endpoints = Table::new("Addresses of the shared store", "There is none.", &columns);
    let replicas = health.replicas();
    for endpoint in &health.endpoints {
        let occupancy = match endpoint.capacity {
            0 => Value::Null,
            capacity => json!(endpoint.outstanding as f64 / capacity as f64),
        };
        endpoints.row(vec![
            json!(name_of(endpoint, replicas)),
            json!(state(endpoint, health.away.contains(&endpoint.replica))),
            memory(core, &endpoint.address.to_string()),
            json!(endpoint.connections),
            json!(endpoint.outstanding),
            occupancy,
            json!(endpoint.connect_failures),
        ]);
    }
    let mut section = Section::new("store", "Store: shared")
        .tile("Marks planted", Show::Count, totals.marks_planted.load(Relaxed) as f64)
        .tile("Buckets torn", Show::Count, health.torn as f64)
        .tile("Waits for a connection", Show::Count, totals.pool_waits.load(Relaxed) as f64)
        .tile("Replays from the cache", Show::Rate, hits.tick(totals.cache_hits.load(Relaxed)))
        .tile("Keys in the cache", Show::Count, health.remembered as f64);
    section.tables.push(endpoints);
    section
}

fn memory(core: &Core, address: &str) -> Value {
    match core.memories.is_hidden(address) {
        true => json!("not known behind a router"),
        false => json!(core.memories.share(address)),
    }
}

fn name_of(endpoint: &EndpointHealth, replicas: usize) -> String {
    match replicas {
        1 => endpoint.address.to_string(),
        _ => format!("{} (replica {} of {replicas})", endpoint.address, endpoint.replica + 1),
    }
}

/// Describes an address; `is_away` if the watch gets no answer from its replica, in whole or in part.
fn state(endpoint: &EndpointHealth, is_away: bool) -> String {
    let state = match endpoint {
        EndpointHealth { failure: Some(failure), .. } => return format!("bad: {failure}"),
        EndpointHealth { rejects: true, .. } => "bad: rejects records, as a full server does",
        _ if is_away => "bad: does not answer, or lacks servers",
        EndpointHealth { unfit: Some(Unfit::Evicts), .. } => "bad: drops records when it is full",
        EndpointHealth { unfit: Some(Unfit::Parts), .. } => {
            "bad: keeps records of one bucket on several servers"
        }
        EndpointHealth { unfit: Some(Unfit::Hides), .. } => "bad: does not show where it keeps records",
        _ => "ok",
    };
    state.to_owned()
}

fn keys(core: &Core) -> Section {
    let now = UnixSeconds::now();
    let columns =
        [("key", Show::Text), ("phase", Show::Text), ("in use for", Show::Age), ("retires in", Show::Age)];
    let mut table = Table::new("Token keys", "None is known: no request can be admitted.", &columns);
    for key in core.keyring.load().view(now) {
        let [a, b, c, d, ..] = key.id.0; // enough to find it in the directory
        table.row(vec![
            json!(format!("{a:02x}{b:02x}{c:02x}{d:02x}…")),
            json!(key.phase.as_str()),
            json!(key.age.map(|age| age.as_secs())),
            json!(now.until(key.retires).as_secs()),
        ]);
    }
    let mut section = Section::new("keys", "Keys");
    section.tables.push(table);
    section
}

fn tunnels() -> impl FnMut(&Core) -> Section + Send {
    let (mut up, mut down) = (Rate::default(), Rate::default());
    move |core| {
        let Recorder { connections_open, tunnels_open, udp_open, meter, .. } = &core.recorder;
        Section::new("tunnels", "Tunnels")
            .tile("Open", Show::Count, tunnels_open.get() as f64)
            .tile("Of UDP", Show::Count, udp_open.get() as f64)
            .tile("Connections", Show::Count, connections_open.get() as f64)
            .tile("Limit", Show::Count, core.generation.load().settings.limits.connections as f64)
            .tile("Up", Show::BytesRate, up.tick(meter.up.total()))
            .tile("Down", Show::BytesRate, down.tick(meter.down.total()))
    }
}
