//! A plan as people read it, and as programs do.

use super::planned::{Demand, Kind, Machines, Plan};

/// A table of machines, of what they are for, of the other numbers; then what breaks first.
pub(crate) fn text(plan: &Plan) -> String {
    let w = &plan.workload;
    let mut out = format!(
        "{} requests a second in {}; {} of each record, kept {}; tunnels of {} s and {}.\nA machine has {} cores, {} and {}; {:.0} % of cores and links may be busy, and 80 % of memory full.\n\n",
        number(w.rate),
        counted(w.regions.len(), "region"),
        counted(w.replicas as usize, "copy").replace("copys", "copies"),
        span(w.lifetime),
        number(w.length),
        amount(w.bytes, "bytes"),
        number(w.cores),
        amount(w.memory, "bytes"),
        amount(w.nic, "bit/s"),
        w.busy * 100.0,
    );
    out += &format!(
        "{:<10} {:<8} {:>14} {:>10} {:>16}  {}\n",
        "machines", "for", "used", "machines", "runs out at", "follows from"
    );
    for machines in &plan.machines {
        let there = machines.present.map_or(String::new(), |present| format!(", {present} are there"));
        out += &format!("{}: {} needed{there}\n", name(machines.kind), number(machines.needed));
        for demand in plan.demands.iter().filter(|demand| demand.kind == machines.kind) {
            out += &row(demand);
        }
    }
    out += "\n";
    for line in &plan.lines {
        out += &format!("{:<38} {:>16}  {}\n", line.name, amount(line.value, line.unit), line.from);
    }
    out += "\n";
    out += &first(plan);
    for warning in &plan.warnings {
        out += &format!("warn: {warning}\n");
    }
    out
}

/// The whole plan, with every constant and its source.
pub(crate) fn json(plan: &Plan) -> String {
    // Numbers, text and lists only: nothing here cannot be written.
    serde_json::to_string_pretty(plan).unwrap_or_default()
}

fn row(demand: &Demand) -> String {
    format!(
        "{:<10} {:<8} {:>14} {:>10} {:>16}  {}\n",
        "",
        demand.resource,
        amount(demand.used, demand.unit),
        number(demand.needed.ceil()),
        format!("{}/s", number(demand.runs_out_at.floor())),
        demand.from
    )
}

fn first(plan: &Plan) -> String {
    let short: Vec<String> = plan.machines.iter().filter_map(lacking).collect();
    let mut out =
        if short.is_empty() { String::new() } else { format!("Too few machines: {}.\n", short.join("; ")) };
    if let Some(demand) = plan.first() {
        out += &format!(
            "First to break: {} of {}, at {} requests a second.\n",
            demand.resource,
            name(demand.kind),
            number(demand.runs_out_at.floor())
        );
    }
    out
}

fn lacking(machines: &Machines) -> Option<String> {
    let present = machines.present.filter(|present| f64::from(*present) < machines.needed)?;
    Some(format!("{} {} where {} are needed", present, name(machines.kind), number(machines.needed)))
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Gateway => "gateway",
        Kind::Memcached => "memcached",
        Kind::Issuer => "issuer",
    }
}

fn counted(count: usize, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}

/// A value in the unit that leaves few digits.
fn amount(value: f64, unit: &str) -> String {
    match unit.split_once(' ').map_or((unit, ""), |(unit, rest)| (unit, rest)) {
        ("bytes", _) => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]),
        ("bit/s", _) => scaled(value, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s"]),
        ("cores" | "ms", _) => {
            format!("{} {unit}", if value < 10.0 { format!("{value:.1}") } else { number(value.round()) })
        }
        ("a", rest) => format!("{}/{}", number(value.ceil()), if rest == "second" { "s" } else { rest }),
        _ => number(value.ceil()),
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!(
        "{} {}",
        if value >= 1000.0 { number(value.round()) } else { format!("{value:.digits$}") },
        units[unit]
    )
}

/// Whole, with a comma between thousands.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "never".to_owned();
    }
    if value.fract() != 0.0 && value < 1000.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Days and hours.
fn span(seconds: f64) -> String {
    let hours = seconds / 3600.0;
    if hours < 48.0 { format!("{hours:.1} h") } else { format!("{:.1} d", hours / 24.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(999.0), "999");
        assert_eq!(number(f64::INFINITY), "never");
        assert_eq!(amount(1536.0, "bytes"), "1.5 KiB");
        assert_eq!(amount(4.19e14, "bytes"), "381 TiB");
        assert_eq!(amount(2.5e9, "bit/s each way"), "2.5 Gbit/s");
        assert_eq!(amount(0.65, "cores"), "0.7 cores");
        assert_eq!(amount(12.3, "a second"), "13/s");
        assert_eq!(amount(1e21, "bytes"), "867 EiB");
        assert_eq!(span(889.0 * 3600.0), "37.0 d");
    }
}
