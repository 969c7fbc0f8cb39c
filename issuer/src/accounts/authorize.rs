//! Authorization of a request by its API key, by its client's certificate, or by both.

use super::active::{Credential, Found, Holder, Standing};
use super::api_key::{Form, KeyDigest, sha256};
use super::authorizer::{Answer, Asker, MOST_KEY, Verdict};
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

/// Attempts of a lookup that concurrent changes invalidate, before the lookup fails.
const LOOKUPS: usize = 16;

/// A lookup to make, and the expiry of its result.
struct Wanted {
    by: By,
    otherwise: Option<Found>,
    known_until: Option<Instant>,
}

impl Accounts {
    /// Finds the account of a request that came from `source` and whose client presented `certificate`.
    ///
    /// A certificate alone suffices. Next to an API key it may belong to the same account, or to none: a fleet may share one to
    /// get access to the listener. A certificate of another account is refused.
    ///
    /// The lookup uses the hash of the key. Its duration may depend on the hash, which does not help an attacker to find a key
    /// with that hash; it does not depend on how much of a key was right.
    pub(crate) async fn authorize(
        &self,
        headers: &HeaderMap,
        source: Option<Source>,
        certificate: Option<PublicKeyDigest>,
        now: UnixSeconds,
    ) -> Result<Caller, NoAccount> {
        if self.is_open() {
            return Ok(Caller::Anyone);
        }
        let key = api_key(headers).map(|key| (Credential::ApiKey(sha256(key)), key));
        let strange = if certificate.is_some() { NoAccount::StrangeCertificate } else { NoAccount::Missing };
        // Without certificates in the database, no lookup is needed.
        let certificate = certificate.filter(|_| self.has_certificates.load(Ordering::Acquire));
        let certificate = certificate.map(Credential::Certificate);
        let (holder, standing) = match (key, certificate) {
            (Some((digest, key)), None) => self.find(digest, key, source).await?.ok_or(NoAccount::Unknown)?,
            (None, Some(certificate)) => self.find(certificate, b"", source).await?.ok_or(strange)?,
            (Some((digest, key)), Some(certificate)) => {
                let found = self.find(digest, key, source).await?.ok_or(NoAccount::Unknown)?;
                let other = self.find(certificate, b"", source).await?;
                if other.is_some_and(|(other, _)| other.name != found.0.name) {
                    return Err(NoAccount::Contradiction);
                }
                found
            }
            (None, None) => return Err(strange),
        };
        standing.admit(now).map(|()| Caller::Account(holder))
    }

    /// Finds the account of a presented credential, regardless of its standing. `key` is the API key of a digest.
    async fn find(
        &self,
        credential: Credential,
        key: &[u8],
        source: Option<Source>,
    ) -> Result<Option<(Arc<Holder>, Standing)>, NoAccount> {
        for _ in 0..LOOKUPS {
            let known = self.active.get(&credential);
            let is_known = known.is_some();
            if let Some(known) = known.filter(|(_, standing)| standing.is_known(Instant::now())) {
                return Ok(Some(known));
            }
            let generation = self.active.generation();
            let file = self.configured.load_full();
            let mut wanted = Wanted { by: By::Credential(credential), otherwise: None, known_until: None };
            if let Credential::ApiKey(digest) = credential
                && let Err(refusal) = self.may_be_stored(key, &digest)
            {
                wanted = self.elsewhere((key, digest), (source, is_known), &file, refusal).await?;
            }
            let Wanted { by, otherwise, known_until } = wanted;
            let found = self.lookups.find(by, otherwise).await?;
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

    /// Queries the authorizer, if there is one, about a key that is not in the database. An account of this issuer with the
    /// returned name takes precedence, so the operator can refuse an account that the authorizer allows.
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
        let Answer { verdict, until } = authorizer.ask(key, &digest, asker, &file.tiers).await?;
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

    /// Refuses keys that cannot be in the database, without reading it.
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

/// Returns the key of `Authorization: Bearer KEY`; `None` if the field is absent, repeated or of another form.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.as_bytes(), values.next()) else { return None };
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty()).then_some(key)
}
