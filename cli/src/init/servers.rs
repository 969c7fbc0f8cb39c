//! The files of a fleet on machines of their own, by the names that clients know: nothing in them is left to be edited.

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
use std::fmt::Write;
use std::path::Path;

/// Where the units of deploy/systemd may write.
const GATEWAY_STATE: &str = "/var/lib/postern-gateway";
const ISSUER_STATE: &str = "/var/lib/postern-issuer";

/// A server's URL, taken apart.
struct Server {
    host: String,
    port: u16,
    has_tls: bool,
}

/// Writes the files, and says where each belongs.
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
            "--acme: the authority looks for each name at one server, so give each gateway an https:// URL of its own \
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

    /// Listens on all addresses, with the certificate that its URL needs.
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

/// What to do with the files.
fn text(args: &Init, directory: &Path, gateways: &[(String, String)]) -> String {
    let names: Vec<&str> = gateways.iter().map(|(name, _)| name.as_str()).collect();
    let (names, folder) = (names.join(" "), next::quoted(directory));
    let about = match gateways.len() {
        1 => "for each gateway behind the name, as /etc/postern/gateway.toml",
        _ => "one for each gateway, as /etc/postern/gateway.toml",
    };
    let mut text = format!(
        "{folder} has\n\n    {names}\n        {about}\n    issuer.toml\n        for the issuer, as /etc/postern/issuer.toml\n\n\
         On the machines of the memcacheds:\n\n"
    );
    for address in &args.memcached {
        let _ = writeln!(text, "    {}", super::memcached::start(address)); // a String takes everything
    }
    text.push_str(
        "\nWhere the package is installed and a file is in its place:\n\n    postern issuer account add NAME --quota 10000/1d --join \
         --config /etc/postern/issuer.toml\n    systemctl enable --now postern-issuer.socket postern-issuer\n    systemctl enable --now \
         postern-gateway.socket postern-gateway\n\nThe first prints the join string of an agent: postern client join STRING.\n",
    );
    let certificates = match (args.acme, args.gateway_url.iter().any(|url| url.starts_with("https://"))) {
        (true, _) => {
            "Certificate: of Let's Encrypt, to whose terms of service the files agree. Port 443 of each name has to lead to its server.\n"
        }
        (false, true) => {
            "Certificate: put yours where the files name it, /etc/postern/gateway.pem and .key, and issuer.pem and .key.\n"
        }
        (false, false) => "Certificate: none, for a load balancer in front that ends TLS.\n",
    };
    text.push_str(certificates);
    let _ = writeln!(text, "Store: {}", capacity());
    text
}
