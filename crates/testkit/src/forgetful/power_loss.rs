use super::*;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Creates three files: one synced with its name, one whose content is not synced, and one whose name is not synced.
fn three_files(disk: &ForgetfulDisk) -> io::Result<()> {
    let (root, synced) = (File::open(disk.path())?, File::create(disk.path().join("synced"))?);
    synced.write_all_at(b"before", 0)?;
    synced.sync_data()?;
    fs::write(disk.path().join("unsynced"), "bytes")?;
    root.sync_all()?;
    synced.write_all_at(b"after", 4096)?;
    let nameless = File::create(disk.path().join("nameless"))?;
    nameless.write_all_at(b"bytes", 0)?;
    nameless.sync_all()
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn what_was_synced_stays() {
    let disk = ForgetfulDisk::mount();
    three_files(&disk).unwrap();
    assert_eq!(fs::read(disk.path().join("synced")).unwrap().len(), 4101);
    assert!(!disk.has_all_synced());
    disk.restart(Survivors::None);
    assert_eq!(fs::read(disk.path().join("synced")).unwrap(), b"before");
    assert_eq!(fs::read(disk.path().join("unsynced")).unwrap(), b"");
    assert!(!disk.path().join("nameless").exists());
    assert!(disk.has_all_synced());
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn renames_removals_and_truncations_are_undone() {
    let disk = ForgetfulDisk::mount();
    let at = |name| disk.path().join(name);
    for name in ["renamed", "removed", "emptied"] {
        fs::write(at(name), name).unwrap();
        File::open(at(name)).unwrap().sync_all().unwrap();
    }
    File::open(disk.path()).unwrap().sync_all().unwrap();
    fs::rename(at("renamed"), at("other")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    File::create(at("emptied")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["directory", "emptied", "other"]);
    disk.restart(Survivors::None);
    assert_eq!(names(), ["emptied", "removed", "renamed"]);
    assert_eq!(fs::read_to_string(at("emptied")).unwrap(), "emptied");
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn what_was_open_stays_unusable() {
    let disk = ForgetfulDisk::mount();
    let file = File::create(disk.path().join("file")).unwrap();
    disk.cut_after(1);
    file.write_all_at(b"in time", 0).unwrap();
    assert!(file.write_all_at(b"too late", 0).is_err() && !disk.is_on());
    assert!(file.sync_all().is_err() && fs::read_dir(disk.path()).is_err());
    disk.restart(Survivors::None);
    assert!(file.write_all_at(b"by a process of before", 0).is_err());
    three_files(&disk).unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_disk_that_lies_forgets_what_it_reported_as_synced() {
    for (syncs, left) in [(Syncs::Kept, Some(6)), (Syncs::OfFilesOnly, None), (Syncs::Ignored, None)] {
        let disk = ForgetfulDisk::mount();
        disk.set_syncs(syncs);
        three_files(&disk).unwrap();
        disk.restart(Survivors::None);
        let found = fs::read(disk.path().join("synced")).ok().map(|bytes| bytes.len());
        assert_eq!(found, left, "{syncs:?}");
    }
}
