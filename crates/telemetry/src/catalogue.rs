//! Names of metrics, labels, spans and attributes, declared once, next to the code that records them: metrics by
//! [`catalogue!`](crate::catalogue!), their labels by [`label!`](crate::label!), spans and attributes by
//! [`names!`](crate::names!). The binary joins the catalogues of what it runs, and its tests reject a name that is used twice
//! or breaks a convention.

use metrics::{Counter, Unit};

/// A metric, as described to Prometheus and in the docs.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The full name, with prefix, unit and `_total`.
    pub name: &'static str,
    /// The kind, with the buckets of a histogram.
    pub kind: Kind,
    /// A description in one sentence.
    pub help: &'static str,
    pub labels: &'static [Label],
}

impl Metric {
    /// Returns the unit that the name ends with, if it has one.
    pub fn unit(&self) -> Option<Unit> {
        let base = self.name.trim_end_matches("_total");
        match base {
            _ if base.ends_with("_seconds") => Some(Unit::Seconds),
            _ if base.ends_with("_bytes") => Some(Unit::Bytes),
            _ => None,
        }
    }

    /// Registers help and unit with the installed recorder.
    pub(crate) fn describe(&self) {
        let unit = self.unit().unwrap_or(Unit::Count);
        match self.kind {
            Kind::Counter => metrics::describe_counter!(self.name, unit, self.help),
            Kind::Gauge => metrics::describe_gauge!(self.name, unit, self.help),
            Kind::Histogram(_) => metrics::describe_histogram!(self.name, unit, self.help),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Counter,
    Gauge,
    /// Values counted in buckets, with their upper bounds in the metric's unit.
    Histogram(&'static [f64]),
}

#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    /// Every value; `None` if the values come from the configuration or the build.
    pub values: Option<&'static [&'static str]>,
}

impl Label {
    /// Declares a label whose values come from the configuration or the build, never from a request.
    pub const fn open(name: &'static str) -> Self {
        Self { name, values: None }
    }
}

pub const ADDRESS: Label = Label::open("address");

/// Exports a counter at 0 before its first increase, and returns it: a series that appears with the value 1 has no rate.
pub fn from_zero(counter: Counter) -> Counter {
    counter.increment(0);
    counter
}

/// Declares a label as an enum of every value it takes, so that no address, name or token can become a value.
///
/// ```
/// postern_telemetry::label! {
///     /// How a request ended.
///     pub Outcome = "outcome" {
///         /// It was answered.
///         Answered = "answered",
///         /// It was refused.
///         Refused = "refused",
///     }
/// }
/// assert_eq!((Outcome::LABEL, Outcome::Refused.as_str(), Outcome::ALL.len()), ("outcome", "refused", 2));
/// ```
#[macro_export]
macro_rules! label {
    ($(#[$doc:meta])* $vis:vis $name:ident = $label:literal { $($(#[$value_doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$value_doc])* $value,)+ }

        #[allow(dead_code, reason = "not every label needs all of it")]
        impl $name {
            $vis const LABEL: &'static str = $label;
            $vis const ALL: &'static [Self] = &[$(Self::$value),+];
            $vis const SPEC: $crate::catalogue::Label =
                $crate::catalogue::Label { name: $label, values: Some(&[$($text),+]) };

            /// Returns the value as written in a metric.
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

/// Declares the metrics of one crate: a constant for each name, and a list of all. The comment above a name is its help.
///
/// ```
/// use postern_telemetry::catalogue::ADDRESS;
///
/// postern_telemetry::catalogue! {
///     /// Every metric of this crate.
///     pub METRICS;
///
///     /// Requests that were answered.
///     REQUESTS: Counter = "postern_requests_total";
///
///     /// How long an answer took, by address.
///     DURATION: Histogram(&[0.001, 0.01, 0.1]) = "postern_duration_seconds" [ADDRESS];
/// }
/// assert_eq!((METRICS[0].name, METRICS[0].help), (REQUESTS, "Requests that were answered."));
/// ```
#[macro_export]
macro_rules! catalogue {
    (
        $(#[$doc:meta])* $vis:vis $list:ident;
        $($(#[doc = $help:literal])+ $name:ident: $kind:ident $(($buckets:expr))? = $text:literal $([$($label:expr),+])?;)+
    ) => {
        $($(#[doc = $help])+ $vis const $name: &str = $text;)+

        $(#[$doc])*
        $vis const $list: &[$crate::catalogue::Metric] = &[$($crate::catalogue::Metric {
            name: $name,
            kind: $crate::catalogue::Kind::$kind $(($buckets))?,
            help: concat!($($help),+).trim_ascii(),
            labels: &[$($($label),+)?],
        }),+];
    };
}

/// Declares names of spans or of their attributes: a constant for each, and a list of all.
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $vis:vis $list:ident; $($(#[$name_doc:meta])+ $name:ident = $text:literal;)+) => {
        $($(#[$name_doc])+ $vis const $name: &str = $text;)+

        $(#[$doc])*
        $vis const $list: &[&str] = &[$($name),+];
    };
}
