//! `postern token`: minting and inspecting.

use crate::args::{Inspect, Mint};
use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use postern_client::mint::{IssuerClient, fetch_challenge};
use postern_service::config::Secret;
use postern_service::exit;
use postern_token::header::{Challenge, format_authorization};
use postern_token::{TokenChallenge, TokenType};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;

/// The most that is read of standard input: the longest challenge there can be, and room to spare.
const INPUT_LIMIT: u64 = 1 << 20;

/// Mints tokens and writes each as soon as it is there: what an interruption leaves is good.
pub(crate) async fn mint(args: Mint) -> Result<(), Failure> {
    let issuer = IssuerClient::new(&args.issuer, args.api_key.clone().map(Secret::new), args.ca.clone())
        .map_err(|error| Failure::new(exit::USAGE, error))?;
    let challenge = match &args.gateway {
        Some(gateway) => fetch_challenge(gateway, args.ca.as_deref()).await.map_err(Failure::runtime)?,
        None => originless(&args.issuer)?,
    };
    let key = issuer.key_for(&challenge).await.map_err(Failure::runtime)?;
    let mut out = output(&args)?;
    let progress = progress(args.count);
    let (mut written, mut count) = (Ok(()), 0u32);
    let minted = issuer
        .mint(&challenge.bytes, &key, args.count as usize, |token| {
            progress.inc(1);
            written = writeln!(out, "{}", format_authorization(&token)).and_then(|()| out.flush());
            count += u32::from(written.is_ok());
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await;
    progress.finish_and_clear();
    written.map_err(|error| Failure::runtime(format_args!("cannot write the tokens: {error}")))?;
    minted.map(drop).map_err(|error| Failure::runtime(format_args!("{error} ({count} minted)")))
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

fn output(args: &Mint) -> Result<Box<dyn Write>, Failure> {
    let Some(path) = &args.out else { return Ok(Box::new(io::stdout())) };
    // Tokens are worth money and cannot be minted again for nothing: never over another file.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        Failure::runtime(format_args!(
            "cannot create {}: {error}; name a file that does not exist",
            path.display()
        ))
    })?;
    Ok(Box::new(file))
}

/// A bar on a terminal, nothing elsewhere.
fn progress(count: u32) -> ProgressBar {
    if count == 1 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tokens, {per_sec}, {eta} left");
    ProgressBar::new(u64::from(count)).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Says what a value holds.
pub(crate) fn inspect(args: Inspect) -> Result<(), Failure> {
    let value = match args.value {
        Some(value) => value,
        None => {
            let mut input = String::new();
            io::stdin().take(INPUT_LIMIT).read_to_string(&mut input).map_err(Failure::runtime)?;
            input
        }
    };
    let inspection = postern_token::inspect(value.trim()).map_err(|error| Failure::new(1, error))?;
    let _ = write!(io::stdout(), "{inspection}"); // a reader that has gone away has seen enough
    Ok(())
}
