//! Accounts, usage and token keys for people, for programs and for spreadsheets.

use postern_client::join::Join;
use postern_config::Secret;
use postern_daemon::utc;
use postern_issuer::control::{
    AccountChange, AccountView, CertificateView, Here, KeptIn, Line, TierTerm, TokenKeyView, UsageRow,
};
use postern_issuer::{Burst, Quota};
use postern_token::UnixSeconds;
use serde_json::json;
use std::io::{self, Write};

/// Lines of text, or of JSON.
pub(crate) struct Printer<W> {
    out: W,
    is_json: bool,
    accounts: u64,
    has_said: bool,
    /// A join string that is complete with the API key.
    join: Option<Join>,
}

impl<W: Write> Printer<W> {
    pub(super) fn new(out: W, is_json: bool) -> Self {
        Self { out, is_json, accounts: 0, has_said: false, join: None }
    }

    /// Prints a join string after the API key.
    pub(super) fn joining(self, join: Option<Join>) -> Self {
        Self { join, ..self }
    }

    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        self.has_said = true;
        if self.is_json {
            match line {
                Line::Account(account) => serde_json::to_writer(&mut self.out, account)?,
                Line::Usage(row) => serde_json::to_writer(&mut self.out, row)?,
                Line::Certificate(certificate) => serde_json::to_writer(&mut self.out, certificate)?,
                Line::TokenKey(key) => serde_json::to_writer(&mut self.out, key)?,
                line => serde_json::to_writer(&mut self.out, line)?,
            }
            writeln!(self.out)?;
            return self.join(line);
        }
        match line {
            Line::Account(account) => self.account(account),
            Line::ApiKey(key) => {
                writeln!(
                    self.out,
                    "API key: {key}\nIt is shown this once. Clients send it as Authorization: Bearer KEY; the agent has it as api_key."
                )?;
                self.join(line)
            }
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

    /// For people, where nothing was said.
    pub(super) fn finish(mut self, done: &str) -> io::Result<()> {
        if !done.is_empty() && !self.is_json {
            writeln!(self.out, "{done}")?;
        } else if !self.has_said && !self.is_json {
            writeln!(self.out, "There is none.")?;
        }
        self.out.flush()
    }

    fn join(&mut self, line: &Line) -> io::Result<()> {
        let (Line::ApiKey(key), Some(join)) = (line, &self.join) else { return Ok(()) };
        let join = Join { api_key: Some(Secret::new(key.as_str())), ..join.clone() };
        let text = join.format().map_err(io::Error::other)?;
        if self.is_json {
            return writeln!(self.out, "{}", json!({ "join": text.expose() }));
        }
        writeln!(
            self.out,
            "Join string:\n\n{}\n\nIt holds the API key, so it is a secret, too. With it in a file: postern client join FILE",
            text.expose()
        )
    }

    fn account(&mut self, account: &AccountView) -> io::Result<()> {
        let AccountView { name, kept_in, enabled, terms, of_tier, here, keys, certificates, usage } = account;
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
            here.as_ref().map_or(Ok(()), |here| self.here(here))?;
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

    /// What this issuer gives, and whether that is nothing.
    fn here(&mut self, here: &Here) -> io::Result<()> {
        let Here { share, quota, next } = here;
        let nothing =
            |quota: &Quota| if quota.tokens() == 0 { "nothing".to_owned() } else { quota.to_string() };
        write!(self.out, "  of which this issuer gives {} (share {share})", nothing(quota))?;
        match next {
            Some(next) => write!(self.out, ", from the next period on {}", nothing(next)),
            None => Ok(()),
        }
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

/// Comma-separated values (RFC 4180), with a row of names.
pub(super) struct Csv<W>(W);

impl<W: Write> Csv<W> {
    pub(super) fn begin(mut out: W) -> io::Result<Self> {
        write!(out, "account,period_begins,period_ends,tokens\r\n")?;
        Ok(Self(out))
    }

    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        let Line::Usage(row) = line else { return Ok(()) };
        let [begins, ends] = period(row);
        write!(self.0, "{},{begins},{ends},{}\r\n", field(&row.account), row.tokens)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn period(row: &UsageRow) -> [String; 2] {
    let UnixSeconds(start) = row.period_start;
    [start, start.saturating_add(row.period_seconds)].map(utc::rfc3339)
}

/// In quotation marks where it has to be. A name that a spreadsheet would take for a formula begins with an apostrophe: one that
/// was written into the database by hand may be such a name.
fn field(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
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
