//! Common parts of several daemons' sections: the stages of their work, its outcomes, and rates.

use super::latency::{Latency, WINDOWS, Windows};
use super::section::{PercentileRow, Percentiles, Show, Table};
use serde_json::json;
use std::collections::VecDeque;
use std::time::Instant;

/// Windows over the stages of some work, with their names.
pub struct Stages(Vec<(&'static str, Windows)>);

impl Stages {
    pub fn over<'a>(stages: impl Iterator<Item = (&'static str, &'a Latency)>) -> Self {
        Self(stages.map(|(name, latency)| (name, Windows::over(latency))).collect())
    }

    /// Takes the counts of the last second and returns the percentiles of all windows. Must be called once a second.
    pub fn tick(&mut self) -> Percentiles {
        self.0.iter_mut().for_each(|(_, windows)| windows.tick());
        let row = |(label, windows): &(&'static str, Windows)| PercentileRow {
            label,
            windows: windows.summaries(),
        };
        Percentiles { windows: WINDOWS, rows: self.0.iter().map(row).collect() }
    }

    /// Returns the p99 of one stage over the middle window, in seconds; `None` without measurements.
    pub fn p99(&self, name: &str) -> Option<f64> {
        let stage = self.0.iter().find(|(stage, _)| *stage == name);
        stage.and_then(|(_, windows)| windows.summaries()[1]).map(|summary| summary.p99)
    }

    /// Returns the last second of one stage, as `Windows::column` does.
    pub fn column(&self, name: &str, bounds: &[f64]) -> Vec<u64> {
        let stage = self.0.iter().find(|(stage, _)| *stage == name);
        stage.map_or_else(Vec::new, |(_, windows)| windows.column(bounds))
    }
}

/// Number of samples over which a rate is calculated: enough to be readable, few enough to be current.
const SPAN: usize = 10;

/// The rate of a counter that is sampled once a second.
#[derive(Clone, Debug, Default)]
pub struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// Samples the counter. Returns its rate per second since the tenth sample before; 0 at the first.
    pub fn tick(&mut self, total: u64) -> f64 {
        self.tick_at(Instant::now(), total)
    }

    /// Uses the clock and not the number of samples, which come late on a busy machine.
    fn tick_at(&mut self, now: Instant, total: u64) -> f64 {
        self.0.push_back((now, total));
        if self.0.len() > SPAN + 1 {
            self.0.pop_front();
        }
        let (began, before) = self.0.front().copied().unwrap_or((now, total));
        let seconds = now.saturating_duration_since(began).as_secs_f64();
        if seconds > 0.0 { total.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

/// Rates of the ways in which work can end.
#[derive(Default)]
pub struct Endings(Vec<Rate>);

impl Endings {
    /// Samples the counters, which must always be the same in the same order. Returns a table of those that have counted
    /// anything, and the rate of all together. Must be called once a second.
    pub fn tick(
        &mut self,
        title: &'static str,
        empty: &'static str,
        counters: impl Iterator<Item = (&'static str, u64)>,
    ) -> (Table, f64) {
        let columns = [("outcome", Show::Text), ("now", Show::Rate), ("total", Show::Count)];
        let (mut table, mut all) = (Table::new(title, empty, &columns), 0.0);
        for (index, (name, total)) in counters.enumerate() {
            if index == self.0.len() {
                self.0.push(Rate::default());
            }
            let rate = self.0[index].tick(total);
            all += rate;
            if total > 0 {
                table.row(vec![json!(words(name)), json!(rate), json!(total)]);
            }
        }
        (table, all)
    }
}

/// Returns the value of a metric's label in words.
pub fn words(label: &str) -> String {
    label.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_has_happened_is_in_the_table() {
        let mut endings = Endings::default();
        let mut look = |good, bad| {
            let counters = [("good", good), ("too_bad", bad)].into_iter();
            let (table, _) = endings.tick("Endings", "None.", counters);
            serde_json::to_value(table).unwrap()["rows"].as_array().unwrap().clone()
        };
        assert_eq!(look(0, 0).len(), 0);
        let rows = look(0, 7);
        assert_eq!((rows.len(), &rows[0][0], &rows[0][2]), (1, &json!("too bad"), &json!(7)));
    }

    #[test]
    fn stages_keep_their_names_and_order() {
        let (first, second) = (Latency::default(), Latency::default());
        let mut stages = Stages::over([("first", &first), ("second", &second)].into_iter());
        second.record(Duration::from_millis(40));
        let rows = stages.tick().rows;
        assert_eq!((rows[0].label, rows[1].label), ("first", "second"));
        assert!(rows[0].windows[0].is_none() && rows[1].windows[0].is_some_and(|summary| summary.count == 1));
        assert_eq!(stages.column("second", &[0.038, 0.042]), [0, 1, 0]);
        let p99 = stages.p99("second").unwrap();
        assert!((0.04..0.043).contains(&p99) && stages.p99("first").is_none(), "{p99}");
    }

    #[test]
    fn a_rate_is_taken_over_what_is_known_and_ten_seconds_at_most() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        let mut tick = |seconds: u64, total: u64| {
            now += Duration::from_secs(seconds);
            rate.tick_at(now, total)
        };
        assert_eq!(tick(0, 100), 0.0);
        assert_eq!(tick(1, 130), 30.0);
        assert_eq!(tick(4, 200), 20.0, "a look that came late");
        for _ in 0..10 {
            tick(1, 200);
        }
        assert_eq!(tick(1, 200), 0.0);
        assert_eq!(tick(1, 5), 0.0, "a counter that began again has no rate");
    }
}
