//! Processes behind listening sockets, and files that they have open, by the kernel's lists in `/proc`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
    descriptors(process).filter_map(target).collect()
}

/// Returns a process's descriptors; none if this user may not look into it.
fn descriptors(process: u32) -> impl Iterator<Item = PathBuf> {
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
    descriptors(process).filter_map(|descriptor| place(&descriptor)).any(|open| wanted.contains(&open))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

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
