//! `postern doctor egress NAME:PORT --config FILE`: what a gateway's `[egress]` decides about one target, and why.

use super::config;
use crate::args::EgressQuestion;
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_gateway::{End, explain};

/// Prints a sentence for the target and one for each of its addresses; a refusal is the failure.
pub(super) async fn check(question: &EgressQuestion) -> Result<(), Failure> {
    let gateway = config::gateway(&question.config)?;
    let limit = gateway.limits.dial_timeout.get();
    let explanation = explain(&gateway.egress, &question.target, limit).await?;
    for remark in gateway.egress.remarks() {
        print_line(format_args!("warning: {remark}"))?;
    }
    for sentence in explanation.sentences {
        print_line(sentence)?;
    }
    let target = question.target.authority();
    match explanation.end {
        End::Allowed => {
            print_line(format_args!("{target}: tunnels may go there. Whether it answers was not tried."))?;
            Ok(())
        }
        End::RefusedUnspent => Err(Failure::runtime(format_args!(
            "{target}: tunnels may not go there; a refusal costs no token"
        ))),
        End::RefusedSpent => Err(Failure::runtime(format_args!(
            "{target}: tunnels do not get there; each attempt costs its token, which is spent before this is found out"
        ))),
    }
}
