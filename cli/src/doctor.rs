//! `postern doctor`: what is wrong with this machine, with what runs on it, and with what its configurations need; with a
//! configuration before it is used; with the links of a running process; how many machines a fleet needs.

pub(crate) mod admin;
pub(crate) mod config;
mod egress;
pub(crate) mod files;
mod findings;
mod kernel;
pub(crate) mod links;
mod machine;
mod plan;
pub(crate) mod processes;
mod ready;
mod together;

use crate::args::{Doctor, Question};
use crate::failure::Failure;
use crate::stdio::print_line;
pub(crate) use kernel::Link;
use postern_spend::routes::{Finding, Severity, judge_mcrouter, judge_twemproxy};
use std::path::Path;
use std::time::Duration;

/// Checks everything that is named; the findings go to standard output, what was refused is the failure.
pub(crate) async fn run(doctor: &Doctor) -> Result<(), Failure> {
    if let Some(Question::Egress(question)) = &doctor.question {
        return egress::check(question).await;
    }
    if doctor.names_nothing() {
        return machine::check(doctor).await;
    }
    let config = doctor.config.as_deref().map_or(Ok(()), config::check);
    let gateway =
        doctor.config.as_deref().and_then(config::gateway_of_a_fleet).map(|gateway| gateway.timeout);
    let mcrouter = doctor.mcrouter_config.as_deref();
    let mcrouter = mcrouter.map_or(Ok(()), |path| router_config(path, "mcrouter", gateway, judge_mcrouter));
    let twemproxy = doctor.twemproxy_config.as_deref();
    let twemproxy =
        twemproxy.map_or(Ok(()), |path| router_config(path, "twemproxy", gateway, judge_twemproxy));
    let links = match &doctor.links {
        Some(admin) => links::check(admin).await,
        None => Ok(()),
    };
    let ready = match &doctor.ready {
        Some(admin) => ready::check(admin).await,
        None => Ok(()),
    };
    let plan = if doctor.plan { plan::print(&doctor.planned, doctor.json) } else { Ok(()) };
    let failures: Vec<Failure> =
        [config, mcrouter, twemproxy, links, ready, plan].into_iter().filter_map(Result::err).collect();
    let Some(code) = failures.first().map(|failure| failure.code) else { return Ok(()) };
    let sentences: Vec<String> = failures.into_iter().map(|failure| failure.sentence).collect();
    Err(Failure::new(code, sentences.join("\npostern: ")))
}

/// `gateway` is how long the one waits whose configuration is named beside, if its store is shared.
fn router_config(
    path: &Path,
    router: &str,
    gateway: Option<Duration>,
    judge: fn(&str, Option<Duration>) -> Vec<Finding>,
) -> Result<(), Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::configuration(format_args!("{name}: cannot read the {router} configuration: {error}"))
    })?;
    let findings = judge(&text, gateway);
    for finding in &findings {
        print_line(finding)?;
    }
    let refused = findings.iter().filter(|finding| finding.severity == Severity::Refuse).count();
    match refused {
        0 => {
            print_line(format_args!("{name}: fit to remember spent tokens, as far as the file shows."))?;
            Ok(())
        }
        1 => Err(Failure::configuration(format_args!(
            "{name}: not fit to remember spent tokens: see the refusal above"
        ))),
        _ => Err(Failure::configuration(format_args!(
            "{name}: not fit to remember spent tokens: see the {refused} refusals above"
        ))),
    }
}
