//! Command `postern token mint`. Each token is written as soon as it is minted, so the output of an interrupted run is valid.

use crate::args::Mint;
use crate::failure::Failure;
use crate::stdio::{note, warn_of_secret};
use postern_client::mint::IssuerClient;
use postern_client::{ChallengeFetchError, api_key_of, fetch_challenge, full_stop};
use postern_config::Secret;
use postern_daemon::exit;
use postern_daemon::files::private_file;
use postern_daemon::signals::{StopSignal, StopSignals};
use postern_daemon::tls::OwnCertificate;
use postern_token::header::{Challenge, format_authorization};
use postern_token::{TokenChallenge, TokenType};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio::task::JoinHandle;

/// Environment variable of the agent's `issuer.api_key`, which holds the same key.
const KEY_VARIABLE: &str = "POSTERN_ISSUER_API_KEY";

pub(crate) async fn mint(args: Mint) -> Result<(), Failure> {
    let files = args.certificate.clone().zip(args.certificate_key.clone());
    let own = files.map(|(certificate, key)| OwnCertificate::load(certificate, key)).transpose();
    let own = own.map_err(Failure::usage)?;
    let issuer = IssuerClient::showing(&args.issuer, api_key(&args)?, args.ca.clone(), own);
    let issuer = issuer.map_err(Failure::usage)?;
    let challenge = match &args.gateway {
        Some(gateway) => fetch_challenge(gateway, args.ca.as_deref()).await.map_err(no_challenge)?,
        None => originless(&args.issuer)?,
    };
    let key = issuer.key_for(&challenge).await.map_err(Failure::runtime)?;

    let mut out = Output::open(args.out.clone())?;
    let (stop, second_stop) = handle_signals()?;
    let (mut write_error, mut written) = (None, 0);
    let minting = issuer.mint(&challenge.bytes, &key, args.count as usize, 0, |token| {
        match out.line(&format_authorization(&token)) {
            Ok(()) => written += 1,
            Err(error) => write_error = write_error.take().or(Some(error)),
        }
        // Tokens in flight are still written: the issuer has counted them.
        if write_error.is_some() || stop.get().is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let minted = tokio::select! {
        minted = minting => Some(minted),
        _ = second_stop => None,
    };
    out.close(written);
    let reason = match (minted, write_error, stop.get().copied()) {
        _ if written == args.count => return Ok(()),
        (_, Some(error), _) => format!("cannot write the tokens: {error}. "),
        (None, None, by) => format!(
            "stopped at once by a second signal ({}), and tokens that were under way are lost: ",
            by.unwrap_or(StopSignal::Interrupt)
        ),
        (Some(Err(error)), None, _) => format!("{} ", full_stop(&error)),
        (Some(Ok(_)), None, Some(by)) => format!("stopped by {by}: "),
        (Some(Ok(_)), None, None) => return Ok(()),
    };
    Err(Failure::runtime(format_args!("{reason}{}", rest(&reason, &out, written, args.count))))
}

/// Describes the written tokens behind the reason of an early end, and the command that continues.
fn rest(reason: &str, out: &Output, written: u32, count: u32) -> String {
    if written == 0 {
        return format!("{}o token was written", if reason.ends_with(": ") { "n" } else { "N" });
    }
    let verb = if written == 1 { "was" } else { "were" };
    let to = if matches!(out, Output::File { .. }) { ", to another file" } else { "" };
    let left = count - written;
    format!(
        "{written} of {count} tokens {verb} written to {out}; for the rest run the command again with --count {left}{to}"
    )
}

/// The destination of the tokens.
enum Output {
    Stdout,
    File { file: File, path: PathBuf },
}

impl Output {
    /// Creates the file at `path`. Never overwrites one: tokens are worth money, and a repeated mint costs quota.
    fn open(path: Option<PathBuf>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        match private_file().write(true).create_new(true).open(&path) {
            Ok(file) => Ok(Self::File { file, path }),
            Err(error) => {
                let advice = match error.kind() {
                    ErrorKind::AlreadyExists => "name a file that does not exist",
                    _ => "name a file in a directory that exists and that you may write to",
                };
                Err(Failure::usage(format_args!("cannot create {}: {error}; {advice}", path.display())))
            }
        }
    }

    /// Writes a line, unbuffered and in one piece.
    fn line(&mut self, value: &str) -> io::Result<()> {
        let line = format!("{value}\n");
        match self {
            Self::Stdout => {
                let mut out = io::stdout();
                out.write_all(line.as_bytes())?;
                out.flush()
            }
            Self::File { file, .. } => {
                let end = file.stream_position()?;
                file.write_all(line.as_bytes()).inspect_err(|_| {
                    let _ = file.set_len(end); // a full disk accepts part of a line, and the file holds whole tokens
                })
            }
        }
    }

    /// Removes a file that is empty: the next run would fail because it exists.
    fn close(&self, written: u32) {
        if let Self::File { path, .. } = self
            && written == 0
        {
            let _ = std::fs::remove_file(path); // an empty file does no harm
        }
    }
}

impl Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File { path, .. } => path.display().fmt(f),
        }
    }
}

fn api_key(args: &Mint) -> Result<Option<Secret>, Failure> {
    if let Some(file) = &args.api_key_file {
        return read_key(file).map(Some);
    }
    let given = args.api_key.as_ref().filter(|key| !key.is_empty());
    if given.is_some() && std::env::var(KEY_VARIABLE).ok().as_ref() != given {
        warn_of_secret("the API key", "give --api-key-file, or set POSTERN_ISSUER_API_KEY");
    }
    Ok(given.cloned().map(Secret::new))
}

fn read_key(file: &Path) -> Result<Secret, Failure> {
    const MOST: u64 = 64 * 1024;
    let refused = |reason: &dyn Display| {
        Failure::runtime(format_args!("the API key in {} cannot be read: {reason}", file.display()))
    };
    let mut source: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(file).map_err(|error| refused(&error))?),
    };
    let mut text = String::new();
    source.by_ref().take(MOST).read_to_string(&mut text).map_err(|error| refused(&error))?;
    api_key_of(&text).map_err(|reason| refused(&reason))
}

fn no_challenge(error: ChallengeFetchError) -> Failure {
    match error {
        ChallengeFetchError::Url(error) => Failure::usage(error),
        error => Failure::runtime(error),
    }
}

/// Creates a challenge that names the issuer's authority and no origin (RFC 9577, section 2.1): any origin that accepts such
/// tokens.
fn originless(issuer: &str) -> Result<Challenge, Failure> {
    let rest = issuer.split_once("://").map_or(issuer, |(_, rest)| rest);
    let name = rest.split('/').next().unwrap_or_default();
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, name, None, &[]).map_err(|error| {
        Failure::new(exit::USAGE, format_args!("{issuer} cannot name an issuer: {error}"))
    })?;
    Ok(Challenge { bytes: challenge.serialize(), token_key: None, max_age: None })
}

/// Starts to handle Ctrl-C and SIGTERM; before this call, a signal ends the process without any loss. Returns the first signal,
/// after which tokens in flight are still written, and a task that ends with the second one, which stops immediately.
fn handle_signals() -> Result<(Arc<OnceLock<StopSignal>>, JoinHandle<()>), Failure> {
    let refused = |error| Failure::runtime(format_args!("cannot handle signals: {error}"));
    let mut signals = StopSignals::new().map_err(refused)?;
    let first = Arc::<OnceLock<StopSignal>>::default();
    let seen = Arc::clone(&first);
    let second = tokio::spawn(async move {
        let signal = signals.next().await;
        seen.get_or_init(|| signal);
        note(format_args!(
            "{signal}: writing the tokens that are under way; a second signal discards them and stops immediately"
        ));
        signals.next().await;
    });
    Ok((first, second))
}
