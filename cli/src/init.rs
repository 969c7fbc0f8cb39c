//! Command `postern init`: writes configurations that work together, and the files that they need.
//!
//! The texts are those of `deploy/examples` with this machine's values. The agent is set up like any other agent: an account is
//! added to the issuer, and the agent joins.

mod files;
mod memcached;
mod next;
mod place;
mod servers;
mod template;
mod texts;

use crate::account;
use crate::args::{Init, Joining};
use crate::failure::Failure;
use crate::stdio::print;
use files::{Made, refuse_existing};
use next::ACCOUNT;
use place::Place;
use postern_client::Listen;
use postern_client::join::{Join, JoinPlace, write_join};
use postern_config::Secret;
use postern_daemon::tls::self_signed;
use postern_issuer::control::{self, AccountRequest, Line, Terms};
pub(crate) use texts::EXAMPLES;

const QUOTA: &str = "10000/1d";

/// Writes all files and prints the next commands.
pub(crate) fn run(args: &Init) -> Result<(), Failure> {
    if let Some(origin) = &args.origin {
        return servers::run(args, origin);
    }
    let place = Place::of(args)?;
    let (files, next) =
        if args.fleet { texts::of_fleet(args, &place)? } else { texts::of_one_server(args, &place)? };
    let mut names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    names.extend(["client.toml", "tls", "state"].map(str::to_owned));
    refuse_existing(&place.directory, &names)?;
    write(&place, &files)?;
    print(next.text(args, &place))
}

/// Writes all files. Removes them again on failure.
fn write(place: &Place, files: &[(String, String)]) -> Result<(), Failure> {
    let mut made = Made::default();
    made.folder(&place.path("state/gateway"))?;
    made.also(&place.path("tls"));
    let address = place.issuer.address.ip(); // loopback, like the gateways' addresses
    self_signed(&place.path("tls"), address).map_err(Failure::runtime)?;
    for (name, text) in files {
        if let Some((folder, _)) = name.rsplit_once('/') {
            made.folder(&place.path(folder))?;
        }
        made.file(&place.path(name), text)?;
    }
    for (name, text) in files.iter().filter(|(name, _)| name.starts_with("gateway")) {
        postern_gateway::check(&postern_config::parse(name, text, [])?)?;
    }
    add_agent(place, &mut made)?;
    made.keep();
    Ok(())
}

/// Adds an account to the issuer, and writes an agent's configuration with the account's API key.
fn add_agent(place: &Place, made: &mut Made) -> Result<(), Failure> {
    // The environment is ignored: it may belong to another installation.
    let config: postern_issuer::Config = postern_config::load(&place.path("issuer.toml"), [])?;
    postern_issuer::check(&config)?;
    let join = account::prepare_join(&config.join, Joining { join: true, ..Joining::default() })?;
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
        write_join(&join, &agent)?;
    }
    Ok(())
}
