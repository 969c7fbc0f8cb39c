//! What the live page shows, as data: sections of tiles, percentiles, a heat map, lines over time and tables. The daemons fill them; the
//! page draws whatever comes.

use serde::Serialize;
use serde_json::Value;

/// What a number or text is, and so how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    /// As it is.
    Text,
    /// A number of things.
    Count,
    /// So many a second.
    Rate,
    /// A number of bytes.
    Bytes,
    /// Bytes a second.
    BytesRate,
    /// Seconds, from nanoseconds up.
    Duration,
    /// Seconds, from seconds up to years.
    Age,
    /// A share of 1.
    Percent,
    /// "ok", "warn: …" or "bad: …".
    State,
}

/// A part of the page.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// The id: used in links and for the history of the heat map.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// Single numbers.
    pub tiles: Vec<Tile>,
    /// Percentiles by stage.
    pub latency: Option<Percentiles>,
    /// The last second of the heat map.
    pub heat: Option<Heat>,
    /// The last second of each line over time.
    pub lines: Vec<Line>,
    /// Tables.
    pub tables: Vec<Table>,
}

impl Section {
    /// A section with nothing in it yet.
    #[must_use]
    pub fn new(id: &'static str, title: &'static str) -> Self {
        Self {
            id,
            title,
            tiles: Vec::new(),
            latency: None,
            heat: None,
            lines: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Adds a number, or a dash while there is none.
    #[must_use]
    pub fn tile(mut self, label: &'static str, kind: Show, value: impl Into<Option<f64>>) -> Self {
        self.tiles.push(Tile { label, value: value.into(), kind });
        self
    }
}

/// A number.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tile {
    label: &'static str,
    value: Option<f64>,
    kind: Show,
}

/// Percentiles of several stages over several windows.
#[derive(Clone, Debug, Serialize)]
pub struct Percentiles {
    /// What the windows are called.
    pub windows: [&'static str; 3],
    /// One row a stage.
    pub rows: Vec<PercentileRow>,
}

/// The percentiles of one stage.
#[derive(Clone, Debug, Serialize)]
pub struct PercentileRow {
    /// The stage.
    pub label: &'static str,
    /// One summary a window; none where nothing was measured.
    pub windows: [Option<DurationSummary>; 3],
}

/// A summary of durations, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DurationSummary {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer.
    pub p50: f64,
    /// 95 of 100 took no longer.
    pub p95: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// One second of a heat map.
#[derive(Clone, Debug, Serialize)]
pub struct Heat {
    /// What is counted.
    pub label: &'static str,
    /// The upper bounds of all buckets but the last, in seconds.
    pub bounds: &'static [f64],
    /// The counts: one more than bounds.
    pub column: Vec<u64>,
}

/// One second of something that the page draws over the last minutes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Line {
    /// What is counted.
    pub label: &'static str,
    /// What that is, in a sentence.
    pub meaning: &'static str,
    /// How many in the last second; of a level, how many there are.
    pub value: u64,
    /// How many since the start; none of a level.
    pub total: Option<u64>,
}

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    title: &'static str,
    /// The text shown when there is no row.
    empty: &'static str,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Column {
    label: &'static str,
    kind: Show,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(title: &'static str, empty: &'static str, columns: &[(&'static str, Show)]) -> Self {
        let columns = columns.iter().map(|&(label, kind)| Column { label, kind }).collect();
        Self { title, empty, columns, rows: Vec::new() }
    }

    /// Adds a row: as many cells as there are columns, `Value::Null` for none.
    pub fn row(&mut self, cells: Vec<Value>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }
}

/// Everything that the page shows at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The program's name.
    pub name: &'static str,
    /// The program's version.
    pub version: &'static str,
    /// When it was made, as a Unix time in seconds.
    pub at: u64,
    /// How long the process has run, in seconds.
    pub uptime: u64,
    /// "ready", "degraded", "not_ready" or "draining".
    pub state: &'static str,
    /// Why it is not ready, or degraded.
    pub reasons: Vec<String>,
    /// In the order in which the daemons added them.
    pub sections: Vec<Section>,
}
