//! Commands `postern issuer account`, `key`, `usage`, `migrate` and `backup`.

mod print;

use crate::args::{
    AccountCommand, Change, Joining, KeyCommand, NewAccount, One, Output, Pace, Place, UsageArgs, UsageFormat,
};
use crate::daemon::environment;
use crate::failure::Failure;
use crate::stdio::{Stdout, note, print_line, unprinted};
use nix::unistd::{Gid, Uid, setegid, seteuid};
use postern_client::join::{Join, certificates};
use postern_config::ConfigDuration;
use postern_daemon::tls::PublicKeyDigest;
use postern_daemon::utc;
use postern_issuer::control::{
    self, AccountRequest, AccountsFile, Edit, Exported, KeyRequest, Line, MigrateTo, Refused, Request, Terms,
};
use postern_issuer::{Burst, Config, JoinConfig};
use postern_token::UnixSeconds;
use print::{Form, Printer, SecretFile};
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Effect on a retired key's tokens, without and with `--now`.
const AFTER_GRACE: &str = "A gateway refuses its tokens once it has fetched the directory ([issuer] poll, or SIGHUP) and [issuer] \
                           removed_grace is over";
const NOW: &str = "A gateway refuses its tokens once it has fetched the directory: within [issuer] poll, earlier with the first token of the \
                   new key, or at SIGHUP. Every unspent token of it is lost";
/// Further effects of retiring a key.
const CONSEQUENCES: &str = "agents get new ones. The key is not listed any more and signs nothing; its file is kept for a week at least, under \
                      another name. Remove copies of a key of type 5 or 1 from the gateways' [issuer] secrets.";

pub(crate) fn migrate(to: Place, config: &Path) -> Result<(), Failure> {
    let config = load(config)?;
    let to = match to {
        Place::Postgres => MigrateTo::Postgres,
        Place::Sqlite => MigrateTo::Sqlite,
    };
    let accounts = control::migrate(&config, to).map_err(refused)?;
    print_line(format_args!("Moved: {accounts} accounts, their usage, and the token keys."))
}

pub(crate) fn backup(to: &Path, config: &Path) -> Result<(), Failure> {
    let config = load(config)?;
    control::backup(&config, to).map_err(refused)?;
    print_line(format_args!(
        "{} has every account and its usage. The secret of their API keys is not in it: keep a copy of {} elsewhere.",
        to.display(),
        config.keys.directory.join("accounts.secret").display()
    ))
}

pub(crate) fn run(command: AccountCommand) -> Result<(), Failure> {
    let (request, output, done) = match command {
        AccountCommand::Add(args) => return add(*args),
        AccountCommand::RotateKey { name, out, grace, keep, output } => {
            let grace_seconds = (!keep).then_some(grace.get().as_secs());
            let others = match grace_seconds {
                None => "The account's other keys stay good.".to_owned(),
                Some(0) => "The account's other keys are refused from now on.".to_owned(),
                Some(seconds) => {
                    format!("The account's other keys are refused in {}.", ConfigDuration::secs(seconds))
                }
            };
            let secret = out.map(SecretFile::create).transpose()?;
            let mut printer = Printer::new(with_key(), Form::of(&output));
            printer.secret = secret;
            let request = AccountRequest::RotateKey { name, grace_seconds }.into();
            return print(&load(&output.daemon.config)?, &request, printer, &others);
        }
        AccountCommand::Apply { file, prune, output } => {
            // Before act_as_owner: with the caller's rights.
            let AccountsFile { accounts } = postern_config::load(&file, [])?;
            let done = format!("The accounts are as {} declares them.", file.display());
            return ask(AccountRequest::Apply { accounts, prune }, &output, &done);
        }
        AccountCommand::List(output) => (AccountRequest::List, output, ""),
        AccountCommand::Show(One { name, output }) => (AccountRequest::Show { name }, output, ""),
        AccountCommand::Disable(One { name, output }) => {
            let request = AccountRequest::SetEnabled { name, enabled: false };
            (request, output, "It gets no tokens until it is enabled again.")
        }
        AccountCommand::Enable(One { name, output }) => {
            (AccountRequest::SetEnabled { name, enabled: true }, output, "It gets tokens again.")
        }
        AccountCommand::RetireKey { name, key, output } => {
            (AccountRequest::RetireKey { name, key }, output, "The key is refused from now on.")
        }
        AccountCommand::AddCertificate { name, file, output } => {
            let public_key_sha256 = public_key(&file)?;
            (AccountRequest::AddCertificate { name, public_key_sha256 }, output, "")
        }
        AccountCommand::RemoveCertificate { name, certificate, output } => {
            let request = AccountRequest::RemoveCertificate { name, certificate };
            (request, output, "The certificate stands for no account from now on.")
        }
        AccountCommand::Quota(args) => {
            let (request, output) = change(args)?;
            (request, output, "It is changed.")
        }
        AccountCommand::Remove(One { name, output }) => {
            (AccountRequest::Remove { name }, output, "The account and its keys are removed.")
        }
    };
    ask(request, &output, done)
}

fn add(args: NewAccount) -> Result<(), Failure> {
    let NewAccount { name, quota, pace, certificate, tier, expires, joining, out, output } = args;
    let expires_at = expires.as_deref().map(|text| day(text, "--expires")).transpose()?;
    let terms = Terms { quota, burst: limit(&pace), tier, expires_at };
    let certificates = certificate.iter().map(|file| public_key(file)).collect::<Result<_, _>>()?;
    let config = load(&output.daemon.config)?;
    let join = prepare_join(&config.join, joining)?; // before act_as_owner: reads certificates with the caller's rights
    let secret = out.map(SecretFile::create).transpose()?; // likewise
    let mut printer = Printer::new(with_key(), Form::of(&output));
    (printer.join, printer.secret) = (join, secret);
    print(&config, &AccountRequest::Add { name, terms, certificates }.into(), printer, "")
}

/// Prepares the join string of a new account, without its API key. Reports every error before the account is created.
pub(crate) fn prepare_join(config: &JoinConfig, args: Joining) -> Result<Option<Join>, Failure> {
    if !args.join {
        return Ok(None);
    }
    let missing = |key: &str, flag: &str, example: &str| {
        Failure::usage(format_args!(
            "a join string needs {key}, and neither the command line nor [join] of the issuer's configuration has it: add {flag}, \
             or {key} = {example} under [join]. No account was made"
        ))
    };
    let gateways = if args.gateways.is_empty() { config.gateways.clone() } else { args.gateways };
    if gateways.is_empty() {
        return Err(missing("gateways", "--gateway URL", "[\"https://proxy.example\"]"));
    }
    let issuers = if args.issuers.is_empty() { config.issuers.clone() } else { args.issuers };
    if issuers.is_empty() {
        return Err(missing("issuers", "--issuer URL", "[\"https://issuer.example\"]"));
    }
    let join = Join {
        gateways,
        origin: args.origin.or_else(|| config.origin.clone()),
        gateway_ca: trusted_certificates(args.gateway_ca.as_ref().or(config.gateway_ca.as_ref()))?,
        issuers,
        issuer_ca: trusted_certificates(args.issuer_ca.as_ref().or(config.issuer_ca.as_ref()))?,
        api_key: None,
    };
    join.format().map_err(|error| Failure::usage(format_args!("{error}. No account was made")))?;
    Ok(Some(join))
}

/// Reads the certificates of a PEM file.
fn trusted_certificates(path: Option<&PathBuf>) -> Result<Option<String>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let refused = |reason: String| {
        Failure::configuration(format_args!(
            "{} cannot go into a join string: {reason}. No account was made",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let found = certificates(&text)
        .ok_or_else(|| refused("it holds no whole PEM certificate (BEGIN CERTIFICATE)".to_owned()))?;
    Ok(Some(found))
}

fn change(args: Change) -> Result<(AccountRequest, Output), Failure> {
    fn edit<T>(value: Option<T>, clears: bool) -> Edit<T> {
        match value {
            Some(value) => Edit::Set(value),
            None if clears => Edit::Clear,
            None => Edit::Keep,
        }
    }
    let Change { name, quota, no_quota, pace, no_rate, tier, expires, output } = args;
    let (is_bare, is_lasting) = (tier.as_deref() == Some(""), expires.as_deref() == Some("never"));
    let expires_at = expires.filter(|_| !is_lasting).map(|text| day(&text, "--expires")).transpose()?;
    let request = AccountRequest::Change {
        name,
        quota: edit(quota, no_quota),
        burst: edit(limit(&pace), no_rate),
        tier: edit(tier.filter(|_| !is_bare), is_bare),
        expires_at: edit(expires_at, is_lasting),
    };
    Ok((request, output))
}

pub(crate) fn usage(args: UsageArgs) -> Result<(), Failure> {
    let since = args.since.as_deref().map(|text| day(text, "--since")).transpose()?;
    let config = load(&args.daemon.config)?;
    let request =
        AccountRequest::Usage { account: args.account, since: since.unwrap_or(UnixSeconds(0)) }.into();
    let form = match args.format {
        UsageFormat::Csv => Form::Csv,
        UsageFormat::Json => Form::Json,
    };
    print(&config, &request, Printer::new(Stdout::lock(), form), "")
}

pub(crate) fn key(command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::List(output) => ask(KeyRequest::List, &output, ""),
        KeyCommand::Rotate { token_type, ahead, output } => {
            let in_seconds = ahead.map(|ahead| ahead.get().as_secs());
            ask(
                KeyRequest::Rotate { token_type, in_seconds },
                &output,
                "It is listed from now on. The key before it issues until this one is in use; its tokens stay good until it leaves.",
            )
        }
        KeyCommand::Retire { id, now: revokes, yes, output } => {
            let what = id.as_ref().map_or("every token key".to_owned(), |id| format!("the token key {id}"));
            let means = format!("{}, and {CONSEQUENCES}", if revokes { NOW } else { AFTER_GRACE });
            if !yes {
                return Err(Failure::usage(format_args!(
                    "this ends {what} at once, and makes a successor of what is in use. {means} Nothing was done: add --yes to do it"
                )));
            }
            ask(KeyRequest::Retire { id, revokes }, &output, &format!("Ended: {what}. {means}"))
        }
        KeyCommand::Export { id, file, plain, daemon } => {
            let form = if plain { control::Form::Plain } else { control::Form::AsItIs };
            let Exported { path, is_encrypted } =
                control::export(&load(&daemon.config)?, &id, form, &file).map_err(refused)?;
            let kept = match is_encrypted {
                true => {
                    "It is encrypted with the passphrase of the issuer's own file; a gateway needs a copy made with --plain."
                }
                false => "Anyone who can read it can issue tokens, so keep it encrypted.",
            };
            print_line(format_args!(
                "{} has the token key {id}. {kept} `postern issuer key import` takes it under the name that `key list` shows.",
                path.display()
            ))
        }
        KeyCommand::Import { file, passphrase_file, output } => {
            let keys = load(&output.daemon.config)?.keys;
            let request = control::to_import(&file, &keys, passphrase_file.as_deref()).map_err(refused)?;
            ask(request, &output, "The key is imported. Remove the file that it came from.")
        }
    }
}

/// Drops root for the owner of the issuer's files, so that the issuer can open every file that the command creates.
fn act_as_owner(config: &Config) -> Result<(), Failure> {
    let directory = &config.keys.directory;
    if !Uid::effective().is_root() {
        return Ok(());
    }
    // On a mounted volume, the directory may belong to root and be group-writable, while its files belong to the issuer.
    let is_of_group = std::fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & 0o020 != 0);
    let database = is_of_group.then(|| directory.join("accounts.sqlite"));
    let mut candidates = database.iter().map(PathBuf::as_path).chain(directory.ancestors());
    let Some(existing) = candidates.find(|path| path.exists()) else { return Ok(()) };
    let failed = |error: &dyn Display| {
        Failure::runtime(format_args!("cannot act as the owner of {}: {error}", existing.display()))
    };
    let owner = std::fs::metadata(existing).map_err(|error| failed(&error))?;
    if owner.uid() != 0 {
        // The group first: changing it requires root.
        setegid(Gid::from_raw(owner.gid())).map_err(|error| failed(&error))?;
        seteuid(Uid::from_raw(owner.uid())).map_err(|error| failed(&error))?;
        keep_passing_folders();
        return Ok(());
    }
    if !directory.exists() {
        note(format_args!(
            "note: {} is made by root. If the issuer runs as another user, give it to that user (chown -R); systemd does so by \
             itself for a StateDirectory= with DynamicUser=",
            directory.display()
        ));
    }
    Ok(())
}

/// Keeps `CAP_DAC_READ_SEARCH`: with `DynamicUser=`, systemd places the state below /var/lib/private, which only root may
/// traverse.
#[cfg(target_os = "linux")]
fn keep_passing_folders() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let kept = CapabilitySet::DAC_READ_SEARCH;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    let _ = set_capabilities(None, sets); // fails if a container's root lacks the capability
}

#[cfg(not(target_os = "linux"))]
fn keep_passing_folders() {}

/// Sends `request` and prints the answer. `done` is printed after the answer, for people only.
fn ask(request: impl Into<Request>, output: &Output, done: &str) -> Result<(), Failure> {
    let printer = Printer::new(Stdout::lock(), Form::of(output));
    print(&load(&output.daemon.config)?, &request.into(), printer, done)
}

/// Standard output that reports a broken pipe: an API key is printed once, so a reader that has gone is an error.
fn with_key() -> impl io::Write {
    io::BufWriter::new(io::stdout().lock())
}

fn print<W: io::Write>(
    config: &Config,
    request: &Request,
    mut printer: Printer<W>,
    done: &str,
) -> Result<(), Failure> {
    act_as_owner(config)?;
    printer.begin().map_err(unprinted)?;
    control::ask(config, request, &mut |line: Line| printer.line(&line)).map_err(refused)?;
    printer.finish(done).map_err(unprinted)
}

fn load(path: &Path) -> Result<Config, Failure> {
    Ok(postern_config::open::<Config>(path, environment())?.0)
}

pub(crate) fn refused(refused: Refused) -> Failure {
    Failure::new(refused.code, refused.sentence)
}

/// Returns the SHA-256 of the certificate's public key, in hex: the form in which an account stores it.
fn public_key(file: &Path) -> Result<String, Failure> {
    PublicKeyDigest::of_file(file).map(|key| key.to_string()).map_err(Failure::usage)
}

fn limit(pace: &Pace) -> Option<Burst> {
    Some(Burst { tokens_per_second: pace.rate?, burst_tokens: pace.burst? })
}

fn day(text: &str, argument: &str) -> Result<UnixSeconds, Failure> {
    let wrong = || {
        Failure::usage(format_args!(
            "{argument} {text}: this is no day; write it as 2027-01-31, which begins at 00:00 UTC"
        ))
    };
    utc::day(text).map(UnixSeconds).ok_or_else(wrong)
}
