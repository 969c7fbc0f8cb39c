//! `postern issuer key`: an operator's view of the keys that sign tokens.

use crate::account::{ask, config, refused};
use crate::args::{ExportKey, KeyCommand, RetireKey, RotateKey};
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_issuer::control::{self, Exported, Form, KeyRequest};

/// What an end of a key means.
const RETIRED: &str = "It is not listed any more and signs nothing. A gateway refuses its tokens once it has fetched the directory \
                       ([issuer] poll, or SIGHUP) and [issuer] removed_grace is over, and agents get new ones. The file is kept for a \
                       week, as ….retired-…. Remove copies of a key of type 5 or 1 from the gateways' [issuer] secrets.";

pub(crate) fn run(command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::List(args) => ask(KeyRequest::List, &args.output, ""),
        KeyCommand::Rotate(args) => rotate(&args),
        KeyCommand::Retire(args) => retire(args),
        KeyCommand::Export(args) => export(&args),
        KeyCommand::Import(args) => {
            let keys = config(&args.output.daemon.config)?.keys;
            let request = control::to_import(&args.file, &keys, args.passphrase_file.as_deref());
            let request = request.map_err(refused)?;
            ask(request, &args.output, "The key is imported. Remove the file that it came from.")
        }
    }
}

fn rotate(args: &RotateKey) -> Result<(), Failure> {
    let in_seconds = args.ahead.map(|ahead| ahead.get().as_secs());
    let request = KeyRequest::Rotate { token_type: args.token_type, in_seconds };
    ask(
        request,
        &args.output,
        "It is listed from now on. The key before it issues until this one is in use; its tokens stay good until it leaves.",
    )
}

fn retire(args: RetireKey) -> Result<(), Failure> {
    let RetireKey { id, yes, output } = args;
    if !yes {
        return Err(Failure::usage(format_args!(
            "this ends the token key {id} at once, and makes a successor if it is in use. {RETIRED} Nothing was done: add --yes to \
             do it"
        )));
    }
    let done = format!("The token key {id} is retired. {RETIRED}");
    ask(KeyRequest::Retire { id }, &output, &done)
}

fn export(args: &ExportKey) -> Result<(), Failure> {
    let config = config(&args.daemon.config)?;
    let form = if args.plain { Form::Plain } else { Form::AsItIs };
    let exported = control::export(&config.keys, &args.id, form, &args.file).map_err(refused)?;
    let Exported { path, is_encrypted } = exported;
    let kept = match is_encrypted {
        true => {
            "It is encrypted with the passphrase of the issuer's own file; a gateway needs a copy made with --plain."
        }
        false => "Anyone who can read it can issue tokens, so keep it encrypted.",
    };
    print_line(format_args!(
        "{} has the token key {}. {kept} `postern issuer key import` takes it under the name that `key list` shows.",
        path.display(),
        args.id
    ))?;
    Ok(())
}
