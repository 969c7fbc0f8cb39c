//! A real Prometheus and its promtool.
