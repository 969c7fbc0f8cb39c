//! Paths and addresses of the installation that `postern init` writes.

use crate::args::Init;
use crate::failure::Failure;
use crate::ports::{Ports, usual};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Not 9090: a fleet is monitored by Prometheus, and Debian's package starts one there.
const ADMIN_PORT_OF_FLEET: u16 = 9190;
const PROMETHEUS_PORT: u16 = 9490;
const GRAFANA_PORT: u16 = 3000;

pub(super) struct Place {
    pub(super) directory: PathBuf,
    /// Gateways in the agent's order of preference.
    pub(super) gateways: Vec<Listener>,
    pub(super) issuer: Listener,
    pub(super) client: Listener,
    /// Used by a fleet only, like `grafana`.
    pub(super) prometheus: SocketAddr,
    pub(super) grafana: SocketAddr,
    /// Sentences about ports that are taken.
    pub(super) moved: Vec<String>,
}

#[derive(Clone, Copy)]
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Place {
    pub(super) fn of(args: &Init) -> Result<Self, Failure> {
        let absolute = std::path::absolute(&args.directory);
        // A trailing slash would appear in every path.
        let directory = absolute.map_err(Failure::usage)?.components().collect();
        let (first_admin, daemons) = if args.fleet { (ADMIN_PORT_OF_FLEET, 4) } else { (usual::ADMIN, 3) };
        let given = [args.client, args.gateway, args.second_gateway, args.issuer, args.admin];
        let mut free = Ports::given(given.into_iter().flatten());
        let gateway = free.one(args.gateway, usual::GATEWAY);
        let issuer = free.one(args.issuer, usual::ISSUER);
        let client = free.one(args.client, usual::CLIENT);
        let first = free.row(args.admin, first_admin, daemons);
        let admin = |offset: u16| {
            let port = first.port().checked_add(offset);
            port.map(|port| SocketAddr::new(first.ip(), port)).ok_or_else(|| {
                Failure::usage(format_args!("--admin {first}: there are not enough ports after it"))
            })
        };
        let mut gateways = vec![Listener { address: gateway, admin: first }];
        if args.fleet {
            let address = free.one(args.second_gateway, usual::SECOND_GATEWAY);
            gateways.push(Listener { address, admin: admin(3)? });
        }
        let place = Self {
            directory,
            gateways,
            issuer: Listener { address: issuer, admin: admin(1)? },
            client: Listener { address: client, admin: admin(2)? },
            moved: free.moved(),
            // Chosen after `moved` was copied: only the printed commands contain them.
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
                    "{address}: each listener needs its own port, and a file has to name it"
                )));
            }
            seen.push(address);
        }
        Ok(())
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = Listener> {
        self.gateways.iter().copied().chain([self.issuer, self.client])
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the file of the certificates to trust.
    pub(super) fn authority(&self) -> PathBuf {
        self.path("tls/ca.pem")
    }

    /// Returns the file of the servers' certificate and its key.
    pub(super) fn certificate(&self) -> PathBuf {
        self.path("tls/server.pem")
    }

    pub(super) fn issuer_url(&self) -> String {
        format!("https://{}", self.issuer.address)
    }
}
