//! Resources of the process, read from Linux' `/proc` on each scrape. These metrics are absent on other systems.

use metrics::{Unit, describe_gauge, gauge};
use std::fs;
use std::sync::LazyLock;

const CPU: &str = "process_cpu_seconds_total";
const OPEN_FDS: &str = "process_open_fds";
const MAX_FDS: &str = "process_max_fds";
const VIRTUAL: &str = "process_virtual_memory_bytes";
const VIRTUAL_MAX: &str = "process_virtual_memory_max_bytes";
const RESIDENT: &str = "process_resident_memory_bytes";
const START: &str = "process_start_time_seconds";
const THREADS: &str = "process_threads";

/// The names that Prometheus' client libraries use.
pub const PROCESS: &[&str] = &[CPU, OPEN_FDS, MAX_FDS, VIRTUAL, VIRTUAL_MAX, RESIDENT, START, THREADS];

/// Ticks per second in `/proc`, `USER_HZ`: 100 on every architecture that Rust's standard library supports.
const TICKS_PER_SECOND: u64 = 100;

/// Boot time of the machine, in seconds since 1970.
static BOOT: LazyLock<Option<u64>> = LazyLock::new(|| boot_time(&fs::read_to_string("/proc/stat").ok()?));

pub(super) fn describe() {
    for (name, unit, text) in [
        (OPEN_FDS, Unit::Count, "Number of open file descriptors."),
        (MAX_FDS, Unit::Count, "Maximum number of open file descriptors."),
        (VIRTUAL, Unit::Bytes, "Virtual memory size in bytes."),
        (VIRTUAL_MAX, Unit::Bytes, "Maximum amount of virtual memory available in bytes."),
        (RESIDENT, Unit::Bytes, "Resident memory size in bytes."),
        (START, Unit::Seconds, "Start time of the process since unix epoch in seconds."),
        (THREADS, Unit::Count, "Number of OS threads in the process."),
    ] {
        describe_gauge!(name, unit, text);
    }
}

/// Sets the gauges. A gauge whose read fails keeps its value: reading takes a file descriptor, and without a free one the gauges
/// of descriptors must still show why. Returns the counter of CPU time as text, empty if its read fails: the recorder's counters
/// are whole numbers, and whole seconds give a spiky rate.
pub(super) fn record() -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let set = |name: &'static str, value: Option<u64>| {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, which is 8 PiB")]
        value.into_iter().for_each(|value| gauge!(name).set(value as f64));
    };
    let times = times(&read("stat"));
    if let Some(times) = &times {
        set(START, BOOT.map(|boot| boot + times.start / TICKS_PER_SECOND));
    }
    let status = read("status");
    set(VIRTUAL, field(&status, "VmSize:").map(|kib| kib << 10));
    set(RESIDENT, field(&status, "VmRSS:").map(|kib| kib << 10));
    set(THREADS, field(&status, "Threads:"));
    let limits = read("limits");
    set(MAX_FDS, limit(&limits, "Max open files"));
    set(VIRTUAL_MAX, limit(&limits, "Max address space"));
    set(OPEN_FDS, open_fds());
    times.map_or_else(String::new, |times| cpu(times.cpu))
}

fn cpu(ticks: u64) -> String {
    let (seconds, rest) = (ticks / TICKS_PER_SECOND, ticks % TICKS_PER_SECOND);
    format!(
        "# HELP {CPU} Total user and system CPU time spent in seconds.\n# TYPE {CPU} counter\n{CPU} {seconds}.{rest:02}\n\n"
    )
}

/// CPU time of the process, and its start after boot, in ticks.
#[derive(Debug, PartialEq)]
struct Times {
    cpu: u64,
    start: u64,
}

/// Parses `/proc/self/stat`. Fields are numbered from the state, which follows the name, since the name may contain anything.
fn times(stat: &str) -> Option<Times> {
    let (_, numbered) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = numbered.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Times { cpu: number(11)? + number(12)?, start: number(19)? })
}

/// Parses the line `btime` of `/proc/stat`.
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// Parses a number of `/proc/self/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

/// Parses a soft limit of `/proc/self/limits`; 0 means unlimited.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(0) } else { soft.parse().ok() }
}

/// Returns the number of open file descriptors. Linux 6.2 and later report it as the directory's size; on older ones the
/// entries are counted, except that of the directory being read.
fn open_fds() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_stat_may_hold_anything() {
        let stat =
            "7 (a) b 1 2) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1234 8192 2 18446744073709551615";
        assert_eq!(times(stat), Some(Times { cpu: 300, start: 1234 }));
        for broken in ["", "7 (a", "7 (a) S 1 7", "7 (a) S 1 7 7 0 -1 4194560 1 0 0 0 x 50 0 0 20 0 9 0 1234"]
        {
            assert_eq!(times(broken), None, "{broken}");
        }
    }

    #[test]
    fn fields_and_limits_are_read_by_their_names() {
        let status = "Name:\tpostern\nVmSize:\t  20480 kB\nVmRSS:\t    1024 kB\nThreads:\t9\n";
        assert_eq!(field(status, "VmRSS:"), Some(1024));
        assert_eq!(field(status, "Threads:"), Some(9));
        assert_eq!(field(status, "VmSwap:"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            1024                 524288               files     \n\
                      Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max address space"), Some(0));
        assert_eq!(limit(limits, "Max processes"), None);
        assert_eq!(boot_time("cpu  1 2 3\nbtime 1763700000\nprocesses 5\n"), Some(1_763_700_000));
    }

    #[test]
    fn cpu_time_is_finer_than_a_second() {
        assert!(cpu(1234).ends_with("\nprocess_cpu_seconds_total 12.34\n\n"));
        assert!(cpu(5).ends_with(" 0.05\n\n") && cpu(300).ends_with(" 3.00\n\n"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_every_metric() {
        let exporter = crate::metrics::install(&[]).unwrap();
        let text = exporter.render();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse::<f64>().unwrap()
        };
        for name in PROCESS {
            assert!(value(name) >= 0.0, "{name}");
        }
        for name in [OPEN_FDS, VIRTUAL, RESIDENT, THREADS] {
            assert!(value(name) >= 1.0, "{name}");
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - value(START)).abs() < 3600.0, "started at {} while it is {now}", value(START));
    }
}
