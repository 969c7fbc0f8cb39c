//! Prints accounts, usage and token keys as text, JSON or CSV, and writes a secret that is shown once to a file.

use crate::args::Output;
use crate::failure::Failure;
use nix::unistd::{getuid, seteuid};
use postern_client::join::Join;
use postern_config::Secret;
use postern_daemon::files::private_file;
use postern_daemon::utc;
use postern_issuer::Burst;
use postern_issuer::control::{
    AccountChange, AccountView, CertificateView, KeptIn, Line, TierTerm, TokenKeyView, UsageRow,
};
use postern_token::UnixSeconds;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// One object a line.
    Json,
    /// Usage as comma-separated values (RFC 4180) with a header row.
    Csv,
}

impl Form {
    pub(super) fn of(output: &Output) -> Self {
        if output.json { Self::Json } else { Self::Text }
    }
}

pub(crate) struct Printer<W> {
    out: W,
    form: Form,
    accounts: u64,
    has_said: bool,
    /// The join string to print after an API key; its `api_key` is not set yet.
    pub(super) join: Option<Join>,
    /// The file for the API key or the join string, in place of `out`.
    pub(super) secret: Option<SecretFile>,
}

impl<W: Write> Printer<W> {
    pub(super) fn new(out: W, form: Form) -> Self {
        Self { out, form, accounts: 0, has_said: false, join: None, secret: None }
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        match self.form {
            Form::Csv => write!(self.out, "account,period_begins,period_ends,tokens\r\n"),
            Form::Text | Form::Json => Ok(()),
        }
    }

    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        self.has_said = true;
        if let (Line::ApiKey(key), true) = (line, self.secret.is_some()) {
            return self.hide(key);
        }
        match self.form {
            Form::Text => self.text(line)?,
            Form::Json => {
                match line {
                    Line::Account(account) => serde_json::to_writer(&mut self.out, account)?,
                    Line::Usage(row) => serde_json::to_writer(&mut self.out, row)?,
                    Line::Certificate(certificate) => serde_json::to_writer(&mut self.out, certificate)?,
                    Line::TokenKey(key) => serde_json::to_writer(&mut self.out, key)?,
                    line => serde_json::to_writer(&mut self.out, line)?,
                }
                writeln!(self.out)?;
            }
            Form::Csv => {
                let Line::Usage(row) = line else { return Ok(()) };
                let [begins, ends] = period(row);
                write!(self.out, "{},{begins},{ends},{}\r\n", field(&row.account), row.tokens)?;
            }
        }
        self.join(line)
    }

    fn text(&mut self, line: &Line) -> io::Result<()> {
        match line {
            Line::Account(account) => self.account(account),
            Line::ApiKey(key) => writeln!(
                self.out,
                "API key: {key}\nIt is shown this once. Clients send it as Authorization: Bearer KEY; the agent has it as api_key."
            ),
            Line::Certificate(certificate) => self.certificate(certificate),
            Line::TokenKey(key) => self.token_key(key),
            Line::Remark(remark) => writeln!(self.out, "{remark}"),
            Line::Usage(row) => self.usage(row),
            Line::Applied { account, change } => match change {
                AccountChange::Added => writeln!(self.out, "added {account}"),
                AccountChange::Changed(what) => writeln!(self.out, "changed {account}: {}", what.join(", ")),
                AccountChange::Removed => writeln!(self.out, "removed {account}"),
            },
            Line::Done | Line::Failed(_) => Ok(()),
        }
    }

    /// Prints `done`, or "There is none." if nothing was printed: as text only.
    pub(super) fn finish(mut self, done: &str) -> io::Result<()> {
        match self.form {
            Form::Text if !done.is_empty() => writeln!(self.out, "{done}")?,
            Form::Text if !self.has_said => writeln!(self.out, "There is none.")?,
            _ => {}
        }
        self.out.flush()
    }

    fn join(&mut self, line: &Line) -> io::Result<()> {
        let Line::ApiKey(key) = line else { return Ok(()) };
        let Some(text) = self.join_string(key)? else { return Ok(()) };
        if self.form == Form::Json {
            return writeln!(self.out, "{}", json!({ "join": text.expose() }));
        }
        writeln!(
            self.out,
            "Join string:\n\n{}\n\nIt holds the API key, so it is a secret, too. With it in a file: postern client join FILE",
            text.expose()
        )
    }

    fn join_string(&self, key: &str) -> io::Result<Option<Secret>> {
        let with_key = |join: &Join| Join { api_key: Some(Secret::new(key)), ..join.clone() }.format();
        self.join.as_ref().map(with_key).transpose().map_err(io::Error::other)
    }

    fn hide(&mut self, key: &str) -> io::Result<()> {
        let join = self.join_string(key)?;
        let Some(secret) = &mut self.secret else { return Ok(()) };
        secret.write(join.as_ref().map_or(key, Secret::expose))?;
        let (what, path) = (if join.is_some() { "join string" } else { "API key" }, secret.path().display());
        writeln!(
            self.out,
            "The {what} is in {path}, which only you can read. Remove the file once its user has it."
        )
    }

    fn account(&mut self, account: &AccountView) -> io::Result<()> {
        let AccountView { name, kept_in, enabled, terms, of_tier, keys, certificates, usage } = account;
        if self.accounts > 0 && !(keys.is_empty() && certificates.is_empty() && usage.is_empty()) {
            writeln!(self.out)?;
        }
        self.accounts += 1;
        write!(self.out, "{name}")?;
        if let Some(terms) = terms {
            let whose = |term| if of_tier.contains(&term) { " (of its tier)" } else { "" };
            match terms.quota {
                Some(quota) => write!(self.out, "  {quota}{}", whose(TierTerm::Quota))?,
                None => write!(self.out, "  no quota, for the configuration does not have its tier")?,
            }
            if let Some(Burst { tokens_per_second, burst_tokens }) = terms.burst {
                let whose = whose(TierTerm::Burst);
                write!(self.out, "  {tokens_per_second}/s, {burst_tokens} at once{whose}")?;
            }
            if let Some(tier) = &terms.tier {
                write!(self.out, "  tier {tier}")?;
            }
            if let Some(end) = terms.expires_at {
                write!(self.out, "  expires {}", utc::rfc3339(end.0))?;
            }
        }
        match kept_in {
            KeptIn::Database if *enabled => writeln!(self.out)?,
            KeptIn::Database => writeln!(self.out, "  disabled")?,
            KeptIn::Elsewhere => writeln!(self.out, "  not of this issuer's own: here is its usage")?,
            KeptIn::Removed => writeln!(self.out, "  removed: its usage is left")?,
        }
        for key in keys {
            match key.retires_at {
                Some(end) => writeln!(self.out, "  key {}, refused from {} on", key.id, utc::rfc3339(end.0))?,
                None => writeln!(self.out, "  key {}", key.id)?,
            }
        }
        certificates.iter().try_for_each(|certificate| self.certificate(certificate))?;
        usage.iter().try_for_each(|row| self.usage(row))
    }

    fn certificate(&mut self, certificate: &CertificateView) -> io::Result<()> {
        let CertificateView { id, public_key_sha256 } = certificate;
        writeln!(self.out, "  certificate {id}, whose public key has the SHA-256 {public_key_sha256}")
    }

    fn token_key(&mut self, key: &TokenKeyView) -> io::Result<()> {
        let TokenKeyView { id, token_type, phase, in_use_from, issues_until, leaves_at, file } = key;
        let [from, until, end] = [in_use_from, issues_until, leaves_at].map(|time| utc::rfc3339(time.0));
        writeln!(
            self.out,
            "{id}  type {token_type}  {phase:<8}  in use from {from}  issues until {until}  leaves at {end}  {file}"
        )
    }

    fn usage(&mut self, row: &UsageRow) -> io::Result<()> {
        let [begins, ends] = period(row);
        writeln!(self.out, "  {begins} to {ends}: {} tokens", row.tokens)
    }
}

fn period(row: &UsageRow) -> [String; 2] {
    let UnixSeconds(start) = row.period_start;
    [start, start.saturating_add(row.period_seconds)].map(utc::rfc3339)
}

/// Quotes a CSV field if required. Prefixes an apostrophe to a name that a spreadsheet would evaluate as a formula: a name
/// written directly into the database may be one.
fn field(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// A file that only the caller can read. Without a secret in it, it is removed again.
pub(super) struct SecretFile {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl SecretFile {
    /// Creates the file, which must not exist: before the request, because a key that cannot be written would be lost.
    pub(super) fn create(path: PathBuf) -> Result<Self, Failure> {
        match private_file().write(true).create_new(true).open(&path) {
            Ok(file) => Ok(Self { path, file, is_written: false }),
            Err(error) => Err(Failure::usage(format_args!(
                "cannot create {}: {error}; name a file that does not exist. Nothing was changed",
                path.display()
            ))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&mut self, secret: &str) -> io::Result<()> {
        writeln!(self.file, "{secret}")?;
        self.file.sync_all()?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_written {
            let _ = seteuid(getuid()); // root may have become the issuer's user, who cannot remove it
            let _ = std::fs::remove_file(&self.path); // an empty file is a nuisance, and no harm
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_a_reader_would_misread_them() {
        for (name, written) in [
            ("one", "one"),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("=1+1", "'=1+1"),
            ("-x,y", "\"'-x,y\""),
        ] {
            assert_eq!(field(name), written);
        }
    }
}
