//! Finds running daemons by their admin listeners.

use crate::running::{NoAnswer, Running, SILENT};
use postern_daemon::examination::{Finding, PATIENCE};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::time::timeout;

/// Default admin ports: of a gateway and of `postern up`, of an issuer, of an agent; those in the files of `postern init --fleet`.
pub(crate) const ADMIN_PORTS: [u16; 7] = [9090, 9091, 9092, 9190, 9191, 9192, 9193];
pub(super) struct Process {
    pub(super) admin: SocketAddr,
    /// `None` for a process that does not answer, or is not Postern's.
    pub(super) running: Option<Running>,
}

/// Examines the `configured` and the default admin addresses. Returns the processes there, and the findings.
pub(super) async fn examine(configured: impl Iterator<Item = SocketAddr>) -> (Vec<Process>, Vec<Finding>) {
    let addresses = addresses(configured).into_iter();
    let examining: Vec<_> = addresses.map(|address| tokio::spawn(process(address))).collect();
    let (mut processes, mut findings) = (Vec::new(), Vec::new());
    for examining in examining {
        // A panic has already been printed.
        if let Ok(Some((process, found))) = examining.await {
            processes.push(process);
            findings.extend(found);
        }
    }
    (processes, findings)
}

/// Returns the `configured` addresses and the default ones, each listener once: a default port of a configured unspecified address
/// is that one's.
fn addresses(configured: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = configured.filter(|at| at.port() != 0).collect();
    for port in ADMIN_PORTS {
        if !addresses.iter().any(|at| at.port() == port && at.ip().is_unspecified()) {
            addresses.push((Ipv4Addr::LOCALHOST, port).into());
        }
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Examines the process whose admin listener is at `address`. Returns `None` if nothing listens.
async fn process(address: SocketAddr) -> Option<(Process, Vec<Finding>)> {
    let url = format!("http://{address}");
    let asked = timeout(PATIENCE, Running::ask(&url)).await;
    let unusable = match asked.unwrap_or(Err(NoAnswer::Hangs(SILENT))) {
        Ok(running) => {
            let findings = judge(&url, &running);
            return Some((Process { admin: address, running: Some(running) }, findings));
        }
        Err(NoAnswer::NothingListens) => return None,
        Err(NoAnswer::Hangs(how)) => Finding::bad(
            "process",
            format!("{url} {how}"),
            "nothing is known of the process, and it may serve no one",
            "see its log; restart it if it hangs",
        ),
        Err(NoAnswer::Unusable(reason)) => {
            Finding::look("process", format!("{url} is no admin listener of Postern: {reason}"))
                .costs("a daemon whose admin listener is to be there does not start")
                .remedy("stop what listens there, or choose another listen.admin")
        }
    };
    Some((Process { admin: address, running: None }, vec![unusable]))
}

fn judge(url: &str, running: &Running) -> Vec<Finding> {
    let (what, lines, lossy) =
        (running.daemon(), running.said.trim_end().replace('\n', "; "), running.lossy_links());
    let state = if !running.is_ready {
        Finding::bad(
            what,
            format!("{url} is not ready: {lines}"),
            "load balancers send it no clients",
            "mend what the reasons say; docs/operate/install.md has each under \"Readiness\"",
        )
    } else if !lossy.is_empty() {
        Finding::look(
            what,
            format!("{url} is ready, and lost attempts in the last 10 minutes: {}", lossy.join("; ")),
        )
        .costs("a request that needed one of them waited, or was refused where no other address could answer it")
        .remedy(format!(
            "if nothing was restarted there, look at it and at the way to it; postern status {url} has each link"
        ))
    } else if lines != "ready" {
        Finding::look(what, format!("{url} is {lines}"))
    } else {
        Finding::well(what, format!("{url} is ready"))
    };
    let ours = env!("CARGO_PKG_VERSION");
    let other = running.version().filter(|version| *version != ours).map(|version| {
        Finding::look(what, format!("{url} runs version {version}, and this program is version {ours}"))
            .costs(
                "what the newer one mends is not mended there, and its configuration may not fit the other",
            )
            .remedy(
                "restart it, if it runs the same file as this program: docs/operate/change.md, \"Upgrade\"",
            )
    });
    std::iter::once(state).chain(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_several_addresses_is_examined_once() {
        let of = |configured: &[&str]| addresses(configured.iter().map(|address| address.parse().unwrap()));
        let by_default = of(&["127.0.0.1:9090", "127.0.0.1:0"]);
        assert_eq!(by_default.iter().map(SocketAddr::port).collect::<Vec<_>>(), ADMIN_PORTS);
        for any in ["0.0.0.0:9090", "[::]:9090"] {
            let found = of(&[any, "127.0.0.2:9091", any]);
            let at_9090: Vec<String> =
                found.iter().filter(|at| at.port() == 9090).map(SocketAddr::to_string).collect();
            assert_eq!((at_9090, found.len()), (vec![any.to_owned()], ADMIN_PORTS.len() + 1));
        }
    }
}
