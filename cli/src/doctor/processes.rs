//! What of Postern runs on this machine, by its admin listeners.

use crate::running::admin::{metrics, readyz, version};
use crate::running::links::{self, UNKNOWN};
use http::StatusCode;
use postern_daemon::examination::{Examinations, Finding};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;

/// Where admin listeners are by default: a gateway's and that of `postern up`, an issuer's, an agent's.
pub(crate) const ADMIN_PORTS: [u16; 3] = [9090, 9091, 9092];
/// Where `postern up` listens by default, and with which argument it listens elsewhere.
const UP_PORTS: [(u16, &str); 4] =
    [(8118, "--client"), (8080, "--gateway"), (8081, "--issuer"), (9090, "--admin")];

/// The processes that were found.
pub(super) struct Running {
    /// Their admin addresses.
    pub(super) found: Vec<SocketAddr>,
    pub(super) findings: Vec<Finding>,
}

/// Looks at these admin addresses and at the default ones.
pub(super) async fn examine(configured: impl Iterator<Item = SocketAddr>) -> Running {
    let by_default = ADMIN_PORTS.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
    let mut addresses: Vec<SocketAddr> = configured.chain(by_default).filter(|at| at.port() != 0).collect();
    addresses.sort();
    addresses.dedup();
    let (mut examinations, (send, receive)) = (Examinations::default(), mpsc::channel());
    for address in addresses {
        let found = send.clone();
        let late =
            Finding::bad("process", format!("http://{address} takes connections, and does not answer"))
                .costs("nothing is known of the process, and it may serve no one")
                .remedy("see its log; restart it if it hangs");
        examinations.begin(late, async move {
            let finding = process(address).await;
            if finding.is_some() {
                let _ = found.send(address); // it is received below
            }
            finding.into_iter().flatten().collect()
        });
    }
    let findings = examinations.findings().await;
    Running { found: receive.try_iter().collect(), findings }
}

/// What is to be said of the process of Postern whose admin listener is at `address`; `None` where nothing listens.
async fn process(address: SocketAddr) -> Option<Vec<Finding>> {
    let url = format!("http://{address}");
    let (status, body) = match readyz(&url).await {
        Ok(answer) => answer?,
        Err(reason) => {
            return Some(vec![
                Finding::look("process", format!("{url} is no admin listener of Postern: {reason}"))
                    .costs("a daemon whose admin listener is to be there does not start")
                    .remedy("stop what listens there, or choose another listen.admin"),
            ]);
        }
    };
    let snapshot = links::snapshot(&url).await;
    let what = snapshot.as_ref().map_or(UNKNOWN, links::Snapshot::daemon);
    let lines = body.trim_end().replace('\n', "; ");
    let state = if status != StatusCode::OK {
        Finding::bad(what, format!("{url} is not ready: {lines}"))
            .costs("load balancers send it no clients")
            .remedy("mend what the reasons say; docs/operate/alerts.md has each")
    } else if let Some(bad) = snapshot.map(|snapshot| snapshot.bad()).filter(|bad| !bad.is_empty()) {
        let bad = bad.join(", ");
        Finding::bad(what, format!("{url} lost more than 1 of 100 attempts in 10 minutes: {bad}"))
            .costs("a request that needed one of them waited, or was refused where no other address could answer it")
            .remedy(format!(
                "postern status {url} has each link; look at what is there, and at the way to it"
            ))
    } else if lines != "ready" {
        Finding::look(what, format!("{url} is {lines}"))
    } else {
        Finding::well(what, format!("{url} is ready"))
    };
    let other = metrics(&url)
        .await
        .as_deref()
        .and_then(version)
        .filter(|version| version != env!("CARGO_PKG_VERSION"));
    let other = other.map(|version| {
        let ours = env!("CARGO_PKG_VERSION");
        Finding::look(what, format!("{url} runs version {version}, and this program is version {ours}"))
            .costs(
                "what the newer one mends is not mended there, and its configuration may not fit the other",
            )
            .remedy(
                "restart it, if it runs the same file as this program: docs/operate/change.md, \"Upgrade\"",
            )
    });
    Some(std::iter::once(state).chain(other).collect())
}

/// Whether `postern up` finds its ports free, where nothing runs.
pub(super) fn ports_of_up() -> Finding {
    let taken = |(port, _): &&(u16, &str)| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err();
    let taken: Vec<&(u16, &str)> = UP_PORTS.iter().filter(taken).collect();
    if taken.is_empty() {
        return Finding::well("process", "nothing of Postern runs here; postern up starts a whole system");
    }
    let ports: Vec<String> = taken.iter().map(|(port, _)| port.to_string()).collect();
    let others: Vec<String> =
        taken.iter().map(|(_, argument)| format!("{argument} 127.0.0.1:PORT")).collect();
    Finding::look("process", format!("nothing of Postern runs here, and port {} is taken", ports.join(", ")))
        .costs("postern up does not start with its defaults")
        .remedy(format!("postern up {}", others.join(" ")))
}
