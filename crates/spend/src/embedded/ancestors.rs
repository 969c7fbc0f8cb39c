//! The names of the store's directory and of those above it: power loss must not take one of them, and the store with it.

use super::error::{On, StoreError};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Creates the directory if need be (mode 0700, those above it, too), and makes its whole path durable. Whatever made a
/// part of it before, an installer or a process that was killed, need not have synced it.
pub(crate) fn create(path: &Path) -> Result<(), StoreError> {
    let mut missing = 0;
    for directory in path.ancestors().take_while(|directory| !directory.as_os_str().is_empty()) {
        if fs::exists(directory).on("look for", directory)? {
            break;
        }
        missing += 1;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).on("create", path)?;
    let whole = fs::canonicalize(path).on("find", path)?;
    make_durable(&whole, missing, sync)
}

/// Syncs each directory above this one. The lowest `made` of the names in the path are new.
fn make_durable(path: &Path, made: usize, sync: impl Fn(&Path) -> io::Result<()>) -> Result<(), StoreError> {
    for (generation, above) in path.ancestors().skip(1).enumerate() {
        match sync(above) {
            Ok(()) => {}
            // What was here before is as durable as this user can make it: some directories refuse to be opened.
            Err(_) if generation >= made => {}
            failed => failed.on("sync", above)?,
        }
    }
    Ok(())
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_there_before_may_refuse_to_be_synced() {
        let refused_by = |directory: &str, made| {
            let sync = |above: &Path| match above == Path::new(directory) {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false => Ok(()),
            };
            make_durable(Path::new("/a/b/c"), made, sync).is_err()
        };
        assert_eq!(["/a/b", "/a", "/"].map(|directory| refused_by(directory, 0)), [false, false, false]);
        assert_eq!(["/a/b", "/a", "/"].map(|directory| refused_by(directory, 2)), [true, true, false]);
    }
}
