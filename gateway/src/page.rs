//! The gateway's part of the live page: checks, store, keys, tunnels.
//!
//! Each section is made once a second on a thread of the page's own, from what is counted anyway.

use crate::gateway::Core;
use postern_service::live::{
    Heat, Live, PercentileRow, Percentiles, Rate, Section, Show, Table, WINDOWS, Windows,
};
use postern_service::names::{CHECK_BUCKETS, CheckStage, Outcome};
use postern_spend::Backend;
use postern_spend::memcached::{DoorHealth, Memcached};
use postern_token::UnixSeconds;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};

/// Adds the gateway's sections. They do not keep the gateway alive.
pub(crate) fn add(live: &Live, core: &Arc<Core>) {
    live.add(while_alive(core, checks(core)));
    live.add(while_alive(core, store()));
    live.add(while_alive(core, keys));
    live.add(while_alive(core, tunnels()));
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

/// Rate, percentiles, heat map, refusals.
fn checks(core: &Core) -> impl FnMut(&Core) -> Section + Send + use<> {
    let mut stages: Vec<(CheckStage, Windows)> = CheckStage::ALL
        .iter()
        .rev()
        .map(|stage| (*stage, Windows::over(core.recorder.spread(*stage))))
        .collect();
    let mut rates = vec![Rate::default(); Outcome::ALL.len()];
    move |core| {
        let now: Vec<(Outcome, f64, u64)> = Outcome::ALL
            .iter()
            .zip(&mut rates)
            .map(|(outcome, rate)| {
                let total = core.recorder.total(*outcome);
                (*outcome, rate.tick(total), total)
            })
            .collect();
        let rate = |refused: bool| {
            let each = now.iter().filter(|(outcome, ..)| (*outcome != Outcome::Opened) == refused);
            each.map(|(_, rate, _)| rate).sum::<f64>()
        };
        stages.iter_mut().for_each(|(_, windows)| windows.tick());
        let row = |(stage, windows): &(CheckStage, Windows)| PercentileRow {
            label: stage.as_str(),
            windows: windows.spreads(),
        };
        let heat = stages.iter().find(|(stage, _)| *stage == CheckStage::Total).map(|(_, windows)| Heat {
            label: "Check latency",
            bounds: CHECK_BUCKETS,
            column: windows.column(CHECK_BUCKETS),
        });
        let mut section = Section::new("checks", "Double-spend checks")
            .tile("Admitted", Show::Rate, rate(false))
            .tile("Refused", Show::Rate, rate(true));
        section.latency = Some(Percentiles { windows: WINDOWS, rows: stages.iter().map(row).collect() });
        section.heat = heat;
        let columns = [("reason", Show::Text), ("now", Show::Rate), ("total", Show::Count)];
        let mut refusals = Table::new("Refusals by reason", "Nothing was refused.", &columns);
        for (outcome, rate, total) in now {
            if outcome != Outcome::Opened && total > 0 {
                refusals.row(vec![json!(outcome.as_str()), json!(rate), json!(total)]);
            }
        }
        section.tables.push(refusals);
        section
    }
}

/// Each address, or the size of what is embedded.
fn store() -> impl FnMut(&Core) -> Section + Send {
    let mut hits = Rate::default();
    move |core| match &core.backend {
        Backend::Embedded(store) => {
            let records = store.stats().records as f64;
            Section::new("store", "Store: embedded").tile("Records", Show::Count, records)
        }
        Backend::Memcached(memory) => shared(memory, &mut hits),
    }
}

fn shared(memory: &Memcached, hits: &mut Rate) -> Section {
    let (health, totals) = (memory.health(), memory.totals());
    let columns = [
        ("address", Show::Text),
        ("state", Show::State),
        ("connections", Show::Count),
        ("outstanding", Show::Count),
        ("occupancy", Show::Percent),
        ("failed connects", Show::Count),
    ];
    let mut doors = Table::new("Addresses of the shared memory", "There is none.", &columns);
    for door in &health.doors {
        let occupancy = match door.capacity {
            0 => Value::Null,
            capacity => json!(door.outstanding as f64 / capacity as f64),
        };
        doors.row(vec![
            json!(door.address.to_string()),
            json!(state(door)),
            json!(door.connections),
            json!(door.outstanding),
            occupancy,
            json!(door.connect_failures),
        ]);
    }
    let mut section = Section::new("store", "Store: shared")
        .tile("Canaries lost", Show::Count, totals.canaries_lost as f64)
        .tile("Token keys with lost records", Show::Count, health.lost.len() as f64)
        .tile("Waits for a connection", Show::Count, totals.pool_waits as f64)
        .tile("Replays from memory", Show::Rate, hits.tick(totals.cache_hits))
        .tile("Keys in memory", Show::Count, health.remembered as f64);
    section.tables.push(doors);
    section
}

fn state(door: &DoorHealth) -> String {
    match (door.foreign, door.failure) {
        (true, _) => "bad: leads to another memory".to_owned(),
        (false, Some(failure)) => format!("bad: {failure}"),
        (false, None) => "ok".to_owned(),
    }
}

/// What is in the issuer's directory, as this gateway has it.
fn keys(core: &Core) -> Section {
    let now = UnixSeconds::now();
    let columns =
        [("key", Show::Text), ("phase", Show::Text), ("in use for", Show::Age), ("retires in", Show::Age)];
    let mut table = Table::new("Token keys", "None is known: nobody can be admitted.", &columns);
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
        let (connections, open) = core.recorder.levels();
        let meter = core.recorder.meter();
        Section::new("tunnels", "Tunnels")
            .tile("Open", Show::Count, open as f64)
            .tile("Connections", Show::Count, connections as f64)
            .tile("Limit", Show::Count, core.limits.connections as f64)
            .tile("Up", Show::BytesRate, up.tick(meter.up.total()))
            .tile("Down", Show::BytesRate, down.tick(meter.down.total()))
    }
}
