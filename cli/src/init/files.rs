//! Files that `postern init` writes: it overwrites nothing, and leaves nothing after a failure.

use crate::failure::Failure;
use crate::stdio::note;
use postern_daemon::files::write_private;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Files and folders of a run, removed on drop unless [`Made::keep`] was called.
#[derive(Default)]
pub(super) struct Made {
    paths: Vec<PathBuf>,
    is_kept: bool,
}

/// Fails if one of these files exists, and lists those that do.
pub(super) fn refuse_existing(directory: &Path, names: &[String]) -> Result<(), Failure> {
    let is_there = |name: &&String| directory.join(name).symlink_metadata().is_ok();
    let there: Vec<&str> = names.iter().filter(is_there).map(String::as_str).collect();
    if there.is_empty() {
        return Ok(());
    }
    let directory = directory.display();
    Err(Failure::usage(format_args!(
        "{} in {directory}: there already, and nothing was written. Name another folder (postern init DIR), or move them \
         elsewhere; where a postern has run with them, they hold keys, accounts and spent records",
        there.join(", ")
    )))
}

impl Made {
    /// Creates a folder and its missing parents (mode 0700).
    pub(super) fn folder(&mut self, path: &Path) -> Result<(), Failure> {
        let mut missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
        missing.retain(|path| !path.as_os_str().is_empty());
        for path in missing.into_iter().rev() {
            DirBuilder::new().mode(0o700).create(path).map_err(|error| unwritten(path, &error))?;
            self.paths.push(path.to_owned());
        }
        Ok(())
    }

    /// Writes a file (mode 0600).
    pub(super) fn file(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        self.also(path);
        write_private(path, text.as_bytes()).map_err(|error| unwritten(path, &error))
    }

    /// Registers a path that other code writes, so that a failure removes it.
    pub(super) fn also(&mut self, path: &Path) {
        self.paths.push(path.to_owned());
    }

    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        for path in self.paths.iter().rev() {
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    note(format_args!("postern: {} could not be removed again: {error}", path.display()));
                }
                _ => {}
            }
        }
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::runtime(format_args!(
        "cannot write {}: {error}; check the disk, and that this user may write there. Nothing is left of what was written",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_leaves_what_was_there() {
        let home = tempfile::tempdir().unwrap();
        let (own, deep) = (home.path().join("own"), home.path().join("a/b"));
        std::fs::write(&own, "").unwrap();
        let mut made = Made::default();
        made.folder(&deep).unwrap();
        made.file(&deep.join("file"), "text").unwrap();
        made.also(&home.path().join("never written"));
        drop(made);
        assert!(own.exists() && !home.path().join("a").exists());

        let mut made = Made::default();
        made.folder(&deep).unwrap();
        made.keep();
        assert!(deep.exists());
    }
}
