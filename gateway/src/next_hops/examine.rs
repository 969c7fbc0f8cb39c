//! Examines the next hops of a configuration: the same check of each URL that a gateway makes while it runs.

use super::checks::{answers, leads_in_a_circle};
use super::connections::sharing;
use super::reach::Dialler;
use super::{Member, NextHop};
use crate::config::Egress;
use crate::request::egress::Policy;
use crate::request::hops::Pseudonym;
use crate::request::resolve::Resolver;
use postern_daemon::drain::Shutdown;
use postern_daemon::examination::{Examinations, Finding, PATIENCE, written};
use postern_daemon::tls;
use postern_proxy::target::Host;
use postern_proxy::tunnel::Lines;
use std::sync::Arc;
use std::time::Instant;

/// Begins to look at each URL.
pub(crate) fn begin(egress: &Egress, examinations: &mut Examinations) {
    let policy = Arc::new(Policy::new(egress));
    for hop in policy.next_hops().iter() {
        for member in &hop.members {
            let away = away(hop, member);
            let late = Finding {
                seen: format!("{}: no answer within {} s", away.seen, PATIENCE.as_secs()),
                ..away.clone()
            };
            let (policy, settings) = (Arc::clone(&policy), egress.resolver.clone());
            let (hop, member) = (Arc::clone(hop), Arc::clone(member));
            begin_certificate(&member, examinations);
            examinations.begin(late, async move {
                // Its background tasks live on this runtime.
                let Ok(resolver) = Resolver::new(&settings) else { return Vec::new() };
                let dialler =
                    Dialler { resolver: &resolver, sources: policy.source_of_all(), turn: policy.turn() };
                let (began, own) = (Instant::now(), Pseudonym::random().first());
                let lines = Lines::new(sharing(&hop, Shutdown::new()));
                let found = match answers(&hop, &member, dialler, &lines).await {
                    Ok(()) if leads_in_a_circle(&hop, &member, dialler, &lines, &own).await => {
                        circle(&hop, &member)
                    }
                    Ok(()) => Finding::well(
                        "next hop",
                        format!("{} answers in {}", member.url, written(began.elapsed())),
                    ),
                    Err(reason) => Finding { seen: format!("{}: {reason}", away.seen), ..away },
                };
                vec![found]
            });
        }
    }
}

fn away(hop: &NextHop, member: &Member) -> Finding {
    let name = &hop.config.name;
    let cost = match hop.members.len() {
        1 => "tunnels through it are refused, with 502, or with 503 where all go through it",
        _ => "tunnels go to its other URLs",
    };
    Finding::bad("next hop", format!("the next hop \"{name}\" cannot be used at {}", member.url))
        .costs(cost)
        .remedy("check that the proxy runs, and its URL and credentials in [[egress.next_hops]]")
}

fn circle(hop: &NextHop, member: &Member) -> Finding {
    let (name, url) = (&hop.config.name, &member.url);
    let seen = format!(
        "the next hop \"{name}\" leads in a circle: from {url} a tunnel comes back to a gateway that it has passed"
    );
    Finding::bad("next hop", seen)
        .costs(
            "tunnels that go round are refused with 508; unless all go through it (egress.via), one token a minute is lost for each target",
        )
        .remedy("change [[egress.next_hops]], or the rules that use them, at one of the gateways")
}

fn begin_certificate(member: &Member, examinations: &mut Examinations) {
    let Some(Ok(hop_tls)) = member.tls() else { return };
    let host = match member.url.at().host() {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    };
    tls::begin_shown(examinations, (&host, member.url.at().port()), &host, hop_tls.config.clone());
}
