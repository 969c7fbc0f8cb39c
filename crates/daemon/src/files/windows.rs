//! Permissions, directories and positioned I/O on Windows.
//!
//! A file inherits the access list of its directory: below the user's profile it grants access to the user, administrators and
//! the system. Nothing here changes or checks access lists, because no safe interface exists for them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;
use std::sync::Once;

/// Returns options for files that inherit their directory's access list. The first call logs this.
pub fn private_file() -> OpenOptions {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::info!(
            "who may read the wallet and other secrets is up to the access lists of their folders, which are neither changed nor \
             checked: keep them below your user profile"
        );
    });
    OpenOptions::new()
}

/// Returns a builder that creates missing directories and their parents; each inherits the access list of its parent.
pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

/// Does nothing: the file keeps its access list.
pub fn make_private(_: &File) -> io::Result<()> {
    Ok(())
}

/// Does nothing: a directory cannot be flushed. NTFS journals changes of names in order, so after a power loss the last change
/// may be missing, but never an earlier one.
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Reads and writes of a whole buffer at an offset. They move the file's cursor.
pub trait AtOffset {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::UnexpectedEof`] if the file ends early.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
}

impl AtOffset for File {
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.seek_read(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.seek_write(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    buf = &buf[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
