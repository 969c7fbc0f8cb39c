//! Gateways as the next hops of other gateways.

use crate::support::admin::{Metrics, metrics_when};
use crate::support::association::{Program, echo, name, v4};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::doctor::Findings;
use crate::support::proxy::{connect, dial};
use crate::support::tls::Authority;
use crate::support::tokens;
use postern_testkit::ports;
use std::time::Duration;
use tempfile::TempDir;

/// Two gateways whose rules lead all tunnels to each other. A tunnel costs one token and one connection each way, and ends where
/// it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_comes_back_is_refused_at_its_first_return_and_doctor_and_readiness_report_it() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let ports = [ports::free(), ports::free()];
    let configs = [0, 1].map(|own| {
        let folder = home.path().join(own.to_string());
        std::fs::create_dir(&folder).unwrap();
        let (own, other) = (ports[own], ports[1 - own]);
        let Authority { ca, certificate, key, client: [client, client_key], .. } = &authority;
        let more = format!(
            "[[egress.rules]]\nallow = [\"127.0.0.0/8\", \"*\"]\nvia = \"other\"\n\
             [[egress.next_hops]]\nname = \"other\"\nurls = [\"https://127.0.0.1:{other}\"]\ncheck_every = \"1s\"\n\
             ca = {ca:?}\ncertificate = {client:?}\nkey = {client_key:?}\n\
             [peers]\naddress = \"127.0.0.1:{own}\"\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n"
        );
        let config = gateway_config(&folder, &issuer.http(), "", "1s", &more);
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("workers = 8", "workers = 1")).unwrap(); // each worker has its own connections
        config
    });
    let [one, other] =
        [Daemon::ready("gateway", &configs[0]).await, Daemon::ready("gateway", &configs[1]).await];

    let tokens = tokens::mint(&issuer.http(), &one.http(), 2);
    let refused = async |target: &str, token: &str, words: &str| {
        let mut stream = dial(one.address).await.unwrap();
        let head = connect(&mut stream, target, Some(token)).await.unwrap();
        assert!(head.status == 508 && head.fields.contains(words), "{target}: {head:?}");
    };
    refused("name.example:443", &tokens[0], "came back to a gateway").await;
    refused("name.example:443", &tokens[1], "would come back to this gateway").await;
    refused("127.0.0.1:443", &tokens[1], "came back to a gateway").await; // so it was not spent before
    // Tunnels share one; a check has another, which ends with it.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        for port in ports {
            let open = ports::connections(port);
            assert!(open <= 3, "{open} connections");
        }
    }
    one.readyz(200, &["leads in a circle"]).await;
    Findings::of(&configs[0]).has("bad", "next hop", "leads in a circle");

    // The remedy: the other gateway reaches targets by itself.
    Findings::of(&configs[0]).has(
        "bad",
        "next hop",
        "change [[egress.next_hops]], or the rules that use them",
    );
    other.process.terminate().assert_stopped();
    let text = std::fs::read_to_string(&configs[1]).unwrap();
    std::fs::write(&configs[1], text.replace("via = \"other\"", "via = \"direct\"")).unwrap();
    let _other = Daemon::ready("gateway", &configs[1]).await;
    Findings::of(&configs[0]).has_nothing_bad();
}

/// A program's UDP through an agent and two gateways: the first takes the token, the second has the socket, and both count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_passes_two_gateways_for_one_token_and_both_count_its_datagrams() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let Authority { ca, certificate, key, client: [client, client_key], .. } = &authority;
    let (port, folder) = (ports::free(), home.path().join("exit"));
    std::fs::create_dir(&folder).unwrap();
    let listener = format!(
        "udp = \"any\"\n[peers]\naddress = \"127.0.0.1:{port}\"\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n"
    );
    let exit = Daemon::ready("gateway", &gateway_config(&folder, &issuer.http(), "", "1s", &listener)).await;
    let through = format!(
        "udp = \"any\"\nvia = \"exit\"\n[[egress.next_hops]]\nname = \"exit\"\nurls = [\"https://127.0.0.1:{port}\"]\n\
         ca = {ca:?}\ncertificate = {client:?}\nkey = {client_key:?}\n"
    );
    let entry =
        Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", &through)).await;
    let agent = client_config(home.path(), &entry.http(), &issuer.http(), None);
    let agent = Daemon::ready("client", &agent).await;

    let (target, mut program) = (echo().await, Program::of(agent.address).await);
    for size in [4, 62, 63, 1200, 9000] {
        program.echo(&v4(target), size).await;
    }
    program.echo(&name("localhost", target.port()), 4).await;
    let counted = async |daemon: &Daemon| {
        metrics_when(daemon.admin, "both streams and their datagrams", |metrics| {
            let datagrams = |way| metrics.value(&format!("postern_datagrams_total{{direction=\"{way}\"}}"));
            metrics.value("postern_udp_tunnels_open") == 2 && datagrams("up") >= 6 && datagrams("down") >= 6
        })
        .await;
    };
    counted(&entry).await;
    counted(&exit).await;
    assert_eq!(Metrics::of(entry.admin).await.requests("opened"), 2);
    assert_eq!(Metrics::of(exit.admin).await.requests("opened"), 0, "a token was spent twice");
    drop(program);
    for daemon in [&entry, &exit] {
        metrics_when(daemon.admin, "no stream", |metrics| metrics.value("postern_udp_tunnels_open") == 0)
            .await;
    }
    for daemon in [agent, entry, exit] {
        daemon.process.terminate().assert_stopped();
    }
}
