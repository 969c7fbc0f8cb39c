//! `postern init`: configurations that work together at once, and what they need.
//!
//! The texts are those of `deploy/examples`, with the values of this machine. The agent's configuration and its API key come as
//! for any other agent: an account is added to the issuer, and the agent joins.

mod files;
mod fleet;
mod memcached;
mod next;
mod servers;
mod template;

use crate::args::{Init, Joining};
use crate::failure::Failure;
use crate::ports::{self, Ports};
use crate::stdio::print;
use crate::{account, join};
use files::{Made, refuse_existing};
use memcached::Found;
use next::Next;
use postern_client::Listen;
use postern_client::join::{Join, JoinPlace, write_join};
use postern_config::Secret;
use postern_daemon::tls::self_signed;
use postern_issuer::control::{self, AccountRequest, Line, Terms};
use postern_token::DIRECTORY_PATH;
use std::net::SocketAddr;
use std::path::PathBuf;
use template::Template;

/// The names in the challenge, which no address is a part of: tokens outlive a change of ports.
const ISSUER_NAME: &str = "issuer.localhost";
const ORIGIN: &str = "gateway.localhost";
/// The agent's account.
const ACCOUNT: &str = "agent";
const QUOTA: &str = "10000/1d";

/// A fleet is watched by Prometheus, whose package for Debian starts one on 9090.
const ADMIN_PORT_OF_FLEET: u16 = 9190;
const PROMETHEUS_PORT: u16 = 9490;
const GRAFANA_PORT: u16 = 3000;

const GATEWAY: &str = include_str!("../../deploy/examples/one-server/gateway.toml");
const ISSUER: &str = include_str!("../../deploy/examples/one-server/issuer.toml");
/// What the Debian package installs in /etc/postern, to be edited.
pub(crate) const EXAMPLES: [&str; 2] = [GATEWAY, ISSUER];

/// Writes everything, and says what to type next.
pub(crate) fn run(args: &Init) -> Result<(), Failure> {
    if let Some(origin) = &args.origin {
        return servers::run(args, origin);
    }
    let place = Place::of(args)?;
    let texts = if args.fleet { fleet::texts(args, &place)? } else { one_server(args, &place)? };
    let mut names: Vec<String> = texts.files.iter().map(|(name, _)| name.clone()).collect();
    names.extend(["client.toml", "tls", "state"].map(str::to_owned));
    refuse_existing(&place.directory, &names)?;
    write(&place, &texts)?;
    print(texts.next.text(args, &place))
}

/// Where everything is, and where everything listens.
struct Place {
    directory: PathBuf,
    /// The gateways, in the agent's order of preference.
    gateways: Vec<Listener>,
    issuer: Listener,
    client: Listener,
    /// Of a fleet.
    prometheus: SocketAddr,
    grafana: SocketAddr,
    /// What was taken, and what is used in its place.
    moved: Vec<(SocketAddr, SocketAddr)>,
}

/// A daemon's two addresses.
#[derive(Clone, Copy)]
struct Listener {
    address: SocketAddr,
    admin: SocketAddr,
}

/// What is to be written, each file by its name in the folder.
struct Texts {
    files: Vec<(String, String)>,
    /// Of them the gateways' configurations.
    gateways: Vec<String>,
    next: Next,
}

impl Place {
    fn of(args: &Init) -> Result<Self, Failure> {
        let absolute = std::path::absolute(&args.directory);
        // "DIR/.." and the like would stand in every path.
        let directory = absolute.map_err(Failure::usage)?.components().collect();
        let (first_admin, daemons) = if args.fleet { (ADMIN_PORT_OF_FLEET, 4) } else { (ports::ADMIN, 3) };
        let given = [args.client, args.gateway, args.second_gateway, args.issuer, args.admin];
        let mut free = Ports::beside(given.into_iter().flatten());
        let gateway = free.one(args.gateway, ports::GATEWAY);
        let issuer = free.one(args.issuer, ports::ISSUER);
        let client = free.one(args.client, ports::CLIENT);
        let first = free.row(args.admin, first_admin, daemons);
        let admin = |offset: u16| {
            let port = first.port().checked_add(offset);
            port.map(|port| SocketAddr::new(first.ip(), port)).ok_or_else(|| {
                Failure::usage(format_args!("--admin {first}: there are not enough ports after it"))
            })
        };
        let mut gateways = vec![Listener { address: gateway, admin: first }];
        if args.fleet {
            let address = free.one(args.second_gateway, ports::SECOND_GATEWAY);
            gateways.push(Listener { address, admin: admin(3)? });
        }
        let place = Self {
            directory,
            gateways,
            issuer: Listener { address: issuer, admin: admin(1)? },
            client: Listener { address: client, admin: admin(2)? },
            moved: free.moved().to_vec(),
            // Only the printed commands name them.
            prometheus: free.one(None, PROMETHEUS_PORT),
            grafana: free.one(None, GRAFANA_PORT),
        };
        place.check()?;
        Ok(place)
    }

    fn check(&self) -> Result<(), Failure> {
        let mut seen: Vec<SocketAddr> = Vec::new();
        for address in self.listeners().flat_map(|Listener { address, admin }| [address, admin]) {
            if !address.ip().is_loopback() {
                return Err(Failure::usage(format_args!(
                    "{address} is not a loopback address: the certificate made here is for this machine alone. Write the files, \
                     then change names, addresses and certificates in them"
                )));
            }
            if address.port() == 0 || seen.contains(&address) {
                return Err(Failure::usage(format_args!(
                    "{address}: each listener needs a port of its own, and a file has to name it"
                )));
            }
            seen.push(address);
        }
        Ok(())
    }

    fn listeners(&self) -> impl Iterator<Item = Listener> {
        self.gateways.iter().copied().chain([self.issuer, self.client])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The certificates to trust.
    fn authority(&self) -> PathBuf {
        self.path("tls/ca.pem")
    }

    /// The servers' certificate with its key.
    fn certificate(&self) -> PathBuf {
        self.path("tls/server.pem")
    }

    fn issuer_url(&self) -> String {
        format!("https://{}", self.issuer.address)
    }
}

fn one_server(args: &Init, place: &Place) -> Result<Texts, Failure> {
    let (address, found) = match args.memcached.as_slice() {
        [] => {
            let address = format!("127.0.0.1:{}", memcached::DEFAULT_PORT);
            let found = memcached::look(&address);
            (address, found)
        }
        [address] => (address.clone(), memcached::look(address)),
        _ => return Err(Failure::usage("--memcached: one gateway has one; --fleet has three")),
    };
    let shares = found == Found::Fit || !args.memcached.is_empty();
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
    Ok(Texts {
        files: vec![("gateway.toml".into(), gateway), ("issuer.toml".into(), issuer)],
        gateways: vec!["gateway.toml".into()],
        next: Next { memcacheds: vec![(address, found)], shares },
    })
}

/// What every gateway's file has.
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
        .switch_off("accounts")?
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

/// What the certificate is for, and what to put in its place.
fn about_certificate(daemon: &str) -> Vec<String> {
    vec![
        format!("Written by `postern init`. The certificate of this {daemon} is a development authority's, tls/ca.pem, which was made"),
        "for this folder: only programs configured to trust it accept it, its key is thrown away, and the certificate ends after".into(),
        format!("90 days. For others to use this {daemon}, get a certificate for its own name, by [tls.acme] or as files, and leave out `ca`"),
        "where it is trusted: docs/operate/install.md.".into(),
    ]
}

/// All of it, or nothing.
fn write(place: &Place, texts: &Texts) -> Result<(), Failure> {
    let mut made = Made::default();
    made.folder(&place.path("state/gateway"))?;
    made.also(&place.path("tls"));
    let address = place.issuer.address.ip(); // on loopback, as those of the gateways
    self_signed(&place.path("tls"), address).map_err(Failure::runtime)?;
    for (name, text) in &texts.files {
        if let Some((folder, _)) = name.rsplit_once('/') {
            made.folder(&place.path(folder))?;
        }
        made.file(&place.path(name), text)?;
    }
    for name in &texts.gateways {
        let text = texts.files.iter().find(|(file, _)| file == name).map_or("", |(_, text)| text);
        postern_gateway::check(&postern_config::parse(name, text, [])?)?;
    }
    add_agent(place, &mut made)?;
    made.keep();
    Ok(())
}

/// An account at the issuer, and an agent that has joined with its key.
fn add_agent(place: &Place, made: &mut Made) -> Result<(), Failure> {
    // Without the environment, which may be that of another installation.
    let config: postern_issuer::Config = postern_config::load(&place.path("issuer.toml"), [])?;
    postern_issuer::check(&config)?;
    let join = join::prepare(&config.join, Joining { join: true, ..Joining::default() })?;
    let terms = Terms {
        quota: Some(QUOTA.parse().map_err(Failure::runtime)?),
        burst: None,
        tier: None,
        expires_at: None,
    };
    let request = AccountRequest::Add { name: ACCOUNT.into(), terms, certificates: Vec::new() };
    let mut api_key = None;
    control::ask(&config, &request.into(), &mut |line| {
        if let Line::ApiKey(key) = line {
            api_key = Some(Secret::new(key));
        }
        Ok(())
    })
    .map_err(account::refused)?;
    let join = join.map(|join| Join { api_key, ..join });
    let agent = JoinPlace {
        config: place.path("client.toml"),
        data: place.path("state/agent"),
        listen: Listen { address: place.client.address, admin: place.client.admin, ..Listen::default() },
        replaces: false,
    };
    made.also(&agent.config);
    if let Some(join) = join {
        write_join(&join, &agent).map_err(join::unwritten)?;
    }
    Ok(())
}
