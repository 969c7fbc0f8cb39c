//! Files and data directories on a disk that loses unsynced data at a power cut.

use super::*;
use postern_testkit::forgetful::{ForgetfulDisk, Survivors, Syncs};

/// Creates a data directory and writes a file in it twice, and cuts the power after each number of steps. Returns a violation of
/// durability as the error.
fn write_twice(syncs: Syncs) -> Result<(), String> {
    for survivors in [Survivors::None, Survivors::Some(1), Survivors::Some(2), Survivors::Some(3)] {
        for steps in 0.. {
            let disk = ForgetfulDisk::mount();
            disk.set_syncs(syncs);
            let place = disk.path().join("deep/data");
            disk.cut_after(steps);
            let mut written = Vec::new();
            if let Ok(data) = DataDir::open(&place) {
                for bytes in [&[b'a'; 3000][..], &[b'b'; 2000]] {
                    written.extend(write_private(&data.join("keys"), bytes).is_ok().then_some(bytes));
                }
            }
            let finished = disk.is_on();
            disk.restart(survivors);
            let found = std::fs::read(place.join("keys")).ok();
            let whole = match (&found, written.as_slice()) {
                (None, []) => true,
                (Some(found), []) => *found == [b'a'; 3000],
                (Some(found), [_]) => *found == [b'a'; 3000] || *found == [b'b'; 2000],
                (Some(found), [.., last]) => found == last,
                (None, _) => false,
            };
            if !whole {
                let found = found.map(|found| found.len());
                return Err(format!(
                    "{steps} steps, {survivors:?}: {} writes, {found:?} bytes found",
                    written.len()
                ));
            }
            DataDir::open(&place).map_err(|error| error.to_string())?;
            if finished {
                break;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_file_that_was_written_is_there_whole_and_so_is_its_directory() {
    write_twice(Syncs::Kept).unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_disk_that_ignores_syncs_is_found_out() {
    for syncs in [Syncs::Ignored, Syncs::OfFilesOnly] {
        assert!(write_twice(syncs).is_err(), "{syncs:?}");
    }
}
