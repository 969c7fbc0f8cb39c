//! `postern doctor`: exit codes and what it prints.

mod broken;
mod machine;

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::process::{Ended, Postern, command, run};
use crate::support::tls::Authority;
use crate::support::{admin, eventually};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn doctor(arguments: &[&str]) -> Ended {
    run(["doctor"].iter().chain(arguments))
}

fn mcrouter(path: &Path) -> Ended {
    doctor(&["--mcrouter-config", path.to_str().unwrap()])
}

#[test]
fn the_configurations_that_we_deploy_are_fit() {
    let ended = mcrouter(&root().join("deploy/mcrouter/single.json"));
    ended.assert_stopped();
    let owner = "note: an `add` comes to the pool spent (3 servers)";
    assert!(ended.stdout.starts_with(owner) && ended.stdout.contains("fit to remember"), "{ended:#?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn what_can_admit_twice_is_refused_by_its_place_and_reason() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("mcrouter.json");
    let shipped = std::fs::read_to_string(root().join("deploy/mcrouter/single.json")).unwrap();
    std::fs::write(&path, shipped.replacen("PoolRoute|spent", "AllMajorityRoute|Pool|spent", 1)).unwrap();
    let ended = mcrouter(&path);
    assert_eq!(ended.code, Some(64), "{ended:#?}");
    let place = "refuse: line 15 column 14: AllMajorityRoute is not known to give each key one owner";
    assert!(
        ended.stdout.starts_with(place) && ended.stdout.contains("`store.memcached.replicas`"),
        "{ended:#?}"
    );
    assert!(ended.stderr.contains("not fit to remember spent tokens: see the refusal above"), "{ended:#?}");

    std::fs::write(&path, "{\"route\": ").unwrap();
    let cut = mcrouter(&path);
    assert_eq!(cut.code, Some(64), "{cut:#?}");
    assert!(cut.stdout.contains("refuse: it is not the JSON that mcrouter reads"), "{cut:#?}");

    std::fs::write(&path, b"{\"route\": \"\xff\"}").unwrap();
    mcrouter(&path).assert_failed(64, &["cannot read the mcrouter configuration"]);
    mcrouter(&home.path().join("nowhere")).assert_failed(64, &["nowhere", "cannot read"]);
}

#[test]
fn a_warning_does_not_fail() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("one.json");
    std::fs::write(&path, r#"{"pools": {"A": {"servers": ["10.0.0.1:11211"]}}, "route": "PoolRoute|A"}"#)
        .unwrap();
    let ended = mcrouter(&path);
    ended.assert_stopped();
    assert!(ended.stdout.contains("warn: line 1 column 57: it passes every command"), "{ended:#?}");
}

#[test]
fn a_gateway_configuration_is_loaded_and_both_are_checked() {
    let home = TempDir::new().unwrap();
    let gateway = home.path().join("gateway.toml");
    let unfit = home.path().join("mcrouter.json");
    std::fs::write(&unfit, "{}").unwrap();
    let both = ["--config", gateway.to_str().unwrap(), "--mcrouter-config", unfit.to_str().unwrap()];

    let text = "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n[store]\npath = \"x\"\n";
    std::fs::write(&gateway, text).unwrap();
    let fine = doctor(&both[..2]);
    fine.assert_stopped();
    assert!(fine.stdout.contains("gateway.toml: a gateway can be started"), "{fine:#?}");

    std::fs::write(&gateway, format!("{text}[nonsense]\n")).unwrap();
    doctor(&both[..2]).assert_failed(64, &["gateway.toml", "nonsense"]);
    let ended = doctor(&both);
    assert_eq!(ended.code, Some(64));
    assert!(
        ended.stderr.contains("nonsense") && ended.stderr.contains("mcrouter.json: not fit"),
        "{ended:#?}"
    );
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
        let checked = doctor(&["--config", config.to_str().unwrap()]);
        checked.assert_stopped();
        assert!(checked.stdout.contains("warning: the certificate in ") && checked.stdout.contains(reason));
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
fn a_router_that_gives_up_no_sooner_than_the_gateway_is_warned_of() {
    let home = TempDir::new().unwrap();
    let (gateway, router) = (home.path().join("gateway.toml"), home.path().join("mcrouter.json"));
    let text = "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n\
        [store]\nkind = \"memcached\"\nmemcached.addresses = [\"127.0.0.1:5000\"]\n";
    std::fs::write(&gateway, text).unwrap();
    let shipped = std::fs::read_to_string(root().join("deploy/mcrouter/single.json")).unwrap();
    let both = ["--config", gateway.to_str().unwrap(), "--mcrouter-config", router.to_str().unwrap()];
    let warning = "the gateway gives up first, and closes the connection";
    for (server_timeout, is_warned) in [("50", false), ("100", true)] {
        let text =
            shipped.replace("\"server_timeout\": 50", &format!("\"server_timeout\": {server_timeout}"));
        std::fs::write(&router, text).unwrap();
        let ended = doctor(&both);
        ended.assert_stopped();
        assert_eq!(ended.stdout.contains(warning), is_warned, "{ended:#?}");
    }
}

#[test]
fn a_twemproxy_is_checked_beside_its_gateway() {
    let home = TempDir::new().unwrap();
    let (gateway, router) = (home.path().join("gateway.toml"), home.path().join("nutcracker.yml"));
    let shipped = std::fs::read_to_string(root().join("deploy/twemproxy/nutcracker.yml")).unwrap();
    let text = "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n\
         bind = \"offer\"\n[store]\nkind = \"memcached\"\nmemcached.addresses = [\"127.0.0.1:5000\"]\n";
    let both = ["--config", gateway.to_str().unwrap(), "--twemproxy-config", router.to_str().unwrap()];

    std::fs::write(&gateway, text).unwrap();
    std::fs::write(&router, &shipped).unwrap();
    let fit = doctor(&both);
    fit.assert_stopped();
    assert!(fit.stdout.contains("nutcracker.yml: fit to remember"), "{fit:#?}");
    assert!(!fit.stdout.contains("warn"), "{fit:#?}");

    std::fs::write(&router, shipped.replace("hash_tag", "# hash_tag").replace("timeout: 50", "timeout: 100"))
        .unwrap();
    let parting = doctor(&both);
    assert_eq!(parting.code, Some(64), "{parting:#?}");
    assert!(parting.stderr.contains("nutcracker.yml: not fit to remember spent tokens"), "{parting:#?}");
    assert!(parting.stdout.contains("refuse: pool spent: `hash_tag` is not what encloses"), "{parting:#?}");
    assert!(parting.stdout.contains("the gateway gives up first"), "{parting:#?}");

    doctor(&["--twemproxy-config", home.path().join("nowhere").to_str().unwrap()])
        .assert_failed(64, &["nowhere", "cannot read the twemproxy configuration"]);
}

#[test]
fn an_egress_policy_is_explained_with_what_a_refusal_costs() {
    let home = TempDir::new().unwrap();
    let rules = "[[egress.rules]]\nallow = [\"localhost:443\", \"127.0.0.0/8:22\"]\n[[egress.rules]]\ndeny = [\"*\"]\n\
                 [[egress.rules]]\nallow = [\"late.example\"]\n";
    let text = format!(
        "[issuer]\ndirectory = \"http://127.0.0.1:1/\"\n[challenge]\nissuer_name = \"i.example\"\norigin = \"o.example\"\n{rules}"
    );
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
    let checked = doctor(&["--config", path.to_str().unwrap()]);
    checked.assert_failed(64, &["localhost:https"]);
}

#[test]
fn its_help_is_short_and_that_of_a_plan_has_the_rest() {
    let help = doctor(&["--help"]);
    help.assert_stopped();
    assert!(help.stdout.contains("--config <FILE>") && help.stdout.contains("--plan"), "{help:#?}");
    assert!(!help.stdout.contains("--lifetime") && help.stdout.lines().count() < 45, "{help:#?}");
    let plan = doctor(&["--plan", "--help"]);
    plan.assert_stopped();
    assert!(plan.stdout.contains("--lifetime"), "{plan:#?}");
    doctor(&["--mcrouter"]).assert_failed(2, &["--mcrouter"]);
}

#[test]
fn links_without_an_answer_are_reported_in_a_sentence() {
    // The discard port: nothing listens there.
    doctor(&["--links", "http://127.0.0.1:9"]).assert_failed(70, &["/live.json", "give the admin address"]);
    doctor(&["--links", "no address"]).assert_failed(70, &["give the admin address"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_is_printed_and_only_200_is_success() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let ready = doctor(&["--ready", &format!("http://{}/", issuer.admin)]);
    ready.assert_stopped();
    assert_eq!((ready.stdout.as_str(), ready.stderr.as_str()), ("ready\n", ""));

    // A gateway that cannot fetch a key: 503, with the reason.
    let config = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", "");
    let gateway = Daemon::start("gateway", &config);
    let not_ready = doctor(&["--ready", &format!("http://{}", gateway.admin)]);
    assert_eq!(not_ready.code, Some(70), "{not_ready:#?}");
    assert!(not_ready.stdout.contains("keys: "), "{not_ready:#?}");
    assert!(not_ready.stderr.contains("/readyz: not ready, the answer is 503"), "{not_ready:#?}");

    // One that is still reading its files, here a certificate that is never written: it answers before it serves.
    let fifo = home.path().join("certificate");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let tls = format!("[tls]\ncertificate = {fifo:?}\nkey = {fifo:?}\n");
    let starting = home.path().join("starting");
    std::fs::create_dir(&starting).unwrap();
    let config = gateway_config(&starting, "http://127.0.0.1:9", "", "1s", &tls);
    let starting = Postern::start(command(["gateway".as_ref(), "--config".as_ref(), config.as_os_str()]));
    let admin = starting.wait_for_address("the admin page listens on ");
    let not_yet = doctor(&["--ready", &format!("http://{admin}")]);
    assert_eq!((not_yet.code, not_yet.stdout.as_str()), (Some(70), "start: starting\n"), "{not_yet:#?}");
    starting.kill();

    // Not an admin listener at all.
    let other = doctor(&["--ready", &issuer.http()]);
    assert_eq!(other.code, Some(70), "{other:#?}");
    doctor(&["--ready", "http://127.0.0.1:9"]).assert_failed(70, &["/readyz", "give the admin address"]);
}
