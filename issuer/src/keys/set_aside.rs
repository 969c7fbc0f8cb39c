//! Expired key files, and what file times reveal about the clock.
//!
//! A clock that is set far ahead for a moment must not destroy keys. So an expired file is set aside, under a name with
//! the time, and removed a week later. If the clock shows before then that the key has not expired, the file is used
//! again. The file of a key that an operator retired or revoked is set aside under another mark, and never used again; that of a
//! revoked one stays until the key would have ended, for the directory names the key until then.

use postern_daemon::files::sync_directory;
use postern_daemon::utc;
use postern_token::UnixSeconds;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// How long an expired file is kept.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
/// What stands between a file's name and the second in which it was set aside.
const OVER: &str = ".over-";
/// The same of a key that an operator retired.
const RETIRED: &str = ".retired-";
/// The same of a key that an operator revoked; after the second comes its whole id.
const REVOKED: &str = ".revoked-";
/// Files may be younger than the clock by this much, on a disk that another machine writes to.
const TOLERANCE: Duration = Duration::from_secs(120);

/// Sets the file `name` of an expired key aside.
pub(super) fn set_aside(directory: &Path, name: &str, now: UnixSeconds) -> io::Result<()> {
    rename(directory, name, &format!("{name}{OVER}{now}"))
}

/// Sets the file `name` of a retired key aside.
pub(super) fn retire(directory: &Path, name: &str, now: UnixSeconds) -> io::Result<()> {
    rename(directory, name, &format!("{name}{RETIRED}{now}"))
}

/// Returns the name under which the file `original` of a revoked key is set aside.
pub(super) fn revoked_name(original: &str, id: &str, now: UnixSeconds) -> String {
    format!("{original}{REVOKED}{now}-{id}")
}

/// Renames a file, durably. A crash leaves it under one of the two names.
pub(super) fn rename(directory: &Path, from: &str, to: &str) -> io::Result<()> {
    std::fs::rename(directory.join(from), directory.join(to))?;
    sync_directory(directory)
}

/// Restores the files that have not expired, and removes those set aside long enough ago. `not_after` is the
/// end of a key, by its file's name; `release` says whether a file may be removed, of its path and the one that it had.
pub(super) fn recall(
    directory: &Path,
    now: UnixSeconds,
    not_after: impl Fn(&Path) -> Option<UnixSeconds>,
    release: impl Fn(&Path, &Path) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let mut back = Vec::new();
    for Aside { path, original, since, why } in all(directory)? {
        let Some(end) = not_after(&original) else { continue };
        let kept_until = match why {
            Why::Revoked(_) => end,
            Why::Expired | Why::Retired => since.saturating_add(KEPT),
        };
        if now < end && why == Why::Expired {
            std::fs::rename(&path, &original)?;
            back.push(original);
        } else if now >= kept_until && release(&path, &original) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(back)
}

/// The files that are set aside, each with the name that it had.
pub(super) fn files(directory: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    Ok(all(directory)?.into_iter().map(|aside| (aside.path, aside.original)).collect())
}

/// A file that is set aside.
pub(super) struct Aside {
    pub(super) path: PathBuf,
    pub(super) original: PathBuf,
    since: UnixSeconds,
    pub(super) why: Why,
}

/// Why a file is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The key's time was over.
    Expired,
    /// An operator ended the key; its tokens are good for a while.
    Retired,
    /// An operator ended the key and its tokens; its id.
    Revoked(String),
}

pub(super) fn all(directory: &Path) -> io::Result<Vec<Aside>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(aside) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some((name, since, why)) = parse(aside) else { continue };
        let Ok(since) = since.parse().map(UnixSeconds) else { continue };
        files.push(Aside { original: directory.join(name), since, why, path });
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

/// What is wrong with the clock, if one of `files` was written after `now`.
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
