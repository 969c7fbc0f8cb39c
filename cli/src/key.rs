//! `postern issuer key`: an operator's view of the keys that sign tokens.

use crate::account::{ask, config, refused};
use crate::args::{ExportKey, KeyCommand, RetireKey, RotateKey};
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_issuer::control::{self, Exported, Form, KeyRequest};

/// When the tokens of a key end.
const AFTER_GRACE: &str = "A gateway refuses its tokens once it has fetched the directory ([issuer] poll, or SIGHUP) and [issuer] \
                           removed_grace is over";
const NOW: &str = "A gateway refuses its tokens once it has fetched the directory: within [issuer] poll, earlier with the first token of the \
                   new key, or at SIGHUP. Every unspent token of it is lost";
/// What an end of a key means beside that.
const BESIDE: &str = "agents get new ones. The key is not listed any more and signs nothing; its file is kept for a week at least, under \
                      another name. Remove copies of a key of type 5 or 1 from the gateways' [issuer] secrets.";

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
    let RetireKey { id, now: revokes, yes, output } = args;
    let what = id.as_ref().map_or("every token key".to_owned(), |id| format!("the token key {id}"));
    let means = format!("{}, and {BESIDE}", if revokes { NOW } else { AFTER_GRACE });
    if !yes {
        return Err(Failure::usage(format_args!(
            "this ends {what} at once, and makes a successor of what is in use. {means} Nothing was done: add --yes to do it"
        )));
    }
    ask(KeyRequest::Retire { id, revokes }, &output, &format!("Ended: {what}. {means}"))
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
