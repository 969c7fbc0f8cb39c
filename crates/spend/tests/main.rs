//! The stores from outside. One binary, since linking is the slowest part of a test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod cancel;
mod conformance;
mod counting;
mod crash;
mod damage;
mod endpoints;
mod epochs;
mod exchange_log;
mod hostile;
mod hostile_marks;
mod losses;
mod marks;
mod model;
mod moved;
mod one_send;
mod overlap;
mod power_loss;
mod recovery;
mod replicas;
mod shared_conformance;
mod shared_outage;
mod shared_rules;
mod support;
