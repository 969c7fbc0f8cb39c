//! What a plan consists of.

use super::constants::Constant;
use super::workload::Workload;
use serde::Serialize;

/// The kinds of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Gateway,
    Memcached,
    Issuer,
}

/// What one resource of one kind of machine has to give.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Demand {
    pub(crate) kind: Kind,
    pub(crate) resource: &'static str,
    pub(crate) unit: &'static str,
    /// Of all machines of the kind together.
    pub(crate) used: f64,
    /// What one machine has, all of it.
    pub(crate) machine: f64,
    /// The share of it that may be used.
    pub(crate) limit: f64,
    /// Machines for this resource alone.
    pub(crate) needed: f64,
    /// The rate at which the machines that are there, or are planned, have nothing of it left.
    pub(crate) runs_out_at: f64,
    /// What it follows from.
    pub(crate) from: String,
}

/// A number that is no machine's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) from: String,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machines {
    pub(crate) kind: Kind,
    pub(crate) needed: f64,
    /// Those that are there.
    pub(crate) present: Option<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) lines: Vec<Line>,
    pub(crate) demands: Vec<Demand>,
    pub(crate) machines: Vec<Machines>,
    pub(crate) warnings: Vec<String>,
    pub(crate) constants: Vec<Constant>,
}

impl Plan {
    /// What breaks first: the resource that runs out at the lowest rate.
    pub(crate) fn first(&self) -> Option<&Demand> {
        self.demands.iter().min_by(|a, b| a.runs_out_at.total_cmp(&b.runs_out_at))
    }
}
