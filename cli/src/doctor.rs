//! `postern doctor`: what is wrong with this machine, with what runs on it, and with what its configurations need; and what a
//! gateway decides about a target.

pub(crate) mod config;
mod egress;
pub(crate) mod files;
mod findings;
mod kernel;
mod machine;
pub(crate) mod processes;
mod routers;
mod together;

use crate::args::{Doctor, Question};
use crate::failure::Failure;

/// Prints what is found; something bad, or a target that is refused, is the failure.
pub(crate) async fn run(doctor: &Doctor) -> Result<(), Failure> {
    match &doctor.question {
        Some(Question::Egress(question)) => egress::check(question).await,
        None => machine::check(doctor).await,
    }
}
