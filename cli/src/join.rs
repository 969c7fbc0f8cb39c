//! Command `postern client join`.

use crate::args::JoinArgs;
use crate::failure::Failure;
use crate::ports::Ports;
use crate::stdio::{print_line, warn_of_secret};
use postern_client::join::{JOIN_LIMIT, Join, JoinPlace, check_join, write_join};
use postern_client::{Config, Listen, full_stop};
use postern_config::Secret;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Prefix of every join string.
const BEGINNING: &str = "postern-join-";

pub(crate) async fn join(args: JoinArgs) -> Result<(), Failure> {
    let text = read(&args.join)?;
    if text.expose() == args.join {
        warn_of_secret(
            "the join string, which holds the API key,",
            "give a file, or \"-\" and the string on standard input",
        );
    }
    let join = Join::find(text.expose()).map_err(|error| Failure::new(postern_daemon::exit::USAGE, error))?;
    let (listen, moved) = listen(&args);
    let place = JoinPlace { config: args.config.clone(), data: args.data, listen, replaces: args.force };
    let config = write_join(&join, &place)?;
    let file = args.config.display();
    if args.check {
        check_join(&config).await.map_err(|error| {
            let sentence = full_stop(&error);
            Failure::runtime(format_args!(
                "{sentence} {file} is written, and an agent that uses it keeps trying"
            ))
        })?;
    }
    print_line(format_args!(
        "{file} is written, for {} and the issuer {}.",
        config.gateway.url.list().join(", "),
        join.issuers.join(", ")
    ))?;
    moved.into_iter().try_for_each(print_line)?;
    if args.check {
        print_line(format_args!(
            "It works: the gateway gives a challenge, and the issuer has signed a token for it, which is given up."
        ))?;
    }
    print_line(format_args!(
        "\nStart the agent:\n\n    postern client --config {file}\n\nPrograms use {} as their HTTP or SOCKS5 proxy. What it does:\n\n    \
         postern client status --config {file}",
        config.listen.address
    ))?;
    Ok(())
}

/// Chooses the listeners: those of a configuration that is replaced, whose agent may run, or else free ones. Returns a sentence
/// for each usual port that is taken.
fn listen(args: &JoinArgs) -> (Listen, Vec<String>) {
    let usual = Listen::default();
    let before = args.force.then(|| postern_config::load::<Config>(&args.config, []).ok()).flatten();
    if let Some(Config { listen, .. }) = before.filter(|config| config.listen.address.ip().is_loopback()) {
        return (Listen { address: listen.address, admin: listen.admin, ..usual }, Vec::new());
    }
    let mut free = Ports::given(std::iter::empty());
    let [address, admin] = [usual.address, usual.admin].map(|address| free.one(None, address.port()));
    (Listen { address, admin, ..usual }, free.moved())
}

fn read(argument: &str) -> Result<Secret, Failure> {
    if argument.starts_with(BEGINNING) && !Path::new(argument).exists() {
        return Ok(Secret::new(argument));
    }
    let refused = |error: io::Error| match argument {
        "-" => Failure::runtime(format_args!("standard input cannot be read: {error}")),
        file => Failure::usage(format_args!(
            "{file} cannot be read: {error}; give a file with the join string, or \"-\" and the join string on standard input"
        )),
    };
    let mut source: Box<dyn Read> = match argument {
        "-" => Box::new(io::stdin()),
        file => Box::new(File::open(file).map_err(refused)?),
    };
    let mut bytes = Vec::new();
    // One byte more than `Join::find` accepts, so that it rejects longer input.
    source.by_ref().take(2 * JOIN_LIMIT as u64 + 1).read_to_end(&mut bytes).map_err(refused)?;
    Ok(Secret::new(String::from_utf8_lossy(&bytes)))
}
