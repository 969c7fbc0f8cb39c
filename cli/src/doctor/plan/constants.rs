//! What the model is made of: numbers that were measured, each with where it was measured. docs/operate/capacity.md quotes them
//! all, and tests/capacity.rs holds that it does and that the reports have the rows named here.

use serde::Serialize;

/// Where a number comes from.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Source {
    /// The report, from the root of the repository.
    pub(crate) file: &'static str,
    /// A piece of it that has the number, word for word.
    pub(crate) says: &'static str,
}

/// One number.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Constant {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) source: Source,
}

/// `loadtest/run constants`, on two virtual processors that did other work, too: a store's commands, as on a machine
/// that does not go to sleep between them.
const REPORT: &str = "loadtest/results/2026-11-21-constants.md";

const fn measured(name: &'static str, value: f64, unit: &'static str, says: &'static str) -> Constant {
    Constant { name, value, unit, source: Source { file: REPORT, says } }
}

/// The same on a machine that did nothing else, as of commit 0d3bf1b.
const QUIET: &str = "loadtest/results/2026-11-21-constants-quiet.md";

const fn stated(
    name: &'static str,
    value: f64,
    unit: &'static str,
    file: &'static str,
    says: &'static str,
) -> Constant {
    Constant { name, value, unit, source: Source { file, says } }
}

/// All of them. A copy with other values is another machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    /// What memcached's process grows by, hash table included.
    pub(crate) record: Constant,
    pub(crate) store_get: Constant,
    pub(crate) store_add: Constant,
    pub(crate) router_check: Constant,
    pub(crate) check_sent: Constant,
    pub(crate) check_received: Constant,
    pub(crate) watch_gets: Constant,
    pub(crate) watch_sent: Constant,
    pub(crate) watch_received: Constant,
    pub(crate) tunnel_cpu: Constant,
    pub(crate) gibibyte_cpu: Constant,
    pub(crate) tunnel_memory: Constant,
    pub(crate) socket_memory: Constant,
    pub(crate) tunnel_descriptors: Constant,
    pub(crate) token_cpu: Constant,
    pub(crate) ports: Constant,
    pub(crate) time_wait: Constant,
}

const DOCUMENT: &str = "docs/operate/capacity.md";

/// The constants of this version.
pub(crate) const MEASURED: Constants = Constants {
    record: measured("record", 131.1, "bytes", "| 4,000,000 | 120 | 120.1 | 131.1 |"),
    store_get: measured("memcached get", 4.79, "us", "| 1 | 5.89 | 4.79 |"),
    store_add: measured("memcached add", 5.89, "us", "| 1 | 5.89 |"),
    router_check: measured("router check", 9.9, "us", "| through twemproxy | 64 | 128.1 | 9.0 | 9.9 |"),
    check_sent: measured("check sent", 297.0, "bytes", "| 1 | 1.00 | 1.00 | 2.27 | 2.14 | 146 | 18 | 297 |"),
    check_received: measured("check received", 159.0, "bytes", "| 146 | 18 | 297 | 159 |"),
    watch_gets: measured("watch gets", 135.0, "per second", "| 135.0 | 0.00 |"),
    watch_sent: measured("watch sent", 7157.0, "bytes per second", "| 135.0 | 0.00 | 7157 |"),
    watch_received: measured("watch received", 11747.0, "bytes per second", "| 7157 | 11747 |"),
    tunnel_cpu: stated("tunnel cpu", 146.8, "us", QUIET, "| directly | 64 | 146.8 |"),
    gibibyte_cpu: stated("gibibyte cpu", 1.153, "s", QUIET, "| 3 | 1.153 |"),
    tunnel_memory: stated("tunnel memory", 1792.0, "bytes", QUIET, "| 5,000 | 1792 |"),
    socket_memory: stated("socket memory", 3712.0, "bytes", QUIET, "together 3712"),
    tunnel_descriptors: stated("tunnel descriptors", 2.0, "descriptors", QUIET, "| 5,000 | 1792 | 2.00 |"),
    token_cpu: stated("token cpu", 516.0, "us", QUIET, "| 49,000 | 516 |"),
    ports: stated(
        "ports",
        28232.0,
        "ports",
        DOCUMENT,
        "`net.ipv4.ip_local_port_range` is 32768 to 60999: 28232 ports",
    ),
    time_wait: stated("time wait", 60.0, "s", DOCUMENT, "`TIME_WAIT` lasts 60 s"),
};

impl Constants {
    /// In the order of the table in the document.
    pub(crate) fn all(&self) -> [Constant; 17] {
        [
            self.record,
            self.store_get,
            self.store_add,
            self.router_check,
            self.check_sent,
            self.check_received,
            self.watch_gets,
            self.watch_sent,
            self.watch_received,
            self.tunnel_cpu,
            self.gibibyte_cpu,
            self.tunnel_memory,
            self.socket_memory,
            self.tunnel_descriptors,
            self.token_cpu,
            self.ports,
            self.time_wait,
        ]
    }
}
