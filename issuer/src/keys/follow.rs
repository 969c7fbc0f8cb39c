//! The keys of an issuer that follows another one: imported from copies of the first issuer's key files as they arrive.
//!
//! Imported keys are in this issuer's own directory, so they outlive a restart, and copies that are damaged or lost. A key ends
//! at its own time, or by a copy of the file that the first issuer set aside as retired or revoked; a file that is no longer
//! among the copies ends no key.

use super::at_rest::{AtRest, Read, load};
use super::files::{FileName, TokenKey, check_distinct, key_files, lives};
use super::set_aside::{self, Aside, Why};
use super::{Follows, KeyStore, KeysError, Revoked};
use crate::config::Keys;
use crate::rotation::{self, Lifetime, Phase, Schedule};
use postern_daemon::files::write_private;
use postern_daemon::utc;
use postern_token::UnixSeconds;
use std::io;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

impl KeyStore {
    /// Makes no keys from now on, and imports those copied to `directory`. `None` means that this issuer does not follow.
    pub(crate) fn follow(&mut self, directory: Option<&Path>) {
        self.follows = directory.map(|directory| Follows { directory: directory.to_owned(), fault: None });
    }

    /// Returns the directory of the copies, if this issuer follows.
    pub(crate) fn follows(&self) -> Option<&Path> {
        self.follows.as_ref().map(|follows| follows.directory.as_path())
    }

    /// Returns the fault of the copies.
    pub(crate) fn copy_fault(&self) -> Option<&str> {
        self.follows.as_ref()?.fault.as_deref()
    }

    /// Imports what has been copied since the last check. Fails if a key is still missing that is due.
    pub(super) fn take_up(
        &mut self,
        directory: &Path,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<(), KeysError> {
        let mut faults = Vec::new();
        if let Err(error) = self.take_up_from(directory, now, &mut faults) {
            faults.push(error.to_string());
        }
        let others = faults.len().saturating_sub(1);
        let fault = faults.into_iter().next().map(|first| {
            let others = if others == 0 { String::new() } else { format!(" (and {others} more like this)") };
            format!(
                "a key file among the first issuer's copies is not taken up: {first}{others}. The keys of before stay in use; it is tried \
                 again every second"
            )
        });
        if let Some(follows) = &mut self.follows {
            follows.fault = fault;
        }
        check_copied(&self.keys, directory, schedule, now)
    }

    fn take_up_from(
        &mut self,
        directory: &Path,
        now: UnixSeconds,
        faults: &mut Vec<String>,
    ) -> Result<(), KeysError> {
        let unreadable = |source: io::Error| KeysError::Copies { path: directory.to_owned(), source };
        let ended = ended(directory).map_err(unreadable)?;
        let own = self.directory.path().to_owned();
        let ended_here = self::ended(&own).map_err(unreadable)?;
        let live = key_files(&own)?;
        for ended in &ended {
            self.end(ended, &live, now, faults);
        }
        for path in key_files(directory)? {
            let Some(name) = FileName::parse(&path) else {
                faults.push(KeysError::Name { path }.to_string());
                continue;
            };
            let has_ended = ended.iter().chain(&ended_here).any(|ended| ended.name.is_of_same_key(&name));
            if has_ended || name.life.phase(now) == Phase::Over {
                continue;
            }
            let taken = match self.keys.iter().position(|key| FileName::of(key).is_of_same_key(&name)) {
                Some(place) => self.shorten(place, &name),
                None => self.add(&path),
            };
            faults.extend(taken.err().map(|error| error.to_string()));
        }
        Ok(())
    }

    /// Imports a new key.
    fn add(&mut self, path: &Path) -> Result<(), KeysError> {
        let Read { key, plain, .. } = load(path, &self.at_rest)?;
        check_distinct(&self.keys, &key, path)?;
        self.at_rest.write(self.directory.join(FileName::of(&key).text), &plain)?;
        let [from, until, end] =
            [key.life.not_before, key.life.issue_until, key.life.not_after].map(|time| utc::rfc3339(time.0));
        tracing::info!(
            "took up token key {:?} of type {} from the first issuer: in use from {from}, issues until {until}, leaves at {end}",
            key.signing.id(),
            key.signing.token_type()
        );
        self.keys.push(key);
        Ok(())
    }

    /// Shortens a known key that an operator has rotated. The copy under the old name may still be there.
    fn shorten(&mut self, place: usize, name: &FileName) -> Result<(), KeysError> {
        let key = &self.keys[place];
        if name.life.issue_until >= key.life.issue_until {
            return Ok(());
        }
        let life = Lifetime { issue_until: name.life.issue_until, ..key.life };
        let shorter = TokenKey { signing: key.signing.clone(), life };
        let (from, to) = (FileName::of(key).text, FileName::of(&shorter).text);
        set_aside::rename(self.directory.path(), &from, &to)
            .map_err(|source| KeysError::Unwritable { path: self.directory.join(to), source })?;
        tracing::info!(
            "token key {:?} issues until {} now, as at the first issuer",
            shorter.signing.id(),
            utc::rfc3339(life.issue_until.0)
        );
        self.keys[place] = shorter;
        Ok(())
    }

    /// Ends a key that an operator of the first issuer has ended: at once, even if its file among the `live` ones stays. The
    /// next look tries again to set the file aside.
    fn end(&mut self, ended: &Aside, live: &[PathBuf], now: UnixSeconds, faults: &mut Vec<String>) {
        self.keys.retain(|key| !FileName::of(key).is_of_same_key(&ended.name));
        let mut live = live.iter().filter_map(|path| FileName::parse(path));
        let Some(FileName { text: name, .. }) = live.find(|name| name.is_of_same_key(&ended.name)) else {
            if let Err(error) = self.revoke_unknown(ended, now) {
                faults
                    .push(format!("the revoked key file {} cannot be copied: {error}", ended.path.display()));
            }
            return;
        };
        match set_aside::rename(self.directory.path(), &name, &ended.why.mark(&name, now)) {
            Ok(()) => tracing::warn!("token key {} has ended at the first issuer", ended.name.id),
            Err(error) => faults.push(format!("the key file {name} cannot be set aside: {error}")),
        }
        self.revoked.extend(self.newly_revoked(ended));
    }

    /// Returns the key as one to name as revoked; `None` if its tokens are good, or it is named already.
    fn newly_revoked(&self, ended: &Aside) -> Option<Revoked> {
        let id = ended.why.revoked_id()?;
        let is_known = self.revoked.iter().any(|known| known.id == id);
        (!is_known).then(|| Revoked { id: id.to_owned(), until: ended.name.life.not_after })
    }

    /// Records a revoked key that is not in use here: it was retired before, or had ended when this issuer began to follow.
    fn revoke_unknown(&mut self, ended: &Aside, now: UnixSeconds) -> io::Result<()> {
        let revoked = self.newly_revoked(ended).filter(|revoked| now < revoked.until);
        let Some(revoked) = revoked else { return Ok(()) };
        let path = self.directory.join(ended.why.mark(&ended.name.text, now));
        write_private(&path, &std::fs::read(&ended.path).map(Zeroizing::new)?)?;
        self.revoked.push(revoked);
        tracing::warn!(
            "token key {} is revoked at the first issuer: the directory says so here, too",
            ended.name.id
        );
        Ok(())
    }
}

/// Returns the number of keys among the copies in `directory` that an issuer with these settings can import.
///
/// # Errors
/// The first copy that cannot be imported, or the key that is missing among the copies.
pub(crate) fn examine_copies(
    settings: &Keys,
    directory: &Path,
    now: UnixSeconds,
) -> Result<usize, KeysError> {
    let at_rest = AtRest::of(settings)?;
    let copies = |source| KeysError::Copies { path: directory.to_owned(), source };
    let ended = ended(directory).map_err(copies)?;
    let mut keys = Vec::new();
    for path in key_files(directory)? {
        let Read { key, .. } = load(&path, &at_rest)?;
        if key.life.phase(now) != Phase::Over
            && !ended.iter().any(|ended| ended.name.is_of_same_key(&FileName::of(&key)))
        {
            keys.push(key);
        }
    }
    // Settings that make no schedule are rejected earlier.
    if let Ok(schedule) = settings.schedule() {
        check_copied(&keys, directory, &schedule, now)?;
    }
    Ok(keys.len())
}

/// Fails if a key is missing that the first issuer has made by now, given the same schedule. Half of `publish_ahead` is left for
/// copying it.
fn check_copied(
    keys: &[TokenKey],
    directory: &Path,
    schedule: &Schedule,
    now: UnixSeconds,
) -> Result<(), KeysError> {
    match schedule.types.iter().find(|of| rotation::is_overdue(&lives(keys, *of), schedule, now)) {
        Some(token_type) => Err(KeysError::NotCopied { directory: directory.to_owned(), token_type }),
        None => Ok(()),
    }
}

/// Returns the files of keys that an operator has ended.
fn ended(directory: &Path) -> io::Result<Vec<Aside>> {
    Ok(set_aside::all(directory)?.into_iter().filter(|aside| aside.why != Why::Expired).collect())
}

#[cfg(test)]
mod tests;
