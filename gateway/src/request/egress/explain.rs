//! Explanation of the policy's decision about one target, for the operator: `postern doctor egress`.

use super::{By, NoSource, OfName, Policy, Via};
use crate::config::{Action, Balance, Egress, NextHop};
use crate::error::StartError;
use crate::request::deny::Refusal;
use crate::request::resolve::Resolver;
use postern_daemon::BoxFuture;
use postern_proxy::address::forms;
use postern_proxy::target::{Host, Target};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The policy's decision about one target. It contains the target, so it is only for the operator who requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// A sentence for the target as written, and one for each address to which it resolves.
    pub sentences: Vec<String>,
    /// Result for a client.
    pub end: End,
}

/// Result of a client's request for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The gateway connects to the target.
    Allowed,
    /// The gateway refuses before the token is spent.
    RefusedUnspent,
    /// The gateway refuses after the token is spent: the target had to be resolved.
    RefusedSpent,
}

/// Judges `target` as a gateway with this `[egress]` does, and resolves it if the gateway would, within `limit`.
///
/// # Errors
/// [`StartError`] if the gateway could not start.
pub fn explain<'a>(
    egress: &'a Egress,
    target: &'a Target,
    limit: Duration,
) -> BoxFuture<'a, Result<Explanation, StartError>> {
    Box::pin(async move {
        let policy = Policy::new(egress)?;
        let name = match target.host() {
            Host::Address(address) => return Ok(policy.explain_address(target, *address)),
            Host::Name(name) => name,
        };
        if let Some(via) = policy.via_of_name(name, target) {
            return Ok(policy.explain_via(name, target, via));
        }
        let (before, is_refused) = policy.explain_name(name, target);
        if is_refused {
            return Ok(Explanation { sentences: vec![before], end: End::RefusedUnspent });
        }
        let resolver = Resolver::new(&egress.resolver)?;
        let deadline = Instant::now() + limit;
        let found = async {
            let (_, mut families) = resolver.resolve(name, deadline, |_| Ok(())).await?;
            let _ = timeout_at(deadline, families.rest()).await; // a family without an answer has no addresses
            Ok::<_, Refusal>(families.found())
        };
        let found = found.await;
        Ok(policy.explain_resolved(target, before, found.map_err(|refusal| refusal.to_string())))
    })
}

impl Policy {
    fn explain_address(&self, target: &Target, address: IpAddr) -> Explanation {
        let (sentence, is_allowed) = self.of_forms(target, address);
        let end = match self.check_target(target) {
            Err(_) => End::RefusedUnspent,
            Ok(()) if is_allowed => End::Allowed,
            Ok(()) => End::RefusedSpent,
        };
        Explanation { sentences: vec![sentence], end }
    }

    fn explain_via(&self, name: &str, target: &Target, via: Via<'_>) -> Explanation {
        let why = match self.of_name(name, target) {
            OfName::Allowed(by) | OfName::Refused(by) | OfName::Open(by) => why(by),
        };
        let sentence =
            format!("{name}: allowed through {}, which resolves it: {why}", written(&via.hop.config));
        Explanation { sentences: vec![sentence], end: End::Allowed }
    }

    /// Returns the sentence, and `true` if the name is refused without resolution.
    fn explain_name(&self, name: &str, target: &Target) -> (String, bool) {
        match self.of_name(name, target) {
            OfName::Refused(by) => (format!("{name}: refused: {}", why(by)), true),
            OfName::Allowed(by) => {
                let is_final =
                    matches!(by, By::Rule(_, rule, _) if rule.action == Action::Allow { private: true });
                let which = match is_final {
                    true => ", whatever its addresses are, except by egress.deny",
                    false => " if its addresses are",
                };
                (format!("{name}: allowed{which}: {}", why(by)), false)
            }
            OfName::Open(by) => {
                (format!("{name}: refused but for addresses that an earlier rule allows: {}", why(by)), false)
            }
        }
    }

    /// Explains a name with the addresses to which it resolved, or with the reason of the failure.
    fn explain_resolved(
        &self,
        target: &Target,
        before: String,
        found: Result<Vec<IpAddr>, String>,
    ) -> Explanation {
        let (mut sentences, mut end) = (vec![before], End::RefusedSpent);
        match found {
            Err(reason) => sentences.push(format!("not resolved: {reason}")),
            Ok(addresses) => {
                for address in addresses {
                    let (sentence, is_allowed) = self.of_forms(target, address);
                    sentences.push(sentence);
                    if is_allowed {
                        end = End::Allowed;
                    }
                }
            }
        }
        Explanation { sentences, end }
    }

    /// Returns the sentence about an address, and `true` if it is allowed in all of its forms.
    fn of_forms(&self, target: &Target, address: IpAddr) -> (String, bool) {
        let mut sentence = String::new();
        for form in forms(address) {
            let carried =
                if form == address { String::new() } else { format!(", which is or carries {form}") };
            match self.of_address(target, form) {
                Err(by) => return (format!("{address}{carried}: refused: {}", why(by)), false),
                Ok(by) if sentence.is_empty() => {
                    sentence = format!("{address}: allowed: {}", why(by));
                }
                Ok(_) => {}
            }
        }
        if let Some(via) = self.via(target, address) {
            return (format!("{sentence}; through {}", written(&via.hop.config)), true);
        }
        match self.source(target, address, 0) {
            Ok(None) => (sentence, true),
            Ok(Some(_)) => {
                let is_v4 = address.to_canonical().is_ipv4();
                let fitting = self.sources(target, address).iter().filter(|own| own.is_ipv4() == is_v4);
                let fitting: Vec<String> = fitting.map(ToString::to_string).collect();
                (format!("{sentence}; from {} in turn", fitting.join(", ")), true)
            }
            Err(NoSource) => (
                format!("{address}: not reached: source has no address of its family, so it is not dialled"),
                false,
            ),
        }
    }
}

fn why(by: By<'_>) -> String {
    let reason = match by {
        By::Deny(network) => return format!("egress.deny has {network}"),
        By::Rule(number, rule, pattern) => {
            let (verb, end) = match rule.action {
                Action::Deny => ("denies", ""),
                Action::Allow { private: true } => ("allows", " with private = true"),
                Action::Allow { private: false } => ("allows", ""),
            };
            return format!("rule {number} {verb} \"{pattern}\"{end}");
        }
        By::Ports => "egress.ports does not have the port, and no rule allows it",
        By::Private => {
            "it is a private, local or otherwise special address; egress.private or a rule that allows its network would allow it"
        }
        By::Own => {
            "it is an address of this machine itself; egress.own or a rule that allows its network would allow it"
        }
        By::Multicast => "it is a multicast address, which nothing allows",
        By::Nowhere => "names below \"invalid\" have no address; agents ask for the challenge with one",
        By::Nothing => "no rule matches, and no key of egress refuses it",
    };
    reason.to_owned()
}

fn written(hop: &NextHop) -> String {
    let urls: Vec<String> = hop.urls.iter().map(ToString::to_string).collect();
    let choice = match (&urls[..], hop.balance) {
        ([_], _) => "",
        (_, Balance::Load) => ", the less loaded of two",
        (_, Balance::Target) => ", always the same for a host",
    };
    format!("the next hop \"{}\" ({}{choice})", hop.name, urls.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::new(&postern_config::parse("egress.toml", text, []).unwrap()).unwrap()
    }

    const RULES: &str = "deny = [\"10.9.0.0/16\"]\n\
        [[rules]]\nallow = [\"10.0.0.0/8:443\"]\n\
        [[rules]]\nallow = [\"db.example:443\"]\nprivate = true\n\
        [[rules]]\nallow = [\"*.example:443\"]\n\
        [[rules]]\ndeny = [\"*:443\"]\n";

    #[test]
    fn a_name_and_its_addresses_are_explained_by_rule_and_key() {
        let policy = policy(RULES);
        let name = |name: &str, port: u16| {
            let target = Target::parse(&format!("{name}:{port}"), None).unwrap();
            policy.explain_name(name, &target)
        };
        assert_eq!(
            name("db.example", 443),
            (
                "db.example: allowed, whatever its addresses are, except by egress.deny: rule 2 allows \"db.example:443\" \
                 with private = true"
                    .into(),
                false
            )
        );
        assert_eq!(
            name("a.example", 443),
            ("a.example: allowed if its addresses are: rule 3 allows \"*.example:443\"".into(), false)
        );
        assert_eq!(
            name("a.test", 443),
            (
                "a.test: refused but for addresses that an earlier rule allows: rule 4 denies \"*:443\""
                    .into(),
                false
            )
        );
        assert_eq!(
            name("a.test", 22),
            ("a.test: refused: egress.ports does not have the port, and no rule allows it".into(), true)
        );

        let target = Target::parse("a.example:443", None).unwrap();
        let found = ["10.1.0.1", "10.9.0.1", "1.1.1.1", "::1", "64:ff9b::7f00:1"];
        let found = found.map(|address| address.parse().unwrap()).to_vec();
        let Explanation { sentences, end } = policy.explain_resolved(&target, String::new(), Ok(found));
        assert_eq!(end, End::Allowed);
        assert_eq!(
            sentences[1..4],
            [
                "10.1.0.1: allowed: rule 1 allows \"10.0.0.0/8:443\"",
                "10.9.0.1: refused: egress.deny has 10.9.0.0/16",
                "1.1.1.1: allowed: rule 3 allows \"*.example:443\"",
            ]
        );
        assert!(sentences[4].starts_with("::1: refused: it is a private, local"), "{sentences:#?}");
        let carried = "64:ff9b::7f00:1, which is or carries 127.0.0.1: refused: it is a private";
        assert!(sentences[5].starts_with(carried), "{sentences:#?}");
    }

    #[tokio::test]
    async fn the_next_hop_of_a_rule_is_named_and_a_name_for_it_is_not_resolved() {
        let text = "[[rules]]\nallow = [\"*.example:443\", \"9.0.0.0/8:443\"]\nvia = \"exit\"\n\
            [[next_hops]]\nname = \"exit\"\nurls = [\"socks5://192.0.2.1:1080\"]\n";
        let egress: Egress = postern_config::parse("egress.toml", text, []).unwrap();
        for (target, expected) in [
            (
                "a.example:443",
                "a.example: allowed through the next hop \"exit\" (socks5://192.0.2.1:1080), which resolves it: rule 1 \
                 allows \"*.example:443\"",
            ),
            (
                "9.1.1.1:443",
                "9.1.1.1: allowed: rule 1 allows \"9.0.0.0/8:443\"; through the next hop \"exit\" \
                 (socks5://192.0.2.1:1080)",
            ),
        ] {
            let target = Target::parse(target, None).unwrap();
            let explanation = explain(&egress, &target, Duration::from_secs(1)).await.unwrap();
            assert_eq!((explanation.sentences, explanation.end), (vec![expected.to_owned()], End::Allowed));
        }
    }

    #[test]
    fn what_is_refused_after_it_was_resolved_has_cost_a_token() {
        let policy = policy(RULES);
        let end = |text: &str, found: Result<&str, &str>| {
            let found = found.map(|address| vec![address.parse().unwrap()]).map_err(str::to_owned);
            policy.explain_resolved(&Target::parse(text, None).unwrap(), String::new(), found).end
        };
        assert_eq!(end("a.test:443", Ok("10.0.0.1")), End::Allowed);
        assert_eq!(end("a.test:443", Ok("1.1.1.1")), End::RefusedSpent);
        assert_eq!(end("a.example:443", Err("the target's name has no address")), End::RefusedSpent);
        let literal = |text: &str| {
            let target = Target::parse(text, None).unwrap();
            let Host::Address(address) = *target.host() else { panic!("a name") };
            policy.explain_address(&target, address).end
        };
        assert_eq!([literal("10.0.0.1:443"), literal("1.1.1.1:443")], [End::Allowed, End::RefusedUnspent]);
    }
}
