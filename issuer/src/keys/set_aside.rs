//! Key files that are set aside, and what file times reveal about the clock.
//!
//! A clock that is set far ahead for a moment must not destroy keys. So an expired file is set aside, under a name with
//! the time, and deleted a week later. If the clock shows before then that the key has not expired, the file is used
//! again. The file of a key that an operator retired or revoked is set aside under another mark, and never used again; that of a
//! revoked key stays until the key would have ended, because the directory names the key until then.

use super::files::FileName;
use super::{KeysError, Shelf};
use postern_daemon::utc;
use postern_token::UnixSeconds;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Time that an expired or retired file is kept.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Marks between a file's name and the second in which it was set aside, by the reason.
const OVER: &str = ".over-";
const RETIRED: &str = ".retired-";
/// The key's full id follows the second.
const REVOKED: &str = ".revoked-";
/// Time that files may be younger than the clock, on a disk that another machine writes to.
const TOLERANCE: Duration = Duration::from_secs(120);

/// Restores the files that have not expired, and deletes those set aside long enough ago. `release` returns `true` if a file may
/// be deleted.
pub(super) fn recall(
    shelf: &Shelf,
    now: UnixSeconds,
    release: impl Fn(&Aside) -> bool,
) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut back = Vec::new();
    for aside in all(shelf)? {
        let end = aside.name.life.not_after;
        let kept_until = match aside.why {
            Why::Revoked(_) => end,
            Why::Expired | Why::Retired => aside.since.saturating_add(KEPT),
        };
        if now < end && aside.why == Why::Expired {
            let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            shelf.rename(&name(&aside.path), &name(&aside.original))?;
            back.push(aside.original);
        } else if now >= kept_until && release(&aside) {
            shelf.remove(&aside.path)?;
        }
    }
    Ok(back)
}

/// A key file that is set aside.
pub(super) struct Aside {
    pub(super) path: PathBuf,
    /// The path of the file when its key was in use, and its name.
    pub(super) original: PathBuf,
    pub(super) name: FileName,
    since: UnixSeconds,
    pub(super) why: Why,
}

/// The reason that a file is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The key has expired.
    Expired,
    /// An operator ended the key; its tokens stay valid for a grace period.
    Retired,
    /// An operator ended the key and voided its tokens; the key's id.
    Revoked(String),
}

impl Why {
    /// Returns the name under which the file `original` is set aside.
    pub(super) fn mark(&self, original: &str, now: UnixSeconds) -> String {
        match self {
            Self::Expired => format!("{original}{OVER}{now}"),
            Self::Retired => format!("{original}{RETIRED}{now}"),
            Self::Revoked(id) => format!("{original}{REVOKED}{now}-{id}"),
        }
    }

    pub(super) fn revoked_id(&self) -> Option<&str> {
        match self {
            Self::Revoked(id) => Some(id),
            Self::Expired | Self::Retired => None,
        }
    }
}

/// Returns the key files that are set aside.
pub(super) fn all(shelf: &Shelf) -> Result<Vec<Aside>, KeysError> {
    let mut files = Vec::new();
    for path in shelf.all().map_err(KeysError::unreadable(shelf.directory()))? {
        let Some(aside) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some((name, since, why)) = parse(aside) else { continue };
        let Ok(since) = since.parse().map(UnixSeconds) else { continue };
        let original = shelf.join(name);
        let Some(name) = FileName::parse(&original) else { continue };
        files.push(Aside { path, original, name, since, why });
    }
    Ok(files)
}

fn parse(aside: &str) -> Option<(&str, &str, Why)> {
    if let Some((name, since)) = aside.split_once(OVER) {
        return Some((name, since, Why::Expired));
    }
    if let Some((name, since)) = aside.split_once(RETIRED) {
        return Some((name, since, Why::Retired));
    }
    let (name, rest) = aside.split_once(REVOKED)?;
    let (since, id) = rest.split_once('-')?;
    Some((name, since, Why::Revoked(id.to_owned())))
}

/// Describes the fault of the clock, if one of `files` was written after `now`.
pub(super) fn clock_fault(files: &[PathBuf], now: UnixSeconds) -> Option<String> {
    let written = |path: &Path| {
        let modified = std::fs::metadata(path).ok()?.modified().ok()?;
        Some(UnixSeconds(modified.duration_since(UNIX_EPOCH).ok()?.as_secs()))
    };
    let times = files.iter().filter_map(|path| Some((written(path)?, path)));
    let (newest, path) = times.max_by_key(|(time, _)| *time)?;
    (newest > now.saturating_add(TOLERANCE)).then(|| {
        format!(
            "the clock shows {}, and {} was written at {}: the clock is behind, or was ahead then. Gateways may refuse the \
             tokens of keys that a wrong clock has made. Set the clock (NTP); if it is right now, run touch on the files in \
             the key directory",
            utc::rfc3339(now.0),
            path.display(),
            utc::rfc3339(newest.0)
        )
    })
}
