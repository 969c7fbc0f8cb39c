//! Which part of the configuration decides about a target, for `postern doctor`.

use super::{Decider, Decision, Policy};
use crate::config::Egress;
use crate::request::resolve::{Resolver, ResolverError};
use postern_proxy::target::{Host, Target, TargetError};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// How long resolving may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a gateway does with a target.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Whether a tunnel may be opened there, as far as the configuration decides.
    pub is_allowed: bool,
    /// One sentence for the name, and for each address.
    pub sentences: Vec<String>,
}

/// Why nothing can be said of a target.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// It is none.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Its name cannot be resolved here.
    #[error(transparent)]
    Resolver(#[from] ResolverError),
}

/// Decides about `target`, "name:port", as a gateway with this `[egress]` does on this machine, and resolves its name as it
/// would.
///
/// # Errors
/// [`ExplainError`].
pub async fn explain(egress: &Egress, target: &str) -> Result<Explanation, ExplainError> {
    let target = &Target::parse(target, None)?;
    let policy = Policy::new(egress);
    let name = match target.host() {
        Host::Address(address) => {
            let (sentence, is_allowed) = policy.sentence(target, *address);
            let when = if is_allowed { "" } else { ", before a token is spent" };
            return Ok(Explanation { is_allowed, sentences: vec![format!("{sentence}{when}.")] });
        }
        Host::Name(name) => name,
    };
    if let Some(decision) = policy.decide_name(name, target.port()).filter(|(_, decision)| decision.is_err())
    {
        let sentence =
            format!("{name} is refused by {}, before a token is spent.", policy.words(decision, true));
        return Ok(Explanation { is_allowed: false, sentences: vec![sentence] });
    }
    let resolver = Resolver::new()?;
    let Ok(addresses) = resolver.resolve(name, Instant::now() + PATIENCE).await else {
        let sentence =
            format!("{name} is not refused itself, and has no address here: its token would be spent.");
        return Ok(Explanation { is_allowed: false, sentences: vec![sentence] });
    };
    let decided: Vec<(String, bool)> =
        addresses.into_iter().map(|address| policy.sentence(target, address)).collect();
    let is_allowed = decided.iter().any(|(_, is_allowed)| *is_allowed);
    let mut sentences: Vec<String> =
        decided.into_iter().map(|(sentence, _)| format!("{sentence}.")).collect();
    if !is_allowed {
        sentences.push(
            "The token is spent by then: what a name leads to is known only after it is resolved.".into(),
        );
    }
    Ok(Explanation { is_allowed, sentences })
}

impl Policy {
    fn sentence(&self, target: &Target, address: IpAddr) -> (String, bool) {
        let decision = self.decide_address(target, address);
        let is_allowed = decision.1.is_ok();
        let verb = if is_allowed { "allowed" } else { "refused" };
        (format!("{address} is {verb} by {}", self.words(decision, false)), is_allowed)
    }

    fn words(&self, (decider, _): Decision, is_name: bool) -> String {
        let rule = |index: usize| format!("egress.rules[{index}] ({})", self.rules[index]);
        let although = |index: Option<usize>| {
            index.map_or(String::new(), |index| format!(", although {} allows the name", rule(index)))
        };
        match decider {
            Decider::Network => "egress.deny".to_owned(),
            Decider::Rule(index) => rule(index),
            Decider::Ports => "egress.ports".to_owned(),
            Decider::Private(index) => format!("egress.private = false{}", although(index)),
            Decider::Own(index) => {
                format!("egress.own = false (it is an address of this machine){}", although(index))
            }
            Decider::Nothing if is_name => "nothing".to_owned(),
            Decider::Nothing => "egress.ports, and no rule is about it".to_owned(),
        }
    }
}
