//! Resources of this machine for a daemon: open files, directories that this user may use, free space on their disks. Processes
//! behind listening sockets, and files that they have open, by the kernel's lists in `/proc`.

use super::Finding;
use crate::descriptors;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Uid, User, access};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Minimum free space in bytes; with less, the next key, count or spent record may not fit.
const LEAST_FREE: u64 = 100 << 20;

/// Checks that the limit of open files suffices for `connections`, at `each` descriptors per connection. `key` is the setting.
/// Only the limit of the present process is known.
pub fn descriptors(key: &str, connections: usize, each: usize) -> Finding {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Finding::well("descriptors", "this system does not say how many files a process may open");
    };
    let hard = usize::try_from(hard).unwrap_or(usize::MAX);
    let (needed, enough_for) =
        (descriptors::needed(connections, each), descriptors::enough_for(hard, each).max(1));
    let seen = format!("{key} = {connections} needs {needed} open files, and a process may have {hard} here");
    if enough_for >= connections {
        return Finding::well("descriptors", seen);
    }
    Finding::look("descriptors", seen)
    .costs(format!("started here, it takes {enough_for} connections at once at most, and says so in its log"))
    .remedy(format!(
        "set the hard limit to {needed} or more (LimitNOFILE= of its unit, --ulimit nofile of its container, ulimit -Hn in a \
         shell), or lower {key}"
    ))
}

/// Checks that a daemon's state directory is usable and its disk has room. `key` is the setting, and `cost` the consequence of a
/// failure.
pub fn directory(key: &str, path: &Path, cost: &str) -> Finding {
    let (what, place) = ("disk", format!("{} ({key})", path.display()));
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::well(what, format!("{place} is not there yet: the first start makes it"));
        }
        Err(error) => return closed(what, &place, path, &error),
    };
    if !metadata.is_dir() {
        return Finding::bad(
            what,
            format!("{place} is not a directory"),
            cost,
            format!("move it away, or name another directory in {key}"),
        );
    }
    if let Err(error) = access(path, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK) {
        return closed(what, &place, path, &error.into());
    }
    let Ok(disk) = statvfs(path) else { return Finding::well(what, format!("{place} is there")) };
    #[allow(clippy::useless_conversion, reason = "it has 32 bits on other systems")]
    let free = u64::from(disk.blocks_available()).saturating_mul(disk.fragment_size());
    let seen = format!("{place} has {} MiB of free space", free >> 20);
    if free >= LEAST_FREE {
        return Finding::well(what, seen);
    }
    Finding::bad(what, seen, cost, "free some, or move the directory to a larger disk")
}

/// Returns the process that has locked the file at `path`, by the kernel's list: an attempt to lock it could refuse a daemon that
/// starts at this moment. `None` if no process has, or the system has no list.
pub fn lock_holder(path: &Path) -> Option<u32> {
    let file = std::fs::metadata(path).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // "1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF", with the device in hexadecimal; "1: ->" is a process that waits.
    let place = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).find_map(|fields| {
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str());
        fields.get(4).filter(|_| is_it)?.parse().ok()
    })
}

/// `true` if every user of this machine can read the file at `path`: by its mode, and those of the folders above it.
pub fn is_exposed(path: &Path) -> bool {
    let allows = |path: &Path, bit| std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & bit != 0);
    let Ok(path) = path.canonicalize() else { return false };
    allows(&path, 0o004) && path.ancestors().skip(1).all(|folder| allows(folder, 0o001))
}

/// Reports a file with an agent's API key that every user of this machine can read.
pub fn exposed_api_key(path: &Path) -> Option<Finding> {
    let place = path.display();
    is_exposed(path).then(|| {
        Finding::bad(
            "API key",
            format!("every user of this machine can read the API key in {place}"),
            "who reads it can use up the account's tokens",
            format!(
                "chmod o-rwx {place}; if others have accounts here, have the issuer's operator change the key"
            ),
        )
    })
}

/// Reports that the disk of a directory does not answer. `key` is the setting, and `cost` the consequence.
pub fn silent_disk(key: &str, cost: &str) -> Finding {
    Finding::bad(
        "disk",
        format!("the disk of {key} does not answer"),
        cost,
        "check the disk or its server (dmesg, mount), or move the directory to another disk",
    )
}

/// Reports a path that this user may not read or write. The daemon may run as another user, who may.
pub fn closed(what: &str, place: &str, path: &Path, error: &io::Error) -> Finding {
    Finding::look(what, format!("{place} cannot be examined by {}: {error}", user(Uid::effective())))
        .costs("whether its daemon can use it is not known")
        .remedy(way_in(path))
}

/// Returns advice on the user to rerun as when `path` is unreadable.
pub fn way_in(path: &Path) -> String {
    // The nearest part of the path with a visible owner.
    let owner = path.ancestors().find_map(|part| std::fs::metadata(part).ok());
    let owner = owner.map(|seen| Uid::from_raw(seen.uid())).filter(|owner| *owner != Uid::effective());
    match owner {
        Some(owner) if owner.is_root() => "run this again as root (sudo)".to_owned(),
        Some(owner) => format!("run this again as its owner (sudo -u {})", user(owner)),
        None => "run this again as the user of the daemon, or change the mode with chmod".to_owned(),
    }
}

fn user(uid: Uid) -> String {
    let known = User::from_uid(uid).ok().flatten();
    known.map_or_else(|| format!("#{uid}"), |user| user.name)
}

/// Beginning of the name of a process of Postern. A container engine listens at ports that it passes on to a daemon.
const NAME: &str = "postern";
/// State of a listening socket in the kernel's lists.
const LISTENING: &str = "0A";

/// Returns the processes of Postern that listen at this address, of those that this user may look into.
pub fn listeners(address: SocketAddr) -> Vec<u32> {
    let sockets = listening(address);
    let listens = |process: &u32| links(*process).iter().any(|link| sockets.contains(link));
    processes().filter(|process| is_ours(*process) && listens(process)).collect()
}

/// Returns the sockets that listen at this address, as a process's descriptors name them: `socket:[INODE]`.
fn listening(address: SocketAddr) -> Vec<String> {
    let any = |unspecified: IpAddr| written(SocketAddr::new(unspecified, address.port()));
    let wanted = [written(address), any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into())];
    let lists =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|list| std::fs::read_to_string(list).unwrap_or_default());
    // "0: 0100007F:2382 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 INODE …"
    let lines = lists.iter().flat_map(|list| list.lines().skip(1));
    let fields = lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let ours = fields.filter(|fields| {
        fields.get(3) == Some(&LISTENING)
            && fields.get(1).is_some_and(|at| wanted.iter().any(|wanted| wanted == at))
    });
    ours.filter_map(|fields| Some(format!("socket:[{}]", fields.get(9)?))).collect()
}

/// Formats an address as the kernel's lists do: words of 32 bits in the machine's order, in hexadecimal.
fn written(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", address.port())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_ours(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.starts_with(NAME))
}

/// Returns the targets of a process's descriptors.
fn links(process: u32) -> Vec<String> {
    let target = |descriptor| Some(std::fs::read_link(descriptor).ok()?.to_str()?.to_owned());
    open_files(process).filter_map(target).collect()
}

/// Returns a process's descriptors; none if this user may not look into it.
fn open_files(process: u32) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Returns `true` if a process has a file open. The path may lead to another file in the process's container.
pub fn has_open(process: u32, path: &Path) -> bool {
    let root = format!("/proc/{process}/root");
    let there = std::path::absolute(path)
        .ok()
        .and_then(|path| Some(Path::new(&root).join(path.strip_prefix("/").ok()?)));
    let place = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let wanted: Vec<_> = [place(path), there.as_deref().and_then(place)].into_iter().flatten().collect();
    open_files(process).filter_map(|descriptor| place(&descriptor)).any(|open| wanted.contains(&open))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_directory_is_judged_by_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        let of = |name: &str| directory("store.path", &home.path().join(name), "nothing is kept");
        assert!(of("").seen.contains(" MiB of free space"));
        assert!(of("later").seen.contains("is not there yet"));
        std::fs::write(home.path().join("file"), "").unwrap();
        let file = of("file");
        assert_eq!((file.verdict, file.cost.as_deref()), (Verdict::Bad, Some("nothing is kept")));
    }

    #[test]
    fn open_files_are_compared_with_what_connections_take() {
        assert_eq!(descriptors("limits.connections", 1, 2).verdict, Verdict::Well);
        let many = descriptors("limits.connections", 1 << 40, 2);
        assert_eq!(many.verdict, Verdict::Look);
        assert!(many.remedy.unwrap().contains("LimitNOFILE="));
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        for address in ["127.0.0.1:0", "[::1]:0", "127.0.0.9:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let found = listening(listener.local_addr().unwrap());
            assert_eq!(found.len(), 1, "{address}");
            assert!(links(std::process::id()).contains(&found[0]), "{address}");
        }
    }

    #[test]
    fn an_open_file_is_known_by_its_place() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (home.path().join("one"), home.path().join("other"));
        let _open = std::fs::File::create(&one).unwrap();
        std::fs::write(&other, "").unwrap();
        assert!(has_open(std::process::id(), &one) && !has_open(std::process::id(), &other));
        assert!(!has_open(std::process::id(), &home.path().join("missing")));
    }
}
