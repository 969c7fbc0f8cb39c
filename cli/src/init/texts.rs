//! The files of one server on this machine, or of a fleet: two gateways on three memcacheds, each of them one replica.

use super::memcached::{DEFAULT_PORT, Found, free_or_fit, look};
use super::next::Next;
use super::place::{Listener, Place};
use super::template::Template;
use crate::args::Init;
use crate::failure::Failure;
use postern_token::DIRECTORY_PATH;

/// Names in the challenge. They contain no address, so tokens outlive a change of ports.
const ISSUER_NAME: &str = "issuer.localhost";
const ORIGIN: &str = "gateway.localhost";

const GATEWAY: &str = include_str!("../../../deploy/examples/one-server/gateway.toml");
const ISSUER: &str = include_str!("../../../deploy/examples/one-server/issuer.toml");
/// Example configurations that the Debian package installs in /etc/postern.
pub(crate) const EXAMPLES: [&str; 2] = [GATEWAY, ISSUER];

pub(super) const FLEET_GATEWAY: &str = include_str!("../../../deploy/examples/fleet/gateway.toml");
pub(super) const FLEET_ISSUER: &str = include_str!("../../../deploy/examples/fleet/issuer.toml");
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
/// Number of replicas: a token is spent on all of them, and two decide.
pub(super) const REPLICAS: usize = 3;
/// Not 11211: Debian's package starts a memcached there, which evicts.
const FIRST_MEMCACHED: u16 = 11221;

/// Texts of the files to write, by name in the folder, and what to do next.
pub(super) type Texts = (Vec<(String, String)>, Next);

pub(super) fn of_one_server(args: &Init, place: &Place) -> Result<Texts, Failure> {
    let (address, found) = match args.memcached.as_slice() {
        [] => {
            let address = format!("127.0.0.1:{}", DEFAULT_PORT);
            let found = look(&address);
            (address, found)
        }
        [address] => (address.clone(), look(address)),
        _ => return Err(Failure::usage("--memcached: one gateway has one; --fleet has three")),
    };
    let shares = matches!(found, Found::Fit(_)) || !args.memcached.is_empty();
    let mut template = gateway(Template::new("one-server/gateway.toml", GATEWAY), place, place.gateways[0])?
        .set_path("store", "path", &place.path("state/gateway/spent"))?;
    if shares {
        template = template.set("store", "kind", "memcached")?.set(
            "store.memcached",
            "addresses",
            vec![address.clone()],
        )?;
    }
    let gateway = template.finish(&about_certificate("gateway"));
    let issuer = issuer(Template::new("one-server/issuer.toml", ISSUER), place)?;
    let files = vec![("gateway.toml".into(), gateway), ("issuer.toml".into(), issuer)];
    Ok((files, Next { memcacheds: vec![(address, found)], shares }))
}

fn gateway(template: Template, place: &Place, listener: Listener) -> Result<Template, Failure> {
    let directory = format!("{}{DIRECTORY_PATH}", place.issuer_url());
    listening(template, listener)?
        .set_path("tls", "certificate", &place.certificate())?
        .set_path("tls", "key", &place.certificate())?
        .set("challenge", "issuer_name", ISSUER_NAME)?
        .set("challenge", "origin", ORIGIN)?
        .set("issuer", "directory", directory)?
        .set_path("issuer", "ca", &place.authority())
}

fn issuer(template: Template, place: &Place) -> Result<String, Failure> {
    let gateways: Vec<String> =
        place.gateways.iter().map(|gateway| format!("https://{}", gateway.address)).collect();
    let template = listening(template, place.issuer)?
        .set_path("tls", "certificate", &place.certificate())?
        .set_path("tls", "key", &place.certificate())?
        .set_path("keys", "directory", &place.path("state/issuer"))?
        .set("join", "gateways", gateways)?
        .set("join", "issuers", vec![place.issuer_url()])?
        .set("join", "origin", ORIGIN)?
        .set_path("join", "gateway_ca", &place.authority())?
        .set_path("join", "issuer_ca", &place.authority())?;
    Ok(template.finish(&about_certificate("issuer")))
}

fn listening(template: Template, listener: Listener) -> Result<Template, Failure> {
    template.set("listen", "address", listener.address.to_string())?.set(
        "listen",
        "admin",
        listener.admin.to_string(),
    )
}

/// Describes the development certificate and its replacement.
fn about_certificate(daemon: &str) -> Vec<String> {
    vec![
        format!("Written by `postern init`. The certificate of this {daemon} is a development authority's, tls/ca.pem, which was made"),
        "for this folder: only programs configured to trust it accept it, its key is thrown away, and the certificate ends after".into(),
        format!("90 days. For others to use this {daemon}, get a certificate for its own name, by [tls.acme] or as files, and leave out `ca`"),
        "where it is trusted: docs/operate/install.md.".into(),
    ]
}

pub(super) fn of_fleet(args: &Init, place: &Place) -> Result<Texts, Failure> {
    let memcacheds = match args.memcached.as_slice() {
        [] => free_or_fit(FIRST_MEMCACHED, REPLICAS),
        named if named.len() == REPLICAS => named.to_vec(),
        _ => {
            return Err(Failure::usage(
                "--memcached: a fleet has three, each on its own machine in production",
            ));
        }
    };
    let replicas: Vec<_> = memcacheds.iter().map(|address| vec![address.clone()]).collect();
    let mut files = Vec::new();
    for (number, listener) in (1..).zip(&place.gateways) {
        let template = Template::new("fleet/gateway.toml", FLEET_GATEWAY);
        let saved = place.path(&format!("state/gateway/issuer-keys-{number}.json"));
        let template = gateway(template, place, *listener)?.set_path("issuer", "saved", &saved)?.set(
            "store.memcached",
            "replicas",
            replicas.clone(),
        )?;
        files.push((format!("gateway-{number}.toml"), template.finish(&about_certificate("gateway"))));
    }
    files.push(("issuer.toml".into(), issuer(Template::new("fleet/issuer.toml", FLEET_ISSUER), place)?));
    for (index, memcached) in memcacheds.iter().enumerate() {
        files.extend(routers(index, memcached)?);
    }
    files.push(("prometheus.yml".into(), prometheus(place)?));
    files.extend(RULES.map(|(name, text)| (name.to_owned(), text.to_owned())));
    files.extend(grafana(place)?);
    let memcacheds = memcacheds.into_iter().map(|address| (address.clone(), look(&address))).collect();
    Ok((files, Next { memcacheds, shares: true }))
}

/// Returns the configurations of both routers for the memcached of one replica.
fn routers(index: usize, memcached: &str) -> Result<[(String, String); 2], Failure> {
    let number = index + 1;
    let server = format!("\"memcached-{number}:{DEFAULT_PORT}\"");
    let mcrouter = Template::new("fleet/mcrouter.json", MCROUTER[index])
        .replace(&server, &format!("\"{memcached}\""))?
        .finish(&[]);
    // Only the first server of the example stays.
    let (head, _) = TWEMPROXY.split_once("    - ").unwrap_or((TWEMPROXY, ""));
    let twemproxy = Template::new("twemproxy/nutcracker.yml", head)
        .replace("listen: 127.0.0.1:5000", &format!("listen: 127.0.0.1:{}", 5000 + number))?
        .finish(&[]);
    Ok([
        (format!("mcrouter-{number}.json"), mcrouter),
        (format!("nutcracker-{number}.yml"), format!("{twemproxy}    - {memcached}:1 spent-{number}\n")),
    ])
}

/// Returns the dashboards and their provisioning for Grafana.
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
