//! `postern doctor --plan`: how many machines a fleet needs for a rate, and what breaks first.

mod constants;
mod model;
mod planned;
mod render;
#[cfg(test)]
mod tests;
mod workload;

use crate::args::Plan;
use crate::failure::Failure;
use crate::stdio;
use constants::MEASURED;
use workload::Workload;

/// Prints the plan.
pub(super) fn print(given: &Plan, as_json: bool) -> Result<(), Failure> {
    let plan = model::plan(&Workload::new(given)?, &MEASURED);
    if as_json {
        stdio::print_line(render::json(&plan))?;
    } else {
        stdio::print(render::text(&plan))?;
    }
    Ok(())
}
