//! Views of accounts for operators.

use super::desk::{Answer, Desk, Ended, missing};
use super::{AccountView, KeptIn, Line, Terms};
use crate::accounts::configured::Allowance;
use crate::accounts::records::{self, Record};
use crate::accounts::usage;
use crate::database::{Connection, Result as Read};
use crate::quota::Writing;
use postern_token::UnixSeconds;

impl Desk<'_> {
    /// Lists all accounts on a separate connection, so that a long list blocks no request.
    pub(super) fn list(&self, answer: Answer<'_>) -> Result<(), Ended> {
        records::all(&self.store.reader()?, |record| Ok(answer(Line::Account(self.of_database(record)))?))
    }

    pub(super) fn show(&self, name: &str, answer: Answer<'_>) -> Result<(), Ended> {
        self.settle(Some(name));
        let reader = self.store.reader()?;
        let usage = usage::of_account(&reader, name, UnixSeconds(0))?;
        let view = match records::find(&reader, name)? {
            Some(record) => self.with_credentials(&reader, record)?,
            None if usage.is_empty() => return Err(missing(name)),
            None => {
                let elsewhere = self.configured.has_authorizer;
                let kept_in = if elsewhere { KeptIn::Elsewhere } else { KeptIn::Removed };
                AccountView::bare(name.to_owned(), kept_in, elsewhere)
            }
        };
        Ok(answer(Line::Account(AccountView { usage, ..view }))?)
    }

    /// Replaces reservations by exact counts in the database, for one account in memory or for all.
    pub(super) fn settle(&self, name: Option<&str>) {
        let Some(accounts) = self.running else { return };
        let holders = match name {
            Some(name) => accounts.active.holder(name).into_iter().collect(),
            None => accounts.active.holders(),
        };
        // After a failure, such as a full disk, the recorded counts are still valid: they are upper bounds.
        let _ = accounts.ledger.write(holders, Writing::Exact);
    }

    pub(super) fn usage(
        &self,
        account: Option<&str>,
        since: UnixSeconds,
        answer: Answer<'_>,
    ) -> Result<(), Ended> {
        self.settle(account);
        let reader = self.store.reader()?;
        let Some(account) = account else {
            return usage::of_all(&reader, since, |row| Ok(answer(Line::Usage(row))?));
        };
        for row in usage::of_account(&reader, account, since)? {
            answer(Line::Usage(row))?;
        }
        Ok(())
    }

    pub(super) fn account(&self, record: Option<Record>, answer: Answer<'_>) -> Result<(), Ended> {
        let Some(record) = record else { return Ok(()) }; // removed concurrently
        let view = self.store.with(|connection| self.with_credentials(connection, record))?;
        Ok(answer(Line::Account(view))?)
    }

    fn with_credentials(&self, connection: &Connection, record: Record) -> Read<AccountView> {
        let (keys, certificates) =
            (records::keys(connection, record.id)?, records::certificates(connection, record.id)?);
        Ok(AccountView { keys, certificates, ..self.of_database(record) })
    }

    fn of_database(&self, record: Record) -> AccountView {
        let Record { name, enabled, terms: own, .. } = record;
        let (terms, of_tier) = match self.configured.tiers.allowance(&own) {
            Some(Allowance { quota, burst, of_tier, .. }) => {
                (Terms { quota: Some(quota), burst, ..own }, of_tier)
            }
            None => (own, Vec::new()),
        };
        let bare = AccountView::bare(name, KeptIn::Database, enabled);
        AccountView { terms: Some(terms), of_tier, ..bare }
    }
}
