//! Command `postern up`: runs the whole system in one process on loopback.

use crate::args::Up;
use crate::failure::Failure;
use crate::ports::{Ports, usual};
use crate::process::Process;
use crate::stdio::{note, print_line};
use postern_client::{Agent, FirstHop, GatewayConfig, IssuerConfig, WalletConfig};
use postern_config::ConfigDuration;
use postern_daemon::admin::ProcessContext;
use postern_daemon::admin::live::Live;
use postern_daemon::files::DataDir;
use postern_daemon::readiness::Readiness;
use postern_daemon::tls::self_signed;
use postern_gateway::Gateway;
use postern_gateway::config::{
    ChallengeConfig, Egress, Lever, Listen, Ports as EgressPorts, PortsWord, Rule, StoreConfig,
};
use postern_issuer::Issuer;
use postern_telemetry::log::{self, LogFormat};
use postern_telemetry::traces::TracingConfig;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Names in the challenge. They contain no addresses, so tokens outlive a change of ports.
const ISSUER_NAME: &str = "issuer.localhost";
const ORIGIN: &str = "gateway.localhost";
const FIRST_HOP_ORIGIN: &str = "first-hop.localhost";
/// Maximum duration of open tunnels after Ctrl-C.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of readiness checks, and delay before a report of the parts that are not ready.
const READY_TICK: Duration = Duration::from_millis(5);
const READY_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: Up) -> Result<(), Failure> {
    check(&args)?;
    log::init_quiet(LogFormat::Text).map_err(Failure::configuration)?; // before Process does: the first call counts
    let is_new = !args.data.exists();
    let data = DataDir::open(&args.data).map_err(Failure::runtime)?;
    let started = match start(&args, &data).await {
        Ok(started) => started,
        Err(failure) => {
            if is_new {
                let _ = std::fs::remove_dir_all(&args.data); // ignored: `failure` matters
                drop(data); // its lock, after the folder: another `up` may begin at any moment
            }
            return Err(failure);
        }
    };
    let Started { process, issuer, gateway, first_hop, agent, addresses, moved } = started;
    let context = &process.context;

    // An agent that fetches its challenge before the gateway accepts clients would start with a failure.
    let (listening, shutdown) = (gateway.listening(), context.shutdown.clone());
    let in_front = first_hop.as_ref().map(Gateway::listening);
    let agent = async move {
        let all = async {
            listening.await;
            if let Some(listening) = in_front {
                listening.await;
            }
        };
        tokio::select! { () = all => {}, () = shutdown.draining() => {} }
        agent.run().await;
        Ok(())
    };
    let banner = banner(addresses, &args.data.display().to_string(), &moved);
    tokio::spawn(announce(context.readiness.clone(), banner));
    // Reports the drain on the terminal, because `up` logs nothing below "warn".
    let serving = async {
        let gateways = first_hop.into_iter().chain([gateway]);
        let mut running: JoinSet<io::Result<()>> = gateways.map(Gateway::run).collect();
        running.spawn(agent);
        running.spawn(async {
            issuer.run().await;
            Ok(())
        });
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(())
    };
    process.run(serving, DRAIN_DEADLINE, |_, text| note(text)).await
}

struct Started {
    process: Process,
    issuer: Issuer,
    gateway: Gateway,
    first_hop: Option<Gateway>,
    agent: Agent,
    /// Addresses with real ports in place of 0.
    addresses: Addresses,
    /// Sentences about ports that are taken.
    moved: Vec<String>,
}

async fn start(args: &Up, data: &DataDir) -> Result<Started, Failure> {
    let (wanted, moved) = choose(args)?;
    let daemons = if args.two_hops { 4 } else { 3 };
    let process = Process::start(LogFormat::Text, wanted.admin, daemons).await?;
    let context = &process.context;

    // The limits on connections are defaults here, so no warning is due if the limit of open files lowers them.
    let descriptors = context.descriptors;
    let mut issuer = postern_issuer::Config::loopback(wanted.issuer, &data.join("issuer"));
    lower(&mut issuer.limits.connections, NonZeroUsize::new(descriptors.most(1)));
    let issuer = Issuer::bind(issuer, context).await?;
    let mut gateway = gateway_config(args, wanted.gateway, issuer.directory_url(), data);
    lower(&mut gateway.limits.connections, Some(descriptors.most(2)));
    let authority = if args.two_hops {
        let signed = self_signed(&data.join("tls"), wanted.gateway.ip()).map_err(Failure::configuration)?;
        gateway.tls = Some(signed.tls);
        Some(signed.authority)
    } else {
        None
    };
    let config = gateway;
    let gateway = Gateway::bind(&config, context)?;
    let first_hop = match wanted.first_hop {
        Some(address) => Some(bind_first_hop(address, config, gateway.local_addr(), data, context)?),
        None => None,
    };
    let addresses = Addresses {
        gateway: gateway.local_addr(),
        first_hop: first_hop.as_ref().map(Gateway::local_addr),
        issuer: issuer.local_addr(),
        admin: process.admin,
        client: wanted.client,
    };
    let mut agent = agent_config(args, addresses, authority, data);
    lower(&mut agent.listen.connections, Some(descriptors.most(2)));
    let agent = Agent::bind(agent, context).await?;
    let addresses = Addresses { client: agent.local_addr(), ..addresses };
    Ok(Started { process, issuer, gateway, first_hop, agent, addresses, moved })
}

/// Returns the given addresses, with free ones for the rest, and a sentence for each that is taken.
fn choose(args: &Up) -> Result<(Addresses, Vec<String>), Failure> {
    let given = [
        ("--client", args.client),
        ("--gateway", args.gateway),
        ("--issuer", args.issuer),
        ("--admin", args.admin),
        ("--first-hop", args.first_hop),
    ];
    let given = given.into_iter().filter_map(|(option, address)| Some((option, address?)));
    let is_taken = |address: &SocketAddr| {
        TcpListener::bind(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let taken = given.clone().filter(|(_, address)| is_taken(address));
    let taken: Vec<_> = taken.map(|(option, address)| format!("{option} {address}")).collect();
    if !taken.is_empty() {
        return Err(Failure::runtime(format_args!(
            "{}: another program listens there: stop it, choose another port, or leave the option out, and a free one is used",
            taken.join(", ")
        )));
    }
    let mut ports = Ports::given(given.map(|(_, address)| address));
    let addresses = Addresses {
        client: ports.one(args.client, usual::CLIENT),
        gateway: ports.one(args.gateway, usual::GATEWAY),
        issuer: ports.one(args.issuer, usual::ISSUER),
        first_hop: args.two_hops.then(|| ports.one(args.first_hop, usual::SECOND_GATEWAY)),
        admin: ports.one(args.admin, usual::ADMIN),
    };
    Ok((addresses, ports.moved()))
}

/// Rejects unsafe addresses. The daemons' own errors would name configuration keys, and `up` has no configuration.
fn check(args: &Up) -> Result<(), Failure> {
    let reached = |address: &SocketAddr| !address.ip().is_loopback();
    if let Some(client) = args.client.filter(reached).filter(|_| !args.allow_remote) {
        return Err(Failure::usage(format_args!(
            "--client {client}: this is not a loopback address, and other machines that reach it could spend your tokens. \
             Write --client 127.0.0.1:{}, or add --allow-remote if that is what you want",
            client.port()
        )));
    }
    if let Some(issuer) = args.issuer.filter(reached) {
        return Err(Failure::usage(format_args!(
            "--issuer {issuer}: this is not a loopback address, and the issuer of `postern up` has no accounts, so everyone \
             who reaches it could have tokens. Write --issuer 127.0.0.1:{}, or run `postern issuer --config FILE` with \
             accounts",
            issuer.port()
        )));
    }
    Ok(())
}

fn gateway_config(
    args: &Up,
    address: SocketAddr,
    directory: String,
    data: &DataDir,
) -> postern_gateway::Config {
    let lever = Lever::OpenEgress;
    let egress = if args.open_egress {
        Egress {
            private: true,
            ports: EgressPorts::Word(PortsWord::Any),
            udp: EgressPorts::Word(PortsWord::Any),
            lever,
            ..Egress::default()
        }
    } else {
        Egress { lever, ..Egress::default() }
    };
    postern_gateway::Config {
        listen: Listen { address, ..Listen::default() },
        tls: None,
        peers: None,
        issuer: postern_gateway::config::Issuer { directory: Some(directory), ..Default::default() },
        challenge: ChallengeConfig {
            issuer_name: ISSUER_NAME.into(),
            origin: ORIGIN.into(),
            max_age: ConfigDuration::minutes(10),
        },
        store: StoreConfig { path: data.join("spent"), ..StoreConfig::default() },
        egress,
        limits: Default::default(),
        drain: Default::default(),
        log: Default::default(),
        tracing: tracing(args.traces.clone()),
    }
}

/// Binds the gateway in front of `second`, the gateway of `config`. It opens tunnels to that gateway only.
fn bind_first_hop(
    address: SocketAddr,
    config: postern_gateway::Config,
    second: SocketAddr,
    data: &DataDir,
    process: &ProcessContext,
) -> Result<Gateway, Failure> {
    let mut config = config;
    config.listen.address = address;
    config.tls = None;
    config.challenge.origin = FIRST_HOP_ORIGIN.into();
    config.store.path = data.join("first-hop-spent");
    config.egress = Egress { rules: only(second).map_err(Failure::configuration)?, ..Egress::default() };
    // The live page's sections belong to the gateway that opens tunnels to targets. The first hop only adds a section for its
    // checks.
    let apart = ProcessContext { live: Live::default(), ..process.clone() };
    process.live.adopt(&apart.live, "checks", ("first-hop-checks", "First hop: double-spend checks"));
    Ok(Gateway::bind(&config, &apart)?)
}

/// Returns the egress rules of a gateway that opens tunnels to one address only.
fn only(address: SocketAddr) -> Result<Vec<Rule>, String> {
    Ok(vec![Rule::allow(address.to_string().parse()?), Rule::deny("*".parse()?)])
}

fn lower<T: Ord + Copy>(limit: &mut T, most: Option<T>) {
    *limit = most.map_or(*limit, |most| most.min(*limit));
}

/// Samples every request: one person's machine sends few, and traces are enabled here in order to be read.
fn tracing(endpoint: Option<String>) -> TracingConfig {
    TracingConfig { endpoint, sample_ratio: 1.0, ..TracingConfig::default() }
}

fn agent_config(
    args: &Up,
    addresses: Addresses,
    authority: Option<PathBuf>,
    data: &DataDir,
) -> postern_client::Config {
    let mut config = postern_client::Config::new(addresses.gateway_url(), data.join("wallet"));
    config.gateway.ca = authority;
    config.first_hop = addresses.first_hop.map(|address| FirstHop {
        gateway: GatewayConfig::at(format!("http://{address}")),
        issuer: IssuerConfig {
            url: Some(format!("http://{}", addresses.issuer).into()),
            ..IssuerConfig::default()
        },
        wallet: WalletConfig::at(data.join("first-hop-wallet")),
    });
    config.listen.address = addresses.client;
    config.listen.allow_remote = args.allow_remote;
    config.issuer.url = Some(format!("http://{}", addresses.issuer).into());
    config
}

#[derive(Clone, Copy)]
struct Addresses {
    client: SocketAddr,
    gateway: SocketAddr,
    first_hop: Option<SocketAddr>,
    issuer: SocketAddr,
    admin: SocketAddr,
}

impl Addresses {
    /// Returns the gateway's URL. Behind a first hop the gateway has TLS, so that the first hop cannot read the connection.
    fn gateway_url(self) -> String {
        let scheme = if self.first_hop.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.gateway)
    }
}

/// Prints the banner once everything is ready. Logs the reasons once if that takes longer than `READY_PATIENCE`.
async fn announce(readiness: Readiness, banner: String) {
    let began = Instant::now();
    let mut is_late = false;
    loop {
        let reasons = readiness.reasons();
        if reasons.is_empty() {
            let _ = print_line(banner); // `up` continues if its reader has gone
            return;
        }
        if !is_late && began.elapsed() > READY_PATIENCE {
            is_late = true;
            tracing::warn!(
                "not ready after {} s: {}; it keeps trying",
                READY_PATIENCE.as_secs(),
                reasons.join("; ")
            );
        }
        tokio::time::sleep(READY_TICK).await;
    }
}

fn banner(addresses: Addresses, data: &str, moved: &[String]) -> String {
    let Addresses { client, first_hop, issuer, admin, .. } = addresses;
    let gateway = addresses.gateway_url();
    let moved: String = moved.iter().map(|sentence| format!("\n{sentence}")).collect();
    let (paid, in_front) = match first_hop {
        None => ("with one token", String::new()),
        Some(address) => (
            "with one token, and the connection to its gateway\nwith one of the first hop's",
            format!(
                "\n    first    http://{address}    (the first hop: it opens tunnels to the gateway alone)"
            ),
        ),
    };
    format!(
        "Postern is ready. Each tunnel through the agent is paid for {paid}.

    curl -x http://{client} https://example.com/

A browser takes {client} as its HTTP or SOCKS5 proxy.

    agent    http://{client}{in_front}
    gateway  {gateway}
    issuer   http://{issuer}
    admin    http://{admin}/    (the live page; /metrics, /readyz)
    data     {data}    (keys, spent records, wallet: kept when it stops)
{moved}
Ctrl-C stops it."
    )
}
