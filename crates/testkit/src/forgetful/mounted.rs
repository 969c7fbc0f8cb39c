//! The kernel's interface to the disk: the part of the FUSE protocol that the tests require, over `/dev/fuse`.
//!
//! Written by hand, because a crate for FUSE brings five others for a few tests. The layouts are those of `linux/fuse.h`, version
//! 7.31.

use super::contents::{Body, Cached, Names, Naming, Node, State, Syncs, Write};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Maximum length of a write from the kernel, and of a request that contains one.
const LONGEST_WRITE: u32 = 128 << 10;
const LONGEST_REQUEST: usize = LONGEST_WRITE as usize + 4096;
/// Flag of a reply to OPEN: the file bypasses the page cache.
const DIRECT_IO: u32 = 1;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

#[derive(Clone, Copy)]
struct Errno(i32);

impl Errno {
    const ENOENT: Self = Self(2);
    const EIO: Self = Self(5);
    const EEXIST: Self = Self(17);
    const EXDEV: Self = Self(18);
    const ENOTDIR: Self = Self(20);
    const EISDIR: Self = Self(21);
    const ENOSYS: Self = Self(38);
    const ESTALE: Self = Self(116);
}

/// Mounts the disk at `place` and serves it on a new thread.
pub(super) fn mount(state: &Arc<Mutex<State>>, place: &Path) -> io::Result<()> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd=0,rootmode={DIRECTORY:o},user_id={0},group_id={0}", 0);
    let mut mount = Command::new("mount");
    mount.args(["-i", "-t", "fuse", "-o", &options, "forgetful"]).arg(place).stdin(device.try_clone()?);
    let disk = Disk(Arc::clone(state));
    std::thread::Builder::new().name("forgetful-disk".to_owned()).spawn(move || disk.serve(device))?;
    let mounted = mount.output()?;
    let reason = String::from_utf8_lossy(&mounted.stderr);
    if mounted.status.success() { Ok(()) } else { Err(io::Error::other(reason.trim().to_owned())) }
}

/// Unmounts the disk. Its thread ends once no file is open there.
pub(super) fn unmount(place: &Path) {
    _ = Command::new("umount").arg("-l").arg(place).status();
}

/// A request and its unread bytes.
struct Request<'a> {
    operation: u32,
    node: u64,
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count);
        self.rest = rest;
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(*self.bytes(4).first_chunk().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(*self.bytes(8).first_chunk().unwrap())
    }

    fn name(&mut self) -> OsString {
        let end = self.rest.iter().position(|byte| *byte == 0).unwrap();
        let name = OsStr::from_bytes(self.bytes(end)).to_owned();
        self.bytes(1);
        name
    }
}

/// The body of a reply.
#[derive(Default)]
struct Reply(Vec<u8>);

impl Reply {
    fn u32s<const N: usize>(mut self, numbers: [u32; N]) -> Self {
        numbers.iter().for_each(|number| self.0.extend(number.to_ne_bytes()));
        self
    }

    fn u64s<const N: usize>(mut self, numbers: [u64; N]) -> Self {
        numbers.iter().for_each(|number| self.0.extend(number.to_ne_bytes()));
        self
    }

    fn attributes(self, number: u64, node: &Node) -> Self {
        let (kind, size) = match &node.body {
            Body::File(file) => (REGULAR, file.now().bytes().len() as u64),
            Body::Directory(_) => (DIRECTORY, 0),
        };
        let times = [0; 3];
        let reply = self.u64s([number, size, size.div_ceil(512)]).u64s(times).u32s([0; 3]);
        let (links, owner, device, block) = (1, [0, 0], 0, 4096);
        reply.u32s([kind | node.mode, links]).u32s(owner).u32s([device, block, 0])
    }

    /// Appends a node under a name. The kernel must not cache them, so that each use arrives here.
    fn entry(self, number: u64, node: &Node) -> Self {
        self.u64s([number, 0, 0, 0]).u32s([0, 0]).attributes(number, node)
    }

    /// Appends an open file, whose handle is the number of the boot.
    fn opened(self, boot: u64) -> Self {
        self.u64s([boot]).u32s([DIRECT_IO, 0])
    }

    fn listed(&mut self, number: u64, next: u64, kind: u32, name: &OsStr) {
        let name = name.as_bytes();
        let head = Self::default().u64s([number, next]).u32s([name.len() as u32, kind >> 12]);
        self.0.extend(head.0);
        self.0.extend(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

type Answer = Result<Reply, Errno>;

struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn serve(&self, mut device: File) {
        let mut request = vec![0; LONGEST_REQUEST];
        loop {
            let length = match device.read(&mut request) {
                Ok(length) => length,
                // Not mounted yet.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    std::thread::sleep(Duration::from_millis(1));
                    if Arc::strong_count(&self.0) == 1 {
                        return; // the mount has failed
                    }
                    continue;
                }
                // The caller has gone away, and its request was withdrawn.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::NotFound) => {
                    continue;
                }
                Err(_) => return, // unmounted
            };
            let mut head = Request { operation: 0, node: 0, rest: &request[..length] };
            let (_length, operation, unique, node) = (head.u32(), head.u32(), head.u64(), head.u64());
            head.bytes(16); // user, group and process of the caller
            let answer = self.answer(Request { operation, node, rest: head.rest });
            if let Some(answer) = answer {
                let (error, body) = match answer {
                    Ok(Reply(body)) => (0, body),
                    Err(Errno(number)) => (-number, Vec::new()),
                };
                let head = Reply::default().u32s([16 + body.len() as u32, error as u32]).u64s([unique]);
                _ = io::Write::write(&mut device, &[head.0, body].concat()); // the caller may have gone away
            }
        }
    }

    /// Answers a request; `None` if it has no reply.
    fn answer(&self, mut request: Request<'_>) -> Option<Answer> {
        let (node, request) = (request.node, &mut request);
        Some(match request.operation {
            2 | 36 | 42 => return None, // FORGET, INTERRUPT, BATCH_FORGET
            26 => Ok(initialize()),
            1 => self.look_up(node, &request.name()),
            3 => self.look().and_then(|mut state| state.attributes(node)),
            4 => self.set_attributes(node, request),
            9 => self.make_directory(node, request),
            10 => self.remove(node, request.name()),
            12 => {
                let to = request.u64();
                self.rename(node, to, request)
            }
            45 => {
                let (to, flags, _) = (request.u64(), request.u32(), request.u32());
                if flags == 0 { self.rename(node, to, request) } else { Err(Errno::ENOSYS) }
            }
            14 | 27 => self.open(node),
            15 => self.read(node, request),
            16 => self.write(node, request),
            18 | 25 | 29 | 38 => Ok(Reply::default()), // RELEASE, FLUSH, RELEASEDIR, DESTROY: closing syncs nothing
            20 | 30 => self.sync(node, request.u64()),
            28 => self.list(node, request),
            35 => self.create(node, request),
            _ => Err(Errno::ENOSYS),
        })
    }

    /// Returns the state if the power is on.
    fn look(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.0.lock().unwrap();
        if state.on { Ok(state) } else { Err(Errno::EIO) }
    }

    /// Counts a step that changes or syncs something, and returns the state if the power is on.
    fn step(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let mut state = self.0.lock().unwrap();
        if state.step() { Ok(state) } else { Err(Errno::EIO) }
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Answer {
        let mut state = self.look()?;
        let number = state.names(parent)?.now().get(name).ok_or(Errno::ENOENT)?;
        Ok(Reply::default().entry(number, state.node(number)?))
    }

    fn set_attributes(&self, number: u64, request: &mut Request<'_>) -> Answer {
        let (valid, _, _handle, size) = (request.u32(), request.u32(), request.u64(), request.u64());
        request.bytes(44); // lock owner and times
        let mode = request.u32();
        let mut state = self.step()?;
        let node = state.node(number)?;
        if valid & 1 != 0 {
            node.mode = mode & 0o7777; // survives a power cut, because no promise depends on it
        }
        if let (true, Body::File(file)) = (valid & 8 != 0, &mut node.body) {
            file.change(Write::Cut(size as usize));
        }
        state.attributes(number)
    }

    fn make_directory(&self, parent: u64, request: &mut Request<'_>) -> Answer {
        let (mode, umask) = (request.u32(), request.u32());
        let node = Node { mode: mode & !umask & 0o7777, body: Body::Directory(Cached::default()) };
        self.make(parent, request.name(), node)
    }

    fn create(&self, parent: u64, request: &mut Request<'_>) -> Answer {
        let (_flags, mode, umask, _) = (request.u32(), request.u32(), request.u32(), request.u32());
        let node = Node { mode: mode & !umask & 0o7777, body: Body::File(Cached::default()) };
        let made = self.make(parent, request.name(), node)?;
        Ok(made.opened(self.look()?.boot))
    }

    fn make(&self, parent: u64, name: OsString, node: Node) -> Answer {
        let mut state = self.step()?;
        if state.names(parent)?.now().get(&name).is_some() {
            return Err(Errno::EEXIST);
        }
        let number = state.contents.add(node);
        state.names(parent)?.change(Naming::Make(name, number));
        Ok(Reply::default().entry(number, state.node(number)?))
    }

    fn remove(&self, parent: u64, name: OsString) -> Answer {
        let mut state = self.step()?;
        let names = state.names(parent)?;
        names.now().get(&name).ok_or(Errno::ENOENT)?;
        names.change(Naming::Remove(name));
        Ok(Reply::default())
    }

    fn rename(&self, parent: u64, to: u64, request: &mut Request<'_>) -> Answer {
        let (old, new) = (request.name(), request.name());
        if parent != to {
            return Err(Errno::EXDEV); // no test requires it
        }
        let mut state = self.step()?;
        let names = state.names(parent)?;
        let number = names.now().get(&old).ok_or(Errno::ENOENT)?;
        names.change(Naming::Rename(old, new, number));
        Ok(Reply::default())
    }

    fn open(&self, node: u64) -> Answer {
        let mut state = self.look()?;
        state.node(node)?;
        Ok(Reply::default().opened(state.boot))
    }

    fn read(&self, node: u64, request: &mut Request<'_>) -> Answer {
        let (handle, offset, size) = (request.u64(), request.u64(), request.u32());
        let mut state = self.look()?;
        state.opened(handle)?;
        let Body::File(file) = &state.node(node)?.body else { return Err(Errno::EISDIR) };
        let bytes = file.now().bytes();
        let from = bytes.len().min(offset as usize);
        Ok(Reply(bytes[from..bytes.len().min(from + size as usize)].to_vec()))
    }

    fn write(&self, node: u64, request: &mut Request<'_>) -> Answer {
        let (handle, offset, size) = (request.u64(), request.u64(), request.u32());
        request.bytes(20); // flags and lock owner
        let mut state = self.step()?;
        state.opened(handle)?;
        let Body::File(file) = &mut state.node(node)?.body else { return Err(Errno::EISDIR) };
        file.write(offset as usize, request.bytes(size as usize));
        Ok(Reply::default().u32s([size, 0]))
    }

    fn sync(&self, node: u64, handle: u64) -> Answer {
        let mut state = self.step()?;
        state.opened(handle)?;
        let syncs = state.syncs;
        match &mut state.node(node)?.body {
            Body::File(file) if syncs != Syncs::Ignored => file.sync(),
            Body::Directory(names) if syncs == Syncs::Kept => names.sync(),
            _ => {}
        }
        Ok(Reply::default())
    }

    fn list(&self, node: u64, request: &mut Request<'_>) -> Answer {
        let (handle, offset, size) = (request.u64(), request.u64(), request.u32());
        let mut state = self.look()?;
        state.opened(handle)?;
        let names = state.names(node)?.now().clone();
        let mut reply = Reply::default();
        for (place, (name, number)) in (0..).zip(names.iter()).skip(offset as usize) {
            let kind = if matches!(state.node(number)?.body, Body::File(_)) { REGULAR } else { DIRECTORY };
            let length = reply.0.len();
            reply.listed(number, place + 1, kind, name);
            if reply.0.len() > size as usize {
                reply.0.truncate(length);
                break;
            }
        }
        Ok(reply)
    }
}

/// Returns the reply to INIT: the protocol's version, no options, and the maximum length of a write.
fn initialize() -> Reply {
    let (read_ahead, options, background) = (0, 0, 0);
    Reply::default().u32s([7, 31, read_ahead, options, background, LONGEST_WRITE, 1]).u32s([0; 9])
}

impl State {
    fn node(&mut self, number: u64) -> Result<&mut Node, Errno> {
        self.contents.node(number).ok_or(Errno::ESTALE)
    }

    fn names(&mut self, number: u64) -> Result<&mut Cached<Names>, Errno> {
        match &mut self.node(number)?.body {
            Body::Directory(names) => Ok(names),
            Body::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn attributes(&mut self, number: u64) -> Answer {
        Ok(Reply::default().u64s([0, 0]).attributes(number, self.node(number)?))
    }

    /// Rejects a file that was opened before a power cut.
    fn opened(&self, handle: u64) -> Result<(), Errno> {
        if handle == self.boot { Ok(()) } else { Err(Errno::EIO) }
    }
}
