//! `postern issuer account`, `usage` and `backup`: an operator's view of an issuer's accounts.

mod print;

use crate::args::{
    AccountCommand, Apply, Backup, Change, NewAccount, Output, Pace, Rotate, UsageArgs, UsageFormat,
};
use crate::daemon::environment;
use crate::failure::Failure;
use crate::join;
use crate::stdio::{Stdout, note, print_line, unprinted};
use nix::unistd::{Gid, Uid, setegid, seteuid};
use postern_config::ConfigDuration;
use postern_daemon::tls::PublicKeyDigest;
use postern_daemon::utc;
use postern_issuer::control::{self, AccountRequest, AccountsFile, Edit, Line, Refused, Request, Terms};
use postern_issuer::{AccountsError, Burst, Config};
use postern_token::UnixSeconds;
use print::{Csv, Printer};
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) fn backup(args: &Backup) -> Result<(), Failure> {
    let config = config(&args.daemon.config)?;
    control::backup(&config.keys.directory, &args.to).map_err(|error| match error {
        AccountsError::Target { .. } => Failure::usage(error),
        error => Failure::runtime(error),
    })?;
    print_line(format_args!(
        "{} has every account and its usage. The secret of their API keys is not in it: keep a copy of {} elsewhere.",
        args.to.display(),
        config.keys.directory.join("accounts.secret").display()
    ))?;
    Ok(())
}

pub(crate) fn run(command: AccountCommand) -> Result<(), Failure> {
    match command {
        AccountCommand::Add(args) => add(*args),
        AccountCommand::List(args) => ask(AccountRequest::List, &args.output, ""),
        AccountCommand::Show(args) => ask(AccountRequest::Show { name: args.name }, &args.output, ""),
        AccountCommand::Disable(args) => {
            let request = AccountRequest::SetEnabled { name: args.name, enabled: false };
            ask(request, &args.output, "It gets no tokens until it is enabled again.")
        }
        AccountCommand::Enable(args) => {
            let request = AccountRequest::SetEnabled { name: args.name, enabled: true };
            ask(request, &args.output, "It gets tokens again.")
        }
        AccountCommand::RotateKey(args) => rotate(args),
        AccountCommand::RetireKey(args) => {
            let request = AccountRequest::RetireKey { name: args.name, key: args.key };
            ask(request, &args.output, "The key is refused from now on.")
        }
        AccountCommand::AddCertificate(args) => {
            let public_key_sha256 = public_key(&args.file)?;
            ask(AccountRequest::AddCertificate { name: args.name, public_key_sha256 }, &args.output, "")
        }
        AccountCommand::RemoveCertificate(args) => {
            let request =
                AccountRequest::RemoveCertificate { name: args.name, certificate: args.certificate };
            ask(request, &args.output, "The certificate stands for no account from now on.")
        }
        AccountCommand::Quota(args) => {
            let (request, output) = change(args)?;
            ask(request, &output, "It is changed.")
        }
        AccountCommand::Remove(args) => ask(
            AccountRequest::Remove { name: args.name },
            &args.output,
            "The account and its keys are removed.",
        ),
        AccountCommand::Apply(args) => apply(args),
    }
}

fn add(args: NewAccount) -> Result<(), Failure> {
    let NewAccount { name, quota, pace, certificate, tier, expires, joining, output } = args;
    let terms = Terms {
        quota,
        burst: limit(&pace),
        tier,
        expires_at: expires.as_deref().map(|text| day(text, "--expires")).transpose()?,
    };
    let certificates = certificate.iter().map(|file| public_key(file)).collect::<Result<_, _>>()?;
    let config = config(&output.daemon.config)?;
    let join = join::prepare(&config.join, joining)?; // it reads files as the user who runs this
    act_as_owner(&config)?;
    let printer = Printer::new(with_key(), output.json).joining(join);
    print(&config, &AccountRequest::Add { name, terms, certificates }.into(), printer, "")
}

fn apply(args: Apply) -> Result<(), Failure> {
    let Apply { file, prune, output } = args;
    let AccountsFile { accounts } = postern_config::load(&file, [])?; // as the user who runs this
    let done = format!("The accounts are as {} declares them.", file.display());
    ask(AccountRequest::Apply { accounts, prune }, &output, &done)
}

fn change(args: Change) -> Result<(AccountRequest, Output), Failure> {
    let Change { name, quota, no_quota, pace, no_rate, tier, expires, output } = args;
    let quota = match quota {
        Some(quota) => Edit::Set(quota),
        None if no_quota => Edit::Clear,
        None => Edit::Keep,
    };
    let burst = match limit(&pace) {
        Some(limit) => Edit::Set(limit),
        None if no_rate => Edit::Clear,
        None => Edit::Keep,
    };
    let tier = match tier {
        Some(tier) if tier.is_empty() => Edit::Clear,
        Some(tier) => Edit::Set(tier),
        None => Edit::Keep,
    };
    let expires_at = match expires.as_deref() {
        Some("never") => Edit::Clear,
        Some(text) => Edit::Set(day(text, "--expires")?),
        None => Edit::Keep,
    };
    Ok((AccountRequest::Change { name, quota, burst, tier, expires_at }, output))
}

fn rotate(args: Rotate) -> Result<(), Failure> {
    let Rotate { name, grace, keep, output } = args;
    let grace_seconds = (!keep).then_some(grace.get().as_secs());
    let others = match grace_seconds {
        None => "The account's other keys stay good.".to_owned(),
        Some(0) => "The account's other keys are refused from now on.".to_owned(),
        Some(seconds) => {
            format!("The account's other keys are refused in {}.", ConfigDuration::secs(seconds))
        }
    };
    ask_on(with_key(), AccountRequest::RotateKey { name, grace_seconds }, &output, &others)
}

pub(crate) fn usage(args: UsageArgs) -> Result<(), Failure> {
    let since = args.since.as_deref().map(|text| day(text, "--since")).transpose()?;
    let config = config(&args.daemon.config)?;
    act_as_owner(&config)?;
    let request =
        AccountRequest::Usage { account: args.account, since: since.unwrap_or(UnixSeconds(0)) }.into();
    let out = Stdout::lock();
    match args.format {
        UsageFormat::Csv => {
            let mut csv = Csv::begin(out).map_err(unprinted)?;
            control::ask(&config, &request, &mut |line| csv.line(&line)).map_err(refused)?;
            csv.finish().map_err(unprinted)
        }
        UsageFormat::Json => {
            let mut printer = Printer::new(out, true);
            control::ask(&config, &request, &mut |line| printer.line(&line)).map_err(refused)?;
            printer.finish("").map_err(unprinted)
        }
    }
}

/// Root becomes the user whom the issuer's files belong to, so that it leaves none there that the issuer may not open.
fn act_as_owner(config: &Config) -> Result<(), Failure> {
    let directory = &config.keys.directory;
    if !Uid::effective().is_root() {
        return Ok(());
    }
    // The directory of a mounted volume may be root's and writable by a group, and what is in it the issuer's.
    let is_of_group = std::fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & 0o020 != 0);
    let database = is_of_group.then(|| directory.join("accounts.sqlite"));
    let mut candidates = database.iter().map(PathBuf::as_path).chain(directory.ancestors());
    let Some(existing) = candidates.find(|path| path.exists()) else { return Ok(()) };
    let failed = |error: &dyn Display| {
        Failure::runtime(format_args!("cannot act as the owner of {}: {error}", existing.display()))
    };
    let owner = std::fs::metadata(existing).map_err(|error| failed(&error))?;
    if owner.uid() != 0 {
        // The group first: without root's rights it could not be changed any more.
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

/// Keeps root's right to pass folders: with `DynamicUser=`, systemd has a service's below /var/lib/private, which root alone may enter.
#[cfg(target_os = "linux")]
fn keep_passing_folders() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let kept = CapabilitySet::DAC_READ_SEARCH;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    let _ = set_capabilities(None, sets); // a container's root may not have it
}

#[cfg(not(target_os = "linux"))]
fn keep_passing_folders() {}

/// Asks, and prints the answer; `done` is said to people where there is nothing else to say.
pub(crate) fn ask(request: impl Into<Request>, output: &Output, done: &str) -> Result<(), Failure> {
    ask_on(Stdout::lock(), request, output, done)
}

fn ask_on(
    out: impl io::Write,
    request: impl Into<Request>,
    output: &Output,
    done: &str,
) -> Result<(), Failure> {
    let config = config(&output.daemon.config)?;
    act_as_owner(&config)?;
    print(&config, &request.into(), Printer::new(out, output.json), done)
}

/// Standard output, for an answer with an API key, which is lost where its reader has left.
fn with_key() -> impl io::Write {
    io::BufWriter::new(io::stdout().lock())
}

fn print<W: io::Write>(
    config: &Config,
    request: &Request,
    mut printer: Printer<W>,
    done: &str,
) -> Result<(), Failure> {
    control::ask(config, request, &mut |line: Line| printer.line(&line)).map_err(refused)?;
    printer.finish(done).map_err(unprinted)
}

pub(crate) fn config(path: &Path) -> Result<Config, Failure> {
    Ok(postern_config::open::<Config>(path, environment())?.0)
}

pub(crate) fn refused(refused: Refused) -> Failure {
    Failure::new(refused.code, refused.sentence)
}

/// What an account keeps of a client's certificate, in hex.
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
