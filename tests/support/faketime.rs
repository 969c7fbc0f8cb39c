//! Daemons with their own clock, by `libfaketime`.

use super::process::command;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the library that the program `faketime` loads into others. Loaded directly: the program would stand between a test's
/// signals and the process.
pub fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = |folder: DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    let found = folders.map(library).find(|path| path.is_file());
    found.expect("faketime is installed (apt-get install faketime)")
}

/// A daemon's clock, which a test sets.
pub struct Clock(PathBuf);

impl Clock {
    /// Creates the clock's file, in `home`. It shows the machine's time.
    pub fn new(home: &Path) -> Self {
        let clock = Self(home.join("clock"));
        clock.set("+0");
        clock
    }

    /// Returns the command of a daemon that reads all its time from this clock.
    pub fn daemon(&self, kind: &str, config: &Path) -> Command {
        let mut command = command([kind.as_ref(), "--config".as_ref(), config.as_os_str()]);
        command.env("LD_PRELOAD", library());
        command.env("FAKETIME_TIMESTAMP_FILE", &self.0).env("FAKETIME_NO_CACHE", "1");
        command
    }

    /// Sets the clock ahead of the machine's by this time, as libfaketime writes it. A process that waits for input only notices
    /// with the next one.
    pub fn set(&self, offset: &str) {
        let begun = self.0.with_extension("begun");
        std::fs::write(&begun, offset).unwrap();
        std::fs::rename(begun, &self.0).unwrap();
    }
}
