//! The name servers that resolve targets: does each answer, and how fast?

use crate::config::{ResolverConfig, ResolverKind};
use crate::request::resolve::{self, Asked};
use postern_daemon::examination::{Examinations, Finding, PATIENCE, SLOW, written};

/// Begins to ask each name server for the servers of the root zone, which every resolver knows and no one learns anything by.
pub(super) fn begin(settings: &ResolverConfig, examinations: &mut Examinations) {
    let remedy = match settings.kind {
        ResolverKind::System => "correct /etc/resolv.conf, or name other servers in [egress.resolver]",
        _ => "correct egress.resolver.servers, or remove this one",
    };
    let servers = match resolve::each_server(settings) {
        Ok(servers) => servers,
        Err(error) => {
            let without =
                Finding::bad("names", error.to_string()).costs("the gateway does not start").remedy(remedy);
            return examinations.begin(without.clone(), async move { vec![without] });
        }
    };
    let cost = match servers.len() {
        1 => "tunnels to names are refused, with 502 or 504, and their tokens are spent",
        _ => "tunnels to names wait for it until another name server answers",
    };
    for server in servers {
        let address = server.address;
        let away = move |reason: &str| {
            Finding::bad("names", format!("the name server {address} {reason}")).costs(cost).remedy(remedy)
        };
        let late = away(&format!("does not answer within {} s", PATIENCE.as_secs()));
        examinations.begin(late, async move {
            let found = match server.ask().await {
                Asked::Answered(took) if took < SLOW => {
                    Finding::well("names", format!("the name server {address} answers in {}", written(took)))
                }
                Asked::Answered(took) => {
                    Finding::look("names", format!("the name server {address} answers in {}", written(took)))
                        .costs("each tunnel to a name that is not kept waits for that")
                        .remedy("choose one that is nearer, or run a caching resolver on this machine")
                }
                Asked::Failed(reason) => away(&format!("gives no answer: {reason}")),
            };
            vec![found]
        });
    }
}
