//! Whose request it is: by its API key, by the certificate that its client showed, or by both.

use super::active::{Credential, Found, Holder, Standing};
use super::api_key::{Form, KeyDigest, sha256};
use super::authorizer::{Answer, Asker, MOST_KEY, Unanswered, Verdict};
use super::lookup::By;
use super::{Accounts, Caller, Configured, NoAccount};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use postern_daemon::sources::Source;
use postern_daemon::tls::PublicKeyDigest;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How often a change that is under way makes a lookup start again, before it is given up.
const LOOKUPS: usize = 16;

/// What a request shows of its account.
#[derive(Clone, Copy)]
enum Shown<'a> {
    ApiKey(&'a [u8], KeyDigest),
    Certificate(PublicKeyDigest),
}

/// What to look up, and for how long what is found holds.
struct Wanted {
    by: By,
    otherwise: Option<Found>,
    known_until: Option<Instant>,
}

impl Accounts {
    /// Finds the account of a request that came from `source` and whose client showed this `certificate`.
    ///
    /// A certificate alone is enough. Beside an API key it may be of the same account, or of none: a fleet may share one to be let
    /// in to the listener. Of another account it is refused.
    ///
    /// The key is hashed and the hash looked up. The time that takes may depend on the hash, which does not help an
    /// attacker find a key that has it; it does not depend on how much of a key was right.
    pub(crate) async fn authorize(
        &self,
        headers: &HeaderMap,
        source: Option<Source>,
        certificate: Option<PublicKeyDigest>,
        now: UnixSeconds,
    ) -> Result<Caller, NoAccount> {
        if self.awaits_accounts.load(Ordering::Acquire) {
            return Err(NoAccount::Unreadable); // whose a key is will be known once the first issuer's accounts are here
        }
        if self.is_open() {
            return Ok(Caller::Anyone);
        }
        let key = api_key(headers).map(|key| Shown::ApiKey(key, sha256(key)));
        let strange = if certificate.is_some() { NoAccount::StrangeCertificate } else { NoAccount::Missing };
        // While the database has none, there is nothing to look up.
        let certificate = certificate.filter(|_| self.has_certificates.load(Ordering::Acquire));
        let certificate = certificate.map(Shown::Certificate);
        let (holder, standing) = match (key, certificate) {
            (Some(key), None) => self.find(key, source).await?.ok_or(NoAccount::Unknown)?,
            (None, Some(certificate)) => self.find(certificate, source).await?.ok_or(strange)?,
            (Some(key), Some(certificate)) => {
                let found = self.find(key, source).await?.ok_or(NoAccount::Unknown)?;
                let other = self.find(certificate, source).await?;
                if other.is_some_and(|(other, _)| other.name != found.0.name) {
                    return Err(NoAccount::Contradiction);
                }
                found
            }
            (None, None) => return Err(strange),
        };
        standing.admit(now).map(|()| Caller::Account(holder))
    }

    /// The account of what is shown, whatever its standing.
    async fn find(
        &self,
        shown: Shown<'_>,
        source: Option<Source>,
    ) -> Result<Option<(Arc<Holder>, Standing)>, NoAccount> {
        let credential = shown.credential();
        for _ in 0..LOOKUPS {
            let known = self.active.get(&credential);
            let is_known = known.is_some();
            if let Some(known) = known.filter(|(_, standing)| standing.is_known(Instant::now())) {
                return Ok(Some(known));
            }
            let generation = self.active.generation();
            let file = self.configured.load_full();
            let mut wanted = Wanted { by: By::Credential(credential), otherwise: None, known_until: None };
            if let Shown::ApiKey(key, digest) = shown
                && let Err(refusal) = self.may_be_stored(key, &digest)
            {
                wanted = self.elsewhere((key, digest), (source, is_known), &file, refusal).await?;
            }
            let Wanted { by, otherwise, known_until } = wanted;
            let found = self.lookups.find(by, otherwise).await.map_err(|_| NoAccount::Unreadable)?;
            match found {
                Some(mut found) => {
                    found.standing.known_until = known_until;
                    let standing = found.standing;
                    let allowance = file.tiers.allowance(&found.terms).ok_or(NoAccount::NoTier)?;
                    if let Some(holder) = self.active.insert(generation, credential, found, &allowance) {
                        return Ok(Some((holder, standing)));
                    }
                }
                None if self.active.generation() == generation => return Ok(None),
                None => {}
            }
        }
        Err(NoAccount::Unreadable)
    }

    /// Whose a key is that is not of this issuer's own accounts. An account of its own that has the name counts as it is here: so
    /// its operator can refuse one whatever the authorizer says.
    async fn elsewhere(
        &self,
        (key, digest): (&[u8], KeyDigest),
        (source, is_known): (Option<Source>, bool),
        file: &Configured,
        refusal: NoAccount,
    ) -> Result<Wanted, NoAccount> {
        let authorizer = self.authorizer.load_full().filter(|_| refusal == NoAccount::Unknown);
        let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= MOST_KEY);
        let (Some(authorizer), Some(key)) = (authorizer, key) else { return Err(refusal) };
        let stored = self.store.secret().stored(&digest);
        let asker = Asker { source, was_allowed: is_known || self.allowed.has(&stored) };
        let answer = authorizer.ask(key, &digest, asker, &file.tiers).await;
        let Answer { verdict, until } = answer.map_err(|unanswered| match unanswered {
            Unanswered::Failed => NoAccount::Unanswered,
            Unanswered::Crowded => NoAccount::Crowded,
        })?;
        let allowed = match verdict {
            Verdict::Allowed(allowed) => allowed,
            Verdict::Absurd => return Err(NoAccount::Unanswered),
            Verdict::Denied(reason) => {
                self.allowed.remove(&stored);
                self.active.forget_credential(&Credential::ApiKey(digest));
                return Err(NoAccount::Denied(reason));
            }
        };
        self.allowed.add(stored, UnixSeconds::now());
        let name = allowed.account.clone();
        let otherwise = Found { name: name.clone(), terms: allowed.terms.clone(), standing: Standing::GOOD };
        Ok(Wanted { by: By::Name(name), otherwise: Some(otherwise), known_until: Some(until) })
    }

    /// Refuses keys that cannot be in the database, without asking it.
    fn may_be_stored(&self, key: &[u8], digest: &KeyDigest) -> Result<(), NoAccount> {
        let form = self.store.secret().form(key);
        if form == Form::Ours {
            return Ok(());
        }
        let others = self.made_elsewhere.load();
        match form {
            _ if !others.is_empty() && others.contains(&self.store.secret().stored(digest)) => Ok(()),
            Form::Damaged => Err(NoAccount::Damaged),
            Form::Ours | Form::Other => Err(NoAccount::Unknown),
        }
    }
}

impl Shown<'_> {
    fn credential(self) -> Credential {
        match self {
            Self::ApiKey(_, digest) => Credential::ApiKey(digest),
            Self::Certificate(key) => Credential::Certificate(key),
        }
    }
}

/// The key of `Authorization: Bearer KEY`; nothing when there is no such field, or several.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.as_bytes(), values.next()) else { return None };
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty()).then_some(key)
}
