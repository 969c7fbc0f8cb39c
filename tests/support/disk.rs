//! A small file system of a test's own, which can be full. Mounting needs root.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs, unmounted when it is dropped.
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts one of a mebibyte at `path`, an empty folder. `None` where that is not allowed.
    pub fn mounted(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self { path: path.to_owned() })
    }

    /// Writes until nothing more can be written.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![b'.'; size]).is_ok() {}
        }
    }

    /// There is room again.
    pub fn clear(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path.join("something-else-that-fills-the-disk")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status(); // the folder is removed after it
    }
}
