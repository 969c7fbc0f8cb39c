//! `postern token mint`: each token is written as soon as it is there, so that what an interruption leaves is good.

use super::output::Output;
use crate::args::Mint;
use crate::failure::Failure;
use crate::stdio::{note, warn_of_secret};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use postern_client::mint::{IssuerClient, MintError};
use postern_client::{ChallengeFetchError, fetch_challenge};
use postern_client::{api_key_of, full_stop};
use postern_config::Secret;
use postern_daemon::exit;
use postern_daemon::signals::{StopSignal, StopSignals};
use postern_daemon::tls::OwnCertificate;
use postern_token::header::{Challenge, format_authorization};
use postern_token::{TokenChallenge, TokenType};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// The variable of the agent's `issuer.api_key`, which holds the same key.
const KEY_VARIABLE: &str = "POSTERN_ISSUER_API_KEY";
/// What the variable was called in `token mint` alone.
const OLD_KEY_VARIABLE: &str = "POSTERN_API_KEY";

/// Mints tokens and writes them.
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

    let mut out = Output::open(&args)?;
    let stop = Stop::on_signals()?;
    let progress = progress(args.count);
    let (mut write_error, mut written) = (None, 0);
    let minting = issuer.mint(&challenge.bytes, &key, args.count as usize, 0, |token| {
        match out.line(&format_authorization(&token)) {
            Ok(()) => {
                written += 1;
                progress.inc(1);
            }
            Err(error) => write_error = write_error.take().or(Some(error)),
        }
        // What is under way is still written: the issuer has counted it.
        if write_error.is_some() || stop.is_asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let minted = tokio::select! {
        minted = minting => Some(minted),
        () = stop.at_once() => None,
    };
    progress.finish_and_clear();
    let end = if written == args.count { End::Whole } else { end(minted, write_error, stop.first()) };
    out.close(written);
    match end {
        End::Whole => Ok(()),
        end => Err(Failure::runtime(report(&end, &out, written, args.count))),
    }
}

/// How a mint ended.
enum End {
    Whole,
    Stopped { by: StopSignal, at_once: bool },
    Unwritable(io::Error),
    Refused(MintError),
}

fn end(
    minted: Option<Result<usize, MintError>>,
    unwritable: Option<io::Error>,
    asked: Option<StopSignal>,
) -> End {
    match (minted, unwritable, asked) {
        (_, Some(error), _) => End::Unwritable(error),
        (None, None, by) => End::Stopped { by: by.unwrap_or(StopSignal::Interrupt), at_once: true },
        (Some(Err(error)), None, _) => End::Refused(error),
        (Some(Ok(_)), None, Some(by)) => End::Stopped { by, at_once: false },
        (Some(Ok(_)), None, None) => End::Whole,
    }
}

/// What happened, what there is, and how to go on.
fn report(end: &End, out: &Output, written: u32, count: u32) -> String {
    let mut text = match end {
        End::Whole => String::new(),
        End::Stopped { by, at_once: false } => format!("stopped by {by}: "),
        End::Stopped { by, at_once: true } => {
            format!("stopped at once by a second signal ({by}), and tokens that were under way are lost: ")
        }
        End::Unwritable(error) => format!("cannot write the tokens: {error}. "),
        End::Refused(error) => format!("{} ", full_stop(error)),
    };
    let left = count - written;
    text += &match written {
        0 => format!("{}o token was written", if text.ends_with(": ") { "n" } else { "N" }),
        _ => format!(
            "{} written to {out}; for the rest run the command again with {}",
            Counted(written, count),
            out.go_on(left)
        ),
    };
    text
}

/// "1 of 5 tokens was", "2 of 5 tokens were".
struct Counted(u32, u32);

impl Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.0 == 1 { "was" } else { "were" };
        write!(f, "{} of {} tokens {verb}", self.0, self.1)
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
    // Without this the request would go out without a key, and the issuer's answer would not show why.
    if given.is_none() && std::env::var_os(OLD_KEY_VARIABLE).is_some() {
        return Err(Failure::usage(format_args!(
            "the environment variable {OLD_KEY_VARIABLE} is not read: the account's key is expected in {KEY_VARIABLE}, \
             here and in the agent. Rename the variable, or unset it"
        )));
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

/// A challenge that names the issuer's host and no origin (RFC 9577, section 2.1): any origin that accepts such tokens.
fn originless(issuer: &str) -> Result<Challenge, Failure> {
    let rest = issuer.split_once("://").map_or(issuer, |(_, rest)| rest);
    let name = rest.split('/').next().unwrap_or_default();
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, name, None, &[]).map_err(|error| {
        Failure::new(exit::USAGE, format_args!("{issuer} cannot name an issuer: {error}"))
    })?;
    Ok(Challenge { bytes: challenge.serialize(), token_key: None, max_age: None })
}

/// A bar on a terminal, nothing elsewhere.
fn progress(count: u32) -> ProgressBar {
    if count == 1 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tokens, {rate}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", |state: &ProgressState, text: &mut dyn fmt::Write| {
            let _ = text.write_str(&rate(state.per_sec())); // into a string
        });
    ProgressBar::new(u64::from(count)).with_style(style)
}

/// Two figures are enough to see whether it goes well.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.1}/s") } else { format!("{per_second:.0}/s") }
}

/// Ctrl-C and SIGTERM while tokens are minted: the first lets what is under way be written, the second does not wait.
struct Stop {
    first: Arc<OnceLock<StopSignal>>,
    second: Arc<Notify>,
}

impl Stop {
    /// Begins to listen. Before that, a signal ends the process, and nothing is lost by it.
    fn on_signals() -> Result<Self, Failure> {
        let refused = |error| Failure::runtime(format_args!("cannot handle signals: {error}"));
        let mut signals = StopSignals::new().map_err(refused)?;
        let stop = Self { first: Arc::default(), second: Arc::default() };
        let (first, second) = (stop.first.clone(), stop.second.clone());
        tokio::spawn(async move {
            loop {
                let signal = signals.next().await;
                if first.set(signal).is_err() {
                    return second.notify_one();
                }
                note(format_args!(
                    "{signal}: writing the tokens that are under way; a second signal discards them and stops immediately"
                ));
            }
        });
        Ok(stop)
    }

    fn is_asked(&self) -> bool {
        self.first.get().is_some()
    }

    /// The first signal, if one came.
    fn first(&self) -> Option<StopSignal> {
        self.first.get().copied()
    }

    /// Completes with the second signal, also when it came before this was called.
    async fn at_once(&self) {
        self.second.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_no_more_figures_than_a_person_reads() {
        assert_eq!([183.2545, 9.96, 2.0, 0.0].map(rate), ["183/s", "10.0/s", "2.0/s", "0.0/s"]);
    }
}
