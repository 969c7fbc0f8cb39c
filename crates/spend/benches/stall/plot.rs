//! The table as a picture: a bar from the fastest command to the slowest for each shape, on a logarithmic axis.

use crate::Row;
use std::fmt::Write;

/// The ends of the bars, in SVG units.
const LEFT: f64 = 410.0;
const RIGHT: f64 = 910.0;
const TOP: f64 = 64.0;
const STEP: f64 = 26.0;
/// The ends of the axis, as powers of ten of a microsecond.
const FROM: f64 = 0.0;
const TO: f64 = 5.0;

/// Readable on light and on dark: the text takes the reader's colour scheme.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.axis{fill:#59636e;font-size:12px}\
.grid{stroke:#8c959f;stroke-opacity:.35}.title{font-weight:600;font-size:15px}\
.slow{stroke:#cf222e;fill:#cf222e}.fast{stroke:#0969da;fill:#0969da}.floor{stroke:#6e7781;fill:#6e7781}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{fill:#9198a1}.slow{stroke:#ff7b72;fill:#ff7b72}\
.fast{stroke:#58a6ff;fill:#58a6ff}.floor{stroke:#9198a1;fill:#9198a1}}";

pub(crate) fn svg(rows: &[Row]) -> String {
    let bottom = TOP + STEP * rows.len() as f64;
    let mut out = String::new();
    let height = bottom + 44.0;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1010 {height}\" width=\"1010\" height=\"{height}\" \
         role=\"img\" aria-label=\"Latency of one memcached command by the shape of its writes\">\n\
         <style>{STYLE}</style>\n\
         <text x=\"16\" y=\"26\" class=\"title\">One command after the other on one connection to memcached</text>\n\
         <text x=\"16\" y=\"46\" class=\"axis\">dot: median; bar: fastest to 99th percentile</text>"
    );
    for power in FROM as i32..=TO as i32 {
        let x = at(10_f64.powi(power));
        let label = match power {
            0..3 => format!("{} µs", 10_u32.pow(power as u32)),
            _ => format!("{} ms", 10_u32.pow(power as u32 - 3)),
        };
        let _ = writeln!(
            out,
            "<line x1=\"{x:.0}\" y1=\"{:.0}\" x2=\"{x:.0}\" y2=\"{bottom:.0}\" class=\"grid\"/>\n\
             <text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\" class=\"axis\">{label}</text>",
            TOP - 6.0,
            bottom + 20.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(out, "{}", bar(row, TOP + STEP * (index as f64 + 0.5)));
    }
    out.push_str("</svg>\n");
    out
}

fn bar(row: &Row, y: f64) -> String {
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1_000.0;
    let median = micros(row.latencies.value_at_quantile(0.5));
    let (from, to) = (at(micros(row.latencies.min())), at(micros(row.latencies.value_at_quantile(0.99))));
    let class = match row.shape.name {
        name if name.contains("floor") => "floor",
        _ if median > 10_000.0 => "slow",
        _ => "fast",
    };
    let figure =
        if median >= 1_000.0 { format!("{:.1} ms", median / 1_000.0) } else { format!("{median:.0} µs") };
    format!(
        "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <line x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\" class=\"{class}\" stroke-width=\"4\" \
         stroke-linecap=\"round\" stroke-opacity=\".45\"/>\n\
         <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\" class=\"{class}\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" class=\"axis\">{figure}</text>",
        LEFT - 14.0,
        y + 4.5,
        row.shape.name,
        at(median),
        to.max(at(median)) + 12.0,
        y + 4.0
    )
}

/// Returns the position of a duration on the axis.
fn at(micros: f64) -> f64 {
    let power = micros.max(1e-9).log10().clamp(FROM, TO);
    LEFT + (power - FROM) / (TO - FROM) * (RIGHT - LEFT)
}
