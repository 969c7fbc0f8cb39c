//! `postern doctor`: exit codes and what it prints.

mod broken;
mod machine;
mod processes;
mod remedies;

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::doctor::Findings;
use crate::support::process::{Ended, run};
use crate::support::tls::Authority;
use crate::support::{admin, eventually, root};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::path::Path;
use tempfile::TempDir;

fn doctor(arguments: &[&str]) -> Ended {
    run(["doctor"].iter().chain(arguments))
}

fn examine(paths: &[&Path]) -> Ended {
    run(["doctor".as_ref()].into_iter().chain(paths.iter().map(|path| path.as_os_str())))
}

const GATEWAY: &str = "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n";

#[test]
fn the_configurations_that_we_deploy_are_fit() {
    let file = root().join("deploy/mcrouter/single.json");
    examine(&[&file]).assert_stopped();
    let found = Findings::of(&file);
    found.has("well", "router", "an `add` comes to the pool spent (3 servers)");
    found.has("well", "router", "fit to remember");
}

/// A file's contents decide, not its name.
#[test]
fn what_can_admit_twice_is_refused_by_its_place_and_reason() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("router.conf");
    let shipped = std::fs::read_to_string(root().join("deploy/mcrouter/single.json")).unwrap();
    std::fs::write(&path, shipped.replacen("PoolRoute|spent", "AllMajorityRoute|Pool|spent", 1)).unwrap();
    let ended = examine(&[&path]);
    assert_eq!(ended.code, Some(64), "{ended:#?}");
    let found = Findings::of(&path);
    found.has("bad", "router", "line 16 column 14: AllMajorityRoute is not known to give each key one owner");
    found.has("bad", "router", "`store.memcached.replicas`");
    std::fs::write(&path, shipped).unwrap(); // the remedy
    Findings::of(&path).has_nothing_bad();

    std::fs::write(&path, "{\"route\": ").unwrap();
    let cut = examine(&[&path]);
    assert_eq!(cut.code, Some(64), "{cut:#?}");
    Findings::of(&path).has("bad", "router", "it is not the JSON that mcrouter reads");

    std::fs::write(&path, b"{\"route\": \"\xff\"}").unwrap();
    assert_eq!(examine(&[&path]).code, Some(64));
    Findings::of(&path).has("bad", "router", "it is not UTF-8");
    examine(&[&home.path().join("nowhere")]).assert_would_not_start(64, &["nowhere", "cannot"]);
}

#[test]
fn a_router_that_passes_every_command_deserves_a_look() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("one.json");
    std::fs::write(&path, r#"{"pools": {"A": {"servers": ["10.0.0.1:11211"]}}, "route": "PoolRoute|A"}"#)
        .unwrap();
    let found = Findings::of(&path);
    found.has("look", "router", "line 1 column 60: it passes every command");
    found.has_nothing_bad();
}

#[test]
fn a_gateway_and_its_router_are_examined_at_once() {
    let home = TempDir::new().unwrap();
    let (gateway, unfit) = (home.path().join("gateway.toml"), home.path().join("mcrouter.json"));
    std::fs::write(&unfit, "{}").unwrap();
    std::fs::write(&gateway, GATEWAY).unwrap();
    Findings::of(&gateway).has("well", "file", "a gateway can be started");
    std::fs::write(&gateway, format!("{GATEWAY}[nonsense]\n")).unwrap();
    for paths in [&[&*gateway, &*unfit][..], &[home.path()]] {
        let ended = examine(paths);
        ended.assert_would_not_start(64, &["gateway.toml", "nonsense"]);
        assert!(ended.stdout.contains("bad   router "), "{ended:#?}");
    }
}

/// A certificate that has ended stops every client at the handshake, so neither a request nor its refusal would show it.
#[tokio::test]
async fn a_certificate_that_has_ended_is_reported_before_a_start_and_after_it() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2020, 2, 29);
    let key = KeyPair::generate().unwrap();
    std::fs::write(&authority.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&authority.key, key.serialize_pem()).unwrap();
    let reason = "server.pem ended at 2020-02-29T00:00:00Z";
    let issuer = issuer_config(home.path(), &authority.section());
    let gateway = gateway_config(home.path(), "http://127.0.0.1:1", "", "1s", &authority.section());
    for (kind, config, metric) in [
        ("issuer", issuer, "postern_issuer_certificate_ends_timestamp_seconds"),
        ("gateway", gateway, "postern_certificate_ends_timestamp_seconds"),
    ] {
        let found = Findings::of(&config);
        found.has("well", "file", "can be started with it");
        found.has("bad", "certificate", reason);
        let daemon = Daemon::start(kind, &config);
        eventually("readiness has the reason", || async {
            let (status, body) = admin::get(daemon.admin, "/readyz").await?;
            (status == 503 && body.contains(reason)).then_some(())
        })
        .await;
        let (_, metrics) = admin::get(daemon.admin, "/metrics").await.unwrap();
        assert!(metrics.contains(&format!("\n{metric} 1582934400\n")), "{metrics}");
        assert!(daemon.kill().stderr.contains(reason));
    }
}

#[test]
fn a_router_that_gives_up_no_sooner_than_the_gateway_deserves_a_look() {
    let home = TempDir::new().unwrap();
    let (gateway, router) = (home.path().join("gateway.toml"), home.path().join("mcrouter.json"));
    let store = "[store]\nkind = \"memcached\"\nmemcached.addresses = [\"127.0.0.1:5000\"]\n";
    std::fs::write(&gateway, format!("{GATEWAY}{store}")).unwrap();
    let shipped = std::fs::read_to_string(root().join("deploy/mcrouter/single.json")).unwrap();
    let warning = "the gateway gives up first, after 100 ms, and closes the connection";
    for (server_timeout, is_warned) in [("50", false), ("100", true)] {
        let text =
            shipped.replace("\"server_timeout\": 50", &format!("\"server_timeout\": {server_timeout}"));
        std::fs::write(&router, text).unwrap();
        for paths in [&[&*gateway, &*router][..], &[home.path()]] {
            let ended = examine(paths);
            assert_eq!(ended.stdout.contains(warning), is_warned, "{ended:#?}");
        }
    }
}

#[test]
fn a_twemproxy_is_checked_with_its_gateway() {
    let home = TempDir::new().unwrap();
    let (gateway, router) = (home.path().join("gateway.toml"), home.path().join("nutcracker.yml"));
    let shipped = std::fs::read_to_string(root().join("deploy/twemproxy/nutcracker.yml")).unwrap();
    let text =
        format!("{GATEWAY}[store]\nkind = \"memcached\"\nmemcached.addresses = [\"127.0.0.1:5000\"]\n");
    let of = |file: &Path| {
        let both = ["doctor".as_ref(), "--json".as_ref(), gateway.as_os_str(), router.as_os_str()];
        Findings::read(&run(both), file)
    };

    std::fs::write(&gateway, text).unwrap();
    std::fs::write(&router, &shipped).unwrap();
    of(&router).has("well", "router", "fit to remember");
    of(&router).has_nothing_bad();
    of(&gateway).has("well", "file", "can be started with it");

    std::fs::write(&router, shipped.replace("hash_tag", "# hash_tag").replace("timeout: 50", "timeout: 100"))
        .unwrap();
    of(&router).has("bad", "router", "pool spent: `hash_tag` is not what encloses");
    of(&router).has("look", "router", "the gateway gives up first");
    assert_eq!(examine(&[&gateway, &router]).code, Some(64));
}

#[test]
fn an_egress_policy_is_explained_with_what_a_refusal_costs() {
    let home = TempDir::new().unwrap();
    let rules = "[[egress.rules]]\nallow = [\"localhost:443\", \"127.0.0.0/8:22\"]\n[[egress.rules]]\ndeny = [\"*\"]\n\
                 [[egress.rules]]\nallow = [\"late.example\"]\n";
    let text = format!("{GATEWAY}{rules}");
    let path = home.path().join("gateway.toml");
    std::fs::write(&path, &text).unwrap();
    let ask = |target: &str| doctor(&["egress", target, "--config", path.to_str().unwrap()]);

    let allowed = ask("127.0.0.1:22");
    allowed.assert_stopped();
    assert!(allowed.stdout.contains("127.0.0.1: allowed: rule 1 allows \"127.0.0.0/8:22\""), "{allowed:#?}");
    assert!(allowed.stdout.contains("warning: egress.rules: \"late.example\" of rule 3"), "{allowed:#?}");
    let denied = ask("b.example:443");
    assert_eq!(denied.code, Some(70), "{denied:#?}");
    let costs_nothing = "b.example:443: tunnels may not go there; a refusal costs no token";
    assert!(denied.stderr.contains(costs_nothing), "{denied:#?}");
    assert!(denied.stdout.contains("b.example: refused: rule 2 denies \"*\""), "{denied:#?}");
    let resolved = ask("localhost:443");
    assert_eq!(resolved.code, Some(70), "{resolved:#?}");
    assert!(resolved.stderr.contains("each attempt costs its token"), "{resolved:#?}");
    assert!(resolved.stdout.contains("localhost: allowed if its addresses are: rule 1"), "{resolved:#?}");
    assert!(resolved.stdout.contains("127.0.0.1: refused: it is a private"), "{resolved:#?}");

    ask("b.example").assert_failed(2, &["NAME:PORT", "the target must be host:port"]);
    std::fs::write(&path, text.replace("localhost:443", "localhost:https")).unwrap();
    ask("b.example:443")
        .assert_failed(64, &["gateway.toml, line ", "localhost:https", "\"https\" are no ports"]);
    examine(&[&path]).assert_would_not_start(64, &["localhost:https"]);
}

#[test]
fn its_only_form_takes_paths() {
    let help = doctor(&["--help"]);
    help.assert_stopped();
    assert!(help.stdout.contains("[PATH]...") && help.stdout.contains("--json"), "{help:#?}");
    let gone =
        ["--config", "--mcrouter-config", "--twemproxy-config", "--links", "--ready", "--plan", "--rtt"];
    for flag in gone {
        doctor(&[flag, "x"]).assert_failed(2, &[flag]);
    }
}
