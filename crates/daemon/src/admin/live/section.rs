//! The data of the live page: sections of tiles, percentiles, heat maps, lines over time and tables. The daemons fill them, and
//! the page draws them.

use serde::Serialize;
use serde_json::Value;

/// The kind of a value, which determines its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    Text,
    Count,
    Rate,
    Bytes,
    BytesRate,
    /// Seconds, shown from nanoseconds up.
    Duration,
    /// Seconds, shown in seconds to days.
    Age,
    /// A fraction of 1.
    Percent,
    /// A text that begins with "ok", "warn: …" or "bad: …".
    State,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Id, used in links and for the history of the heat map and lines.
    pub id: &'static str,
    pub title: &'static str,
    pub tiles: Vec<Tile>,
    pub latency: Option<Percentiles>,
    pub heat: Option<Heat>,
    pub lines: Vec<Line>,
    pub tables: Vec<Table>,
}

impl Section {
    pub fn new(id: &'static str, title: &'static str) -> Self {
        Self { id, title, ..Self::default() }
    }

    /// Adds a number; `None` is shown as a dash.
    #[must_use]
    pub fn tile(mut self, label: &'static str, kind: Show, value: impl Into<Option<f64>>) -> Self {
        self.tiles.push(Tile { label, value: value.into(), kind });
        self
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tile {
    label: &'static str,
    value: Option<f64>,
    kind: Show,
}

/// Percentiles of several stages over several windows.
#[derive(Clone, Debug, Serialize)]
pub struct Percentiles {
    pub windows: [&'static str; 3],
    pub rows: Vec<PercentileRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PercentileRow {
    pub label: &'static str,
    /// One summary per window; `None` without measurements.
    pub windows: [Option<DurationSummary>; 3],
}

/// Summary of durations, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DurationSummary {
    pub count: u64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Heat {
    pub label: &'static str,
    /// Upper bounds of all buckets but the last, in seconds.
    pub bounds: &'static [f64],
    /// Counts, one more than `bounds`.
    pub column: Vec<u64>,
}

/// One second of a value that the page draws over the last minutes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Line {
    pub label: &'static str,
    /// Explanation in a sentence.
    pub meaning: &'static str,
    /// Number in the last second; for a level, the present number.
    pub value: u64,
    /// Number since the start; `None` for a level.
    pub total: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Table {
    title: &'static str,
    /// Text that is shown if there are no rows.
    empty: &'static str,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Column {
    label: &'static str,
    kind: Show,
}

impl Table {
    pub fn new(title: &'static str, empty: &'static str, columns: &[(&'static str, Show)]) -> Self {
        let columns = columns.iter().map(|&(label, kind)| Column { label, kind }).collect();
        Self { title, empty, columns, rows: Vec::new() }
    }

    /// Adds a row with one cell per column; `Value::Null` is an empty cell.
    pub fn row(&mut self, cells: Vec<Value>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }
}
