//! deploy/compose.yaml, alone and with deploy/compose.mcrouter.yaml over it.

use super::examples::{Example, example};
use super::{assert_variable_is_known, components, deploy, items, port, read, seconds, text, yaml};
use postern_daemon::descriptors::needed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;

const FILES: &str = "${POSTERN_FLEET:-./examples/fleet}";

struct Compose(Value);

fn compose() -> Compose {
    Compose(yaml(&deploy("compose.yaml")).remove(0))
}

/// Returns the services without routers, and those with an mcrouter before each replica.
fn both() -> [Compose; 2] {
    let mut routed = compose();
    lay_over(&mut routed.0, &yaml(&deploy("compose.mcrouter.yaml")).remove(0));
    [compose(), routed]
}

/// As compose does it: tables are joined key by key.
fn lay_over(under: &mut Value, over: &Value) {
    match (under.as_object_mut(), over.as_object()) {
        (Some(under), Some(over)) => {
            for (key, value) in over {
                lay_over(under.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => *under = over.clone(),
    }
}

impl Compose {
    fn names(&self) -> BTreeSet<String> {
        self.services().map(|(name, _)| name.clone()).collect()
    }

    fn services(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0["services"].as_object().unwrap().iter()
    }

    /// The services that run `postern`: name, service, and the listeners, connections and drain of their configuration.
    fn daemons(&self) -> Vec<(&String, &Value, Facts)> {
        let fleet = example("fleet");
        let ours = self
            .services()
            .filter(|(_, service)| service["build"]["dockerfile"] == "deploy/container/Containerfile");
        let daemons: Vec<_> = ours
            .map(|(name, service)| (name, service, Facts::by(&fleet, text(&service["build"]["target"]))))
            .collect();
        assert_eq!(daemons.len(), 4);
        daemons
    }
}

/// The values of a configuration that its service must agree with.
struct Facts {
    address: SocketAddr,
    admin: SocketAddr,
    descriptors: u64,
    drain: std::time::Duration,
}

impl Facts {
    fn by(fleet: &Example, daemon: &str) -> Self {
        let Example { gateway, issuer, client } = fleet;
        match daemon {
            "gateway" => Self {
                address: gateway.listen.address,
                admin: gateway.listen.admin,
                descriptors: needed(gateway.limits.connections, 2) as u64,
                drain: gateway.drain.deadline.get(),
            },
            "issuer" => Self {
                address: issuer.listen.address,
                admin: issuer.listen.admin,
                descriptors: 0,
                drain: issuer.drain.deadline.get(),
            },
            "client" => Self {
                address: client.listen.address,
                admin: client.listen.admin,
                descriptors: 0,
                drain: client.drain.deadline.get(),
            },
            _ => panic!("{daemon} is no daemon"),
        }
    }
}

#[test]
fn it_has_the_components_that_the_script_starts() {
    let [direct, routed] = both();
    assert_eq!(routed.names(), components());
    let routers = ["router-1", "router-2", "router-3"].map(str::to_owned);
    assert_eq!(&routed.names() - &direct.names(), routers.into());
}

#[test]
fn every_file_that_is_mounted_or_built_is_there() {
    let ([_, compose], mut mounted) = (both(), 0);
    for (name, service) in compose.services() {
        for mount in items(&service["volumes"]).map(text) {
            // The variable's default has a colon, too.
            let mount = mount.replace(FILES, "./examples/fleet");
            let (source, target) = mount.split_once(':').unwrap();
            if source.starts_with('.') {
                mounted += 1;
                assert!(deploy(source).exists(), "{name}: {source} is not there");
                assert!(target.ends_with(":ro"), "{name}: {mount} can be written to");
            } else {
                assert!(compose.0["volumes"].get(source).is_some(), "{name}: no volume {source}");
            }
        }
        if let Some(build) = service.get("build") {
            let file = deploy(text(&build["context"])).join(text(&build["dockerfile"]));
            let stages = read(&file);
            if let Some(target) = build.get("target") {
                assert!(stages.contains(&format!(" AS {}\n", text(target))), "{name}: no stage {target}");
            }
        }
    }
    assert!(mounted >= 12, "{mounted}");
}

#[test]
fn no_service_has_more_rights_than_needed() {
    let [_, compose] = both();
    for (name, service) in compose.services() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert_eq!(service["security_opt"], serde_json::json!(["no-new-privileges:true"]), "{name}");
        let user = text(&service["user"]).split(':').next().unwrap().parse::<u32>().unwrap();
        assert_ne!(user, 0, "{name}");
        for published in items(&service["ports"]).map(text) {
            assert!(published.starts_with("127.0.0.1:"), "{name}: {published}");
        }
    }
}

#[test]
fn admin_listeners_are_on_the_internal_network_alone() {
    let compose = compose();
    assert_eq!(compose.0["networks"]["admin"]["internal"], true);
    for (name, service, facts) in compose.daemons() {
        let admin = text(&service["environment"]["POSTERN_LISTEN_ADMIN"]);
        let there = text(&service["networks"]["admin"]["ipv4_address"]);
        assert_eq!(admin, format!("{there}:{}", facts.admin.port()), "{name}");
        let check: Vec<&str> = items(&service["healthcheck"]["test"]).map(text).collect();
        let asked = format!("http://{admin}");
        assert_eq!(check, ["CMD", "/usr/local/bin/postern", "status", &asked], "{name}");
        let mut published = items(&service["ports"]).map(|ports| port(text(ports)));
        assert!(!published.any(|published| published == facts.admin.port()), "{name}");
    }
    let targets = read(&deploy("examples/fleet/prometheus.yml"));
    for (name, _, facts) in compose.daemons() {
        assert!(
            targets.contains(&format!("\"{name}:{}\"", facts.admin.port())),
            "Prometheus does not read {name}"
        );
    }
}

#[test]
fn ports_limits_and_deadlines_are_those_of_the_configurations() {
    for (name, service, facts) in compose().daemons() {
        for published in items(&service["ports"]).map(text) {
            assert_eq!(port(published), facts.address.port(), "{name}");
        }
        assert!(
            seconds(text(&service["stop_grace_period"])) > facts.drain,
            "{name} is killed before it has drained"
        );
        let limit = service["ulimits"]["nofile"].as_u64().unwrap_or(u64::MAX);
        assert!(limit >= facts.descriptors, "{name}: {limit}");
    }
}

#[test]
fn every_variable_and_address_leads_somewhere() {
    let [direct, routed] = both();
    for (name, service) in direct.services().chain(routed.services()) {
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            if variable.starts_with("POSTERN_") {
                assert_variable_is_known(variable);
            }
            let value = text(value);
            for (_, rest) in value.match_indices("://").map(|(at, _)| value.split_at(at + 3)) {
                let (host, rest) = rest.split_once(':').unwrap();
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                let known = host == "gateway" || direct.0["services"].get(host).is_some();
                assert!(known && rest[..end].parse::<u16>().is_ok(), "{name}: {variable} is {value}");
            }
        }
    }
    // The agent reaches a gateway by the name of its service, which no challenge has.
    assert!(example("fleet").client.gateway.origin.is_some());
}

/// The `-p` of a service's command.
fn listens_on(service: &Value) -> u16 {
    let command: Vec<&str> = items(&service["command"]).map(text).collect();
    let at = command.iter().position(|word| *word == "-p").expect("a port");
    command[at + 1].parse().unwrap()
}

#[test]
fn the_gateways_reach_three_replicas_each_in_one_way() {
    let [direct, routed] = both();
    for (compose, kind) in [(&direct, "memcached"), (&routed, "router")] {
        let mut gateways = 0;
        for (name, service, _) in
            compose.daemons().into_iter().filter(|(name, ..)| name.starts_with("gateway"))
        {
            gateways += 1;
            let replicas = text(&service["environment"]["POSTERN_STORE_MEMCACHED_REPLICAS"]);
            let replicas: Vec<Vec<String>> = serde_json::from_str(replicas).unwrap();
            let wanted = (1..=3).map(|number| {
                let host = format!("{kind}-{number}");
                let port = listens_on(&compose.0["services"][&host]);
                assert!(service["depends_on"].get(&host).is_some(), "{name} does not wait for {host}");
                vec![format!("{host}:{port}")]
            });
            assert_eq!(replicas, wanted.collect::<Vec<_>>(), "{name}");
            assert!(service["networks"].get("store").is_some(), "{name} does not reach {kind}");
        }
        assert_eq!(gateways, 2);
        for number in 1..=3 {
            let service = &compose.0["services"][format!("{kind}-{number}")];
            assert_eq!(service["networks"], serde_json::json!(["store"]));
        }
    }
    assert_eq!(direct.0["networks"]["store"]["internal"], true);
}

#[test]
fn every_service_that_others_wait_for_has_a_health_check() {
    let [_, compose] = both();
    for (name, service) in compose.services() {
        for (other, condition) in service["depends_on"].as_object().into_iter().flatten() {
            assert_eq!(condition["condition"], "service_healthy", "{name}: {other}");
            assert!(compose.0["services"][other].get("healthcheck").is_some(), "{name}: {other}");
        }
    }
}

#[test]
fn each_mcrouter_has_the_file_and_the_memcached_of_its_own_replica() {
    let [_, routed] = both();
    for number in 1..=3 {
        let service = &routed.0["services"][format!("router-{number}")];
        let mount = format!("{FILES}/mcrouter-{number}.json:/etc/mcrouter/mcrouter.json:ro");
        assert_eq!(service["volumes"], serde_json::json!([mount]));
        let waits: Vec<&String> = service["depends_on"].as_object().unwrap().keys().collect();
        assert_eq!(waits, [&format!("memcached-{number}")]);
    }
}
