//! What every Postern daemon needs and none of them owns: configuration, metric names, metrics, traces, logs, the admin
//! listener and its live page, drain, TLS from files, private files. It knows nothing about tokens, tunnels or keys.
//!
//! A daemon's `main` reads in this order: [`config::load`], [`log::init`], [`metrics::install`],
//! [`files::DataDir::open`], [`host::Host`], [`drain::Shutdown::on_signals`], [`admin::Admin::bind`], then its own work, then
//! [`drain::Shutdown::wait`] and one of the codes of [`exit`].

pub mod admin;
pub mod config;
pub mod drain;
pub mod exit;
pub mod files;
pub mod host;
pub mod http;
pub mod listen;
pub mod live;
pub mod log;
pub mod metrics;
pub mod names;
pub mod relay;
pub mod reset;
pub mod tls;
pub mod traces;
pub mod utc;
