//! The files of a fleet on separate machines, with the names that clients use: they need no edits.

use super::files::{Made, refuse_existing};
use super::memcached::capacity;
use super::next;
use super::template::Template;
use super::texts::{FLEET_GATEWAY, FLEET_ISSUER, REPLICAS};
use crate::args::Init;
use crate::failure::Failure;
use crate::stdio::print;
use http::Uri;
use postern_client::join::Join;
use postern_token::DIRECTORY_PATH;
use std::path::Path;

/// Folders in which the units of deploy/systemd may write.
const GATEWAY_STATE: &str = "/var/lib/postern-gateway";
const ISSUER_STATE: &str = "/var/lib/postern-issuer";

struct Server {
    host: String,
    port: u16,
    has_tls: bool,
}

/// Writes the files and prints the destination of each.
pub(super) fn run(args: &Init, origin: &str) -> Result<(), Failure> {
    let (gateway_urls, issuer_url) = (&args.gateway_url, args.issuer_url.as_deref().unwrap_or_default());
    let join = Join {
        gateways: gateway_urls.clone(),
        origin: Some(origin.to_owned()),
        gateway_ca: None,
        issuers: vec![issuer_url.to_owned()],
        issuer_ca: None,
        api_key: None,
    };
    join.check().map_err(Failure::usage)?;
    let issuer = Server::of(issuer_url)?;
    let gateways = gateway_urls.iter().map(|url| Server::of(url)).collect::<Result<Vec<_>, _>>()?;
    if args.memcached.len() != REPLICAS {
        return Err(Failure::usage(
            "--memcached: name three, HOST:PORT each, on machines that fail apart: two of them decide",
        ));
    }
    if args.acme
        && (gateways.len() == 1 || !issuer.has_tls || gateways.iter().any(|gateway| !gateway.has_tls))
    {
        return Err(Failure::usage(
            "--acme: the authority looks for each name at one server, so give each gateway its own https:// URL \
             (--gateway-url, several times), and the issuer another. Several gateways behind one name need one certificate as \
             files: leave --acme out",
        ));
    }

    let mut files = Vec::new();
    for (number, gateway) in (1..).zip(&gateways) {
        let name =
            if gateways.len() == 1 { "gateway.toml".to_owned() } else { format!("gateway-{number}.toml") };
        files.push((name, of_gateway(args, gateway, (origin, &issuer.host), issuer_url)?));
    }
    files.push(("issuer.toml".to_owned(), of_issuer(args, &issuer, origin, issuer_url)?));
    for (name, text) in &files {
        match name.as_str() {
            "issuer.toml" => drop(postern_config::parse::<postern_issuer::Config>(name, text, [])?),
            _ => drop(postern_config::parse::<postern_gateway::Config>(name, text, [])?),
        }
    }
    let directory = std::path::absolute(&args.directory).map_err(Failure::usage)?;
    refuse_existing(&directory, &files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())?;
    let mut made = Made::default();
    made.folder(&directory)?;
    for (name, text) in &files {
        made.file(&directory.join(name), text)?;
    }
    made.keep();
    let gateways = &files[..gateways.len()];
    print(text(args, &directory, gateways))
}

impl Server {
    fn of(url: &str) -> Result<Self, Failure> {
        let unreadable = || Failure::usage(format_args!("{url}: write http://host:port or https://host"));
        let parsed: Uri = url.parse().map_err(|_| unreadable())?;
        let has_tls = parsed.scheme_str() == Some("https");
        let host = parsed.host().ok_or_else(unreadable)?.to_owned();
        Ok(Self { host, port: parsed.port_u16().unwrap_or(if has_tls { 443 } else { 80 }), has_tls })
    }

    /// Sets the listener to all addresses, with the certificate that the server's URL requires.
    fn listening(&self, args: &Init, template: Template, state: &str) -> Result<Template, Failure> {
        let template = template.set("listen", "address", format!("0.0.0.0:{}", self.port))?;
        match (self.has_tls, args.acme) {
            (false, _) => Ok(template),
            (true, false) => template.switch_on("tls"),
            (true, true) => template
                .set("tls.acme", "names", vec![self.host.clone()])?
                .set("tls.acme", "agree_to_terms", true)?
                .set("tls.acme", "state", format!("{state}/certificate")),
        }
    }
}

fn of_gateway(
    args: &Init,
    gateway: &Server,
    (origin, issuer_name): (&str, &str),
    issuer_url: &str,
) -> Result<String, Failure> {
    let directory = format!("{}{DIRECTORY_PATH}", issuer_url.trim_end_matches('/'));
    let replicas: Vec<_> = args.memcached.iter().map(|address| vec![address.clone()]).collect();
    let template = gateway
        .listening(args, Template::new("fleet/gateway.toml", FLEET_GATEWAY), GATEWAY_STATE)?
        .set("challenge", "issuer_name", issuer_name)?
        .set("challenge", "origin", origin)?
        .set("issuer", "directory", directory)?
        .set("issuer", "saved", format!("{GATEWAY_STATE}/issuer-keys.json"))?
        .set("store.memcached", "replicas", replicas)?;
    Ok(template.finish(&[]))
}

fn of_issuer(args: &Init, issuer: &Server, origin: &str, issuer_url: &str) -> Result<String, Failure> {
    let template = issuer
        .listening(args, Template::new("fleet/issuer.toml", FLEET_ISSUER), ISSUER_STATE)?
        .set("keys", "directory", format!("{ISSUER_STATE}/keys"))?
        .set("join", "gateways", args.gateway_url.clone())?
        .set("join", "issuers", vec![issuer_url])?
        .set("join", "origin", origin)?;
    Ok(template.finish(&[]))
}

fn text(args: &Init, directory: &Path, gateways: &[(String, String)]) -> String {
    let names: Vec<&str> = gateways.iter().map(|(name, _)| name.as_str()).collect();
    let (names, folder) = (names.join(" "), next::quoted(directory));
    let about = match gateways.len() {
        1 => "for each gateway behind the name",
        _ => "one for each gateway",
    };
    let memcacheds =
        args.memcached.iter().map(|address| format!("    {}\n", super::memcached::start(address)));
    let memcacheds: String = memcacheds.collect();
    let has_tls = args.gateway_url.iter().any(|url| url.starts_with("https://"));
    let certificate = match (args.acme, has_tls) {
        (true, _) => {
            "of Let's Encrypt, to whose terms of service the files agree. Port 443 of each name has to lead to its server."
        }
        (false, true) => {
            "put yours where the files name it, /etc/postern/gateway.pem and .key, and issuer.pem and .key."
        }
        (false, false) => "none, for a load balancer in front that ends TLS.",
    };
    let capacity = capacity(super::memcached::MEMORY);
    format!(
        "{folder} has

    {names}
        {about}, as /etc/postern/gateway.toml
    issuer.toml
        for the issuer, as /etc/postern/issuer.toml

On the machines of the memcacheds:

{memcacheds}
Where the package is installed and a file is in its place:

    postern issuer account add NAME --quota 10000/1d --join --config /etc/postern/issuer.toml
    systemctl enable --now postern-issuer.socket postern-issuer
    systemctl enable --now postern-gateway.socket postern-gateway

The first prints the join string of an agent: postern client join FILE,
which has it.
Certificate: {certificate}
Store: {capacity}
"
    )
}
