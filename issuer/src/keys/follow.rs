//! The keys of an issuer that follows another one: they are the first one's, taken from copies of its key files as they come.
//!
//! What is taken up is in this issuer's own directory, so it outlives copies that are damaged or lost, and a restart. A key ends by its
//! own time, or by a copy of the file under which the first issuer set it aside as retired or revoked; that its file is no longer among
//! the copies ends no key.

use super::at_rest::{AtRest, Read};
use super::set_aside::{self, Aside, Why};
use super::{
    KeyStore, KeysError, Revoked, TokenKey, colliding, file_name, key_files, lives, load, parse_name,
};
use crate::config::Keys;
use crate::rotation::{self, Lifetime, Phase, Schedule};
use postern_daemon::files::write_private;
use postern_daemon::utc;
use postern_token::{TokenType, UnixSeconds, key_file};
use std::io;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The copies that a store follows.
#[derive(Debug)]
pub(super) struct Follows {
    pub(super) directory: PathBuf,
    /// What is wrong with them, at the last look.
    fault: Option<String>,
}

/// A key that an operator of the first issuer has ended.
struct Ended {
    named: Named,
    /// Its file's name when it was in use.
    original: String,
    path: PathBuf,
    /// All of its id, if its tokens are void.
    revoked: Option<String>,
}

/// A key as a file's name has it.
struct Named {
    life: Lifetime,
    id: String,
    token_type: TokenType,
}

impl Named {
    fn of(path: &Path) -> Option<Self> {
        let (life, id) = parse_name(path)?;
        Some(Self { life, id, token_type: key_file::token_type(path)? })
    }

    fn is(&self, key: &TokenKey) -> bool {
        key.signing.token_type() == self.token_type && key.signing.id().short() == self.id
    }
}

impl KeyStore {
    /// Makes no keys from now on, and takes those whose files are copied to `directory`; nothing of it without one.
    pub(crate) fn follow(&mut self, directory: Option<&Path>) {
        self.follows = directory.map(|directory| Follows { directory: directory.to_owned(), fault: None });
    }

    /// Where the copies are, if this is not the first issuer.
    pub(crate) fn follows(&self) -> Option<&Path> {
        self.follows.as_ref().map(|follows| follows.directory.as_path())
    }

    /// What is wrong with the copies.
    pub(crate) fn copy_fault(&self) -> Option<&str> {
        self.follows.as_ref()?.fault.as_deref()
    }

    /// Takes up what has been copied since the last look.
    pub(super) fn take_up(&mut self, now: UnixSeconds) {
        let Some(directory) = self.follows().map(Path::to_owned) else { return };
        let mut faults = Vec::new();
        if let Err(error) = self.take_up_from(&directory, now, &mut faults) {
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
        for ended in &ended {
            self.end(ended, now, faults);
        }
        for path in key_files(directory)? {
            let Some(named) = Named::of(&path) else {
                faults.push(KeysError::Name { path }.to_string());
                continue;
            };
            let mut all_ended = ended.iter().chain(&ended_here).map(|ended| &ended.named);
            let has_ended =
                all_ended.any(|ended| ended.token_type == named.token_type && ended.id == named.id);
            if has_ended || named.life.phase(now) == Phase::Over {
                continue;
            }
            let taken = match self.keys.iter().position(|key| named.is(key)) {
                Some(place) => self.shorten(place, &named),
                None => self.add(&path),
            };
            faults.extend(taken.err().map(|error| error.to_string()));
        }
        Ok(())
    }

    /// A key that was not known.
    fn add(&mut self, path: &Path) -> Result<(), KeysError> {
        let Read { key, plain, .. } = load(path, &self.at_rest)?;
        if let Some(other) = colliding(&self.keys, &key.signing) {
            return Err(KeysError::Collision { path: path.to_owned(), other: file_name(other) });
        }
        self.at_rest.write(self.directory.join(file_name(&key)), &plain)?;
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

    /// A known key that issues for less long than before, since an operator has rotated it. The copy under the old name may be there,
    /// too.
    fn shorten(&mut self, place: usize, named: &Named) -> Result<(), KeysError> {
        let key = &self.keys[place];
        if named.life.issue_until >= key.life.issue_until {
            return Ok(());
        }
        let life = Lifetime { issue_until: named.life.issue_until, ..key.life };
        let shorter = TokenKey { signing: key.signing.clone(), life };
        let (from, to) = (file_name(key), file_name(&shorter));
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

    /// Ends a key that an operator has ended.
    fn end(&mut self, ended: &Ended, now: UnixSeconds, faults: &mut Vec<String>) {
        let Some(place) = self.keys.iter().position(|key| ended.named.is(key)) else {
            if let Err(error) = self.revoke_unknown(ended, now) {
                faults
                    .push(format!("the revoked key file {} cannot be copied: {error}", ended.path.display()));
            }
            return;
        };
        let key = self.keys.remove(place);
        match self.end_file(&key, ended.revoked.is_some(), now) {
            Ok(()) => tracing::warn!("token key {:?} has ended at the first issuer", key.signing.id()),
            Err(error) => {
                faults.push(format!("the key file {} cannot be set aside: {error}", file_name(&key)))
            }
        }
    }

    /// Names a revoked key that is not in use here: it was retired before, or had ended when this issuer began to follow.
    fn revoke_unknown(&mut self, ended: &Ended, now: UnixSeconds) -> io::Result<()> {
        let (Some(id), until) = (&ended.revoked, ended.named.life.not_after) else { return Ok(()) };
        if now >= until || self.revoked.iter().any(|known| known.id == *id) {
            return Ok(());
        }
        let name = set_aside::revoked_name(&ended.original, id, now);
        write_private(&self.directory.join(name), &std::fs::read(&ended.path).map(Zeroizing::new)?)?;
        self.revoked.push(Revoked { id: id.clone(), until });
        tracing::warn!(
            "token key {} is revoked at the first issuer: the directory says so here, too",
            ended.named.id
        );
        Ok(())
    }

    /// Refuses where a key is missing that the first issuer has by now, if the schedule is the same: of `publish_ahead`, half is left for
    /// copying it.
    pub(super) fn check_successors(&self, schedule: &Schedule, now: UnixSeconds) -> Result<(), KeysError> {
        let Some(follows) = &self.follows else { return Ok(()) };
        let is_overdue =
            |token_type: &TokenType| rotation::is_overdue(&lives(&self.keys, *token_type), schedule, now);
        match schedule.types.iter().find(is_overdue) {
            Some(token_type) => {
                Err(KeysError::NotCopied { directory: follows.directory.clone(), token_type })
            }
            None => Ok(()),
        }
    }
}

/// How many keys among the copies in `directory` an issuer with these settings can take up.
///
/// # Errors
/// The first copy that it cannot take up, or the key that is missing among them.
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
        if key.life.phase(now) != Phase::Over && !ended.iter().any(|ended| ended.named.is(&key)) {
            keys.push(key);
        }
    }
    // Settings that make no schedule are refused before.
    let Ok(schedule) = settings.schedule() else { return Ok(keys.len()) };
    match schedule.types.iter().find(|of| rotation::is_overdue(&lives(&keys, *of), &schedule, now)) {
        Some(token_type) => Err(KeysError::NotCopied { directory: directory.to_owned(), token_type }),
        None => Ok(keys.len()),
    }
}

/// The keys of a directory that an operator has ended.
fn ended(directory: &Path) -> io::Result<Vec<Ended>> {
    let ended = set_aside::all(directory)?.into_iter().filter(|aside| aside.why != Why::Expired);
    let ended = ended.filter_map(|Aside { path, original, why, .. }| {
        let revoked = match why {
            Why::Revoked(id) => Some(id),
            Why::Expired | Why::Retired => None,
        };
        let name = original.file_name()?.to_str()?.to_owned();
        Some(Ended { named: Named::of(&original)?, original: name, path, revoked })
    });
    Ok(ended.collect())
}

#[cfg(test)]
mod tests;
