//! Permissions, directories and places in files, as Windows has them.
//!
//! Who may read a file is up to its directory, whose access list it inherits: below the user's profile that is the user,
//! administrators and the system. Nothing here changes or checks access lists, which takes calls that no safe interface has.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;
use std::sync::Once;

/// For a file that whoever may read its directory may read. The first one is logged.
#[must_use]
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

/// For directories, and those above them, where they are missing; each inherits the access list of the one above.
#[must_use]
pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

/// Nothing: the file keeps its access list.
///
/// # Errors
/// None.
pub fn make_private(_: &File) -> io::Result<()> {
    Ok(())
}

/// Nothing: a directory cannot be flushed. NTFS writes names to its journal in their order, so after a power loss the last
/// change of a name may be missing, never one before it.
///
/// # Errors
/// None.
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Reads and writes at an offset, all of a buffer. They move the file's cursor.
pub trait AtOffset {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::UnexpectedEof`] where the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The system's.
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
