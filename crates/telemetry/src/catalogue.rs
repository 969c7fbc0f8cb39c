//! Names, declared once, beside the code that records them: metrics by [`catalogue!`](crate::catalogue!), their labels by
//! [`label!`](crate::label!), spans and attributes by [`names!`](crate::names!). The binary joins the catalogues of what it
//! runs, and its tests find a name that is used twice or follows no convention.

use metrics::{Counter, Unit};

/// One metric, as it is described to Prometheus and in the docs.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The whole name: prefix, unit and `_total` included.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// One sentence for people.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [Label],
}

impl Metric {
    /// The unit that its name ends with, if it has one.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        let base = self.name.trim_end_matches("_total");
        match base {
            _ if base.ends_with("_seconds") => Some(Unit::Seconds),
            _ if base.ends_with("_bytes") => Some(Unit::Bytes),
            _ => None,
        }
    }

    /// Registers help and unit with the recorder that is installed.
    pub(crate) fn describe(&self) {
        let unit = self.unit().unwrap_or(Unit::Count);
        match self.kind {
            Kind::Counter => metrics::describe_counter!(self.name, unit, self.help),
            Kind::Gauge => metrics::describe_gauge!(self.name, unit, self.help),
            Kind::Histogram(_) => metrics::describe_histogram!(self.name, unit, self.help),
        }
    }
}

/// The kinds of metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values in buckets; these are their upper bounds, in the metric's unit.
    Histogram(&'static [f64]),
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Every value it takes; `None` where they come from the configuration or the build.
    pub values: Option<&'static [&'static str]>,
}

impl Label {
    /// A label whose values come from the configuration or the build. Never from a request.
    #[must_use]
    pub const fn open(name: &'static str) -> Self {
        Self { name, values: None }
    }
}

/// An address of the configuration.
pub const ADDRESS: Label = Label::open("address");

/// Has a counter exported before it has counted anything, so that its first increase is seen as one: a series that
/// appears with the value 1 has no rate.
pub fn from_zero(counter: Counter) -> Counter {
    counter.increment(0);
    counter
}

/// A label and every value it takes, as an enum: no address, name or token can become a value.
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
            /// The label's name.
            $vis const LABEL: &'static str = $label;
            /// Every value.
            $vis const ALL: &'static [Self] = &[$(Self::$value),+];
            /// The label as metrics declare it.
            $vis const SPEC: $crate::catalogue::Label =
                $crate::catalogue::Label { name: $label, values: Some(&[$($text),+]) };

            /// The value as it stands in a metric.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

/// The metrics of one crate: a constant for each name, and a list of all. What is written above a name is its help.
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

/// Names of spans or of their attributes: a constant for each, and a list of all.
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $vis:vis $list:ident; $($(#[$name_doc:meta])+ $name:ident = $text:literal;)+) => {
        $($(#[$name_doc])+ $vis const $name: &str = $text;)+

        $(#[$doc])*
        $vis const $list: &[&str] = &[$($name),+];
    };
}
