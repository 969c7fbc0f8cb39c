//! The files of a fleet on this machine: two gateways on three memcacheds, each a replica of its own.

use super::memcached::{DEFAULT_PORT, free_or_fit, look};
use super::next::Next;
use super::template::Template;
use super::{Place, Texts, about_certificate, gateway, issuer};
use crate::args::Init;
use crate::failure::Failure;

pub(super) const GATEWAY: &str = include_str!("../../../deploy/examples/fleet/gateway.toml");
pub(super) const ISSUER: &str = include_str!("../../../deploy/examples/fleet/issuer.toml");
const PROMETHEUS: &str = include_str!("../../../deploy/examples/fleet/prometheus.yml");
const MCROUTER: [&str; REPLICAS] = [
    include_str!("../../../deploy/examples/fleet/mcrouter-1.json"),
    include_str!("../../../deploy/examples/fleet/mcrouter-2.json"),
    include_str!("../../../deploy/examples/fleet/mcrouter-3.json"),
];
const TWEMPROXY: &str = include_str!("../../../deploy/twemproxy/nutcracker.yml");
const RULES: [(&str, &str); 2] = [
    ("rules/alerts.yml", include_str!("../../../deploy/prometheus/rules/alerts.yml")),
    ("rules/recording.yml", include_str!("../../../deploy/prometheus/rules/recording.yml")),
];
const DASHBOARDS: [(&str, &str); 3] = [
    ("gateway.json", include_str!("../../../deploy/grafana/dashboards/gateway.json")),
    ("issuer.json", include_str!("../../../deploy/grafana/dashboards/issuer.json")),
    ("store.json", include_str!("../../../deploy/grafana/dashboards/store.json")),
];
const DATASOURCES: &str = include_str!("../../../deploy/grafana/provisioning/datasources/prometheus.yaml");
const PROVIDERS: &str = include_str!("../../../deploy/grafana/provisioning/dashboards/postern.yaml");
/// A token is spent on all, and two decide.
pub(super) const REPLICAS: usize = 3;
/// Debian's package starts a memcached on 11211, which evicts.
const FIRST_MEMCACHED: u16 = 11221;

pub(super) fn texts(args: &Init, place: &Place) -> Result<Texts, Failure> {
    let memcacheds = match args.memcached.as_slice() {
        [] => free_or_fit(FIRST_MEMCACHED, REPLICAS),
        named if named.len() == REPLICAS => named.to_vec(),
        _ => {
            return Err(Failure::usage(
                "--memcached: a fleet has three, each on a machine of its own in earnest",
            ));
        }
    };
    let replicas: Vec<_> = memcacheds.iter().map(|address| vec![address.clone()]).collect();
    let (mut files, mut gateways) = (Vec::new(), Vec::new());
    for (number, listener) in (1..).zip(&place.gateways) {
        let template = Template::new("fleet/gateway.toml", GATEWAY);
        let saved = place.path(&format!("state/gateway/issuer-keys-{number}.json"));
        let template = gateway(template, place, *listener)?.set_path("issuer", "saved", &saved)?.set(
            "store.memcached",
            "replicas",
            replicas.clone(),
        )?;
        let name = format!("gateway-{number}.toml");
        files.push((name.clone(), template.finish(&about_certificate("gateway"))));
        gateways.push(name);
    }
    files.push(("issuer.toml".into(), issuer(Template::new("fleet/issuer.toml", ISSUER), place)?));
    for (index, memcached) in memcacheds.iter().enumerate() {
        files.extend(routers(index, memcached)?);
    }
    files.push(("prometheus.yml".into(), prometheus(place)?));
    files.extend(RULES.map(|(name, text)| (name.to_owned(), text.to_owned())));
    files.extend(grafana(place)?);
    let memcacheds = memcacheds.into_iter().map(|address| (address.clone(), look(&address))).collect();
    Ok(Texts { files, gateways, next: Next { memcacheds, shares: true } })
}

/// Either router before the memcached of one replica.
fn routers(index: usize, memcached: &str) -> Result<[(String, String); 2], Failure> {
    let number = index + 1;
    let server = format!("\"memcached-{number}:{DEFAULT_PORT}\"");
    let mcrouter = Template::new("fleet/mcrouter.json", MCROUTER[index])
        .replace(&server, &format!("\"{memcached}\""))?
        .finish(&[]);
    // Of the servers in the example the first stays.
    let (head, _) = TWEMPROXY.split_once("    - ").unwrap_or((TWEMPROXY, ""));
    let twemproxy = Template::new("twemproxy/nutcracker.yml", head)
        .replace("listen: 127.0.0.1:5000", &format!("listen: 127.0.0.1:{}", 5000 + number))?
        .finish(&[]);
    Ok([
        (format!("mcrouter-{number}.json"), mcrouter),
        (format!("nutcracker-{number}.yml"), format!("{twemproxy}    - {memcached}:1 spent-{number}\n")),
    ])
}

/// The dashboards, and where Grafana finds them and their data.
fn grafana(place: &Place) -> Result<Vec<(String, String)>, Failure> {
    let dashboards = place.path("grafana/dashboards").display().to_string();
    let providers = Template::new("grafana/provisioning/dashboards/postern.yaml", PROVIDERS)
        .replace("path: $POSTERN_DASHBOARDS", &format!("path: {dashboards:?}"))?;
    let datasources = Template::new("grafana/provisioning/datasources/prometheus.yaml", DATASOURCES)
        .replace("$POSTERN_PROMETHEUS_URL", &format!("http://{}", place.prometheus))?
        .replace("$POSTERN_JAEGER_URL", "http://127.0.0.1:16686")?;
    let mut files = vec![
        ("grafana/provisioning/dashboards/postern.yaml".to_owned(), providers.finish(&[])),
        ("grafana/provisioning/datasources/prometheus.yaml".to_owned(), datasources.finish(&[])),
    ];
    files.extend(DASHBOARDS.map(|(name, text)| (format!("grafana/dashboards/{name}"), text.to_owned())));
    Ok(files)
}

fn prometheus(place: &Place) -> Result<String, Failure> {
    let gateways: Vec<String> =
        place.gateways.iter().map(|gateway| format!("{:?}", gateway.admin.to_string())).collect();
    let rules = format!("{}/rules/*.yml", place.directory.display());
    let template = Template::new("fleet/prometheus.yml", PROMETHEUS)
        .replace("/etc/prometheus/rules/*.yml", &rules)?
        .replace("\"gateway-1:9090\", \"gateway-2:9090\"", &gateways.join(", "))?
        .replace("issuer:9091", &place.issuer.admin.to_string())?
        .replace("agent:9092", &place.client.admin.to_string())?;
    Ok(template.finish(&[]))
}
