//! The contents on the disk, the changes since, and the effect of a power cut. Does no I/O.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

pub(super) const ROOT: u64 = 1;
/// Size in bytes of the unit that a disk writes entirely or not at all.
const SECTOR: usize = 512;

/// Syncs that have an effect. A test of a durability promise must fail on a disk that lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// All: the disk keeps everything that it reports as synced.
    Kept,
    /// Syncs of files, not of directories.
    OfFilesOnly,
    /// None, although each is reported as done.
    Ignored,
}

pub(super) struct State {
    pub(super) contents: Contents,
    pub(super) syncs: Syncs,
    /// Number of times the power came on. Files opened before a cut stay unusable after it.
    pub(super) boot: u64,
    pub(super) on: bool,
    /// Number of steps that changed or synced something, and the number after which the power fails.
    pub(super) steps: u64,
    pub(super) last: u64,
}

impl State {
    /// Counts a step; returns `false` if the power is off or fails before the step.
    pub(super) fn step(&mut self) -> bool {
        self.on = self.on && self.steps < self.last;
        self.steps += u64::from(self.on);
        self.on
    }
}

/// Files and directories by number.
pub(super) struct Contents {
    nodes: HashMap<u64, Node>,
    next: u64,
}

pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) body: Body,
}

pub(super) enum Body {
    File(Cached<Bytes>),
    Directory(Cached<Names>),
}

/// A value as programs see it, as it is on disk, and the list of changes between the two.
pub(super) struct Cached<T: Changing> {
    now: T,
    on_disk: T,
    changes: Vec<T::Change>,
}

impl<T: Changing> Default for Cached<T> {
    fn default() -> Self {
        Self { now: T::default(), on_disk: T::default(), changes: Vec::new() }
    }
}

pub(super) trait Changing: Clone + Default {
    /// A change that survives a power cut entirely or not at all.
    type Change;
    fn apply(&mut self, change: &Self::Change);
}

impl<T: Changing> Cached<T> {
    pub(super) fn now(&self) -> &T {
        &self.now
    }

    pub(super) fn change(&mut self, change: T::Change) {
        self.now.apply(&change);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        self.changes.drain(..).for_each(|change| self.on_disk.apply(&change));
    }

    fn forget(mut self, survives: &mut dyn FnMut() -> bool) -> Self {
        self.changes.retain(|_| survives());
        self.sync();
        Self { now: self.on_disk.clone(), on_disk: self.on_disk, changes: Vec::new() }
    }
}

/// The bytes of a file. Some may lie past its end: they were written, but the length that covers them was lost.
#[derive(Clone, Default)]
pub(super) struct Bytes {
    bytes: Vec<u8>,
    length: usize,
}

pub(super) enum Write {
    Piece { at: usize, bytes: Vec<u8> },
    Longer(usize),
    Cut(usize),
}

impl Changing for Bytes {
    type Change = Write;

    fn apply(&mut self, change: &Write) {
        match change {
            Write::Piece { at, bytes } => {
                let end = at + bytes.len();
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[*at..end].copy_from_slice(bytes);
            }
            Write::Longer(length) => {
                self.length = self.length.max(*length);
                self.bytes.resize(self.bytes.len().max(self.length), 0);
            }
            Write::Cut(length) => {
                self.bytes.truncate(*length);
                self.bytes.resize(*length, 0);
                self.length = *length;
            }
        }
    }
}

impl Bytes {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Cached<Bytes> {
    pub(super) fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        if at + bytes.len() > self.now.length {
            self.change(Write::Longer(at + bytes.len()));
        }
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(SECTOR - at % SECTOR));
            self.change(Write::Piece { at, bytes: piece.to_vec() });
            (at, bytes) = (at + piece.len(), rest);
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Names(BTreeMap<OsString, u64>);

pub(super) enum Naming {
    Make(OsString, u64),
    Remove(OsString),
    Rename(OsString, OsString, u64),
}

impl Changing for Names {
    type Change = Naming;

    fn apply(&mut self, change: &Naming) {
        match change {
            Naming::Make(name, node) => _ = self.0.insert(name.clone(), *node),
            Naming::Remove(name) => _ = self.0.remove(name),
            Naming::Rename(from, to, node) => {
                self.0.remove(from);
                self.0.insert(to.clone(), *node);
            }
        }
    }
}

impl Names {
    pub(super) fn get(&self, name: &OsStr) -> Option<u64> {
        self.0.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OsString, u64)> {
        self.0.iter().map(|(name, node)| (name, *node))
    }
}

impl Contents {
    pub(super) fn new() -> Self {
        let root = Node { mode: 0o755, body: Body::Directory(Cached::default()) };
        Self { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn node(&mut self, number: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&number)
    }

    pub(super) fn add(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        number
    }

    pub(super) fn is_synced(&self) -> bool {
        self.nodes.values().all(|node| match &node.body {
            Body::File(file) => file.changes.is_empty(),
            Body::Directory(names) => names.changes.is_empty(),
        })
    }

    /// Applies a power cut: for each unsynced change, `survives` decides if it is on disk. Nodes without a name are lost, and the
    /// others get new numbers, so that no earlier number refers to a node.
    pub(super) fn forget(&mut self, survives: &mut dyn FnMut() -> bool) {
        let mut before = std::mem::take(&mut self.nodes);
        self.keep(ROOT, ROOT, &mut before, survives);
    }

    fn keep(
        &mut self,
        old: u64,
        new: u64,
        before: &mut HashMap<u64, Node>,
        survives: &mut dyn FnMut() -> bool,
    ) {
        let Some(node) = before.remove(&old) else { return }; // kept under another name: an earlier rename was lost
        let body = match node.body {
            Body::File(file) => Body::File(file.forget(survives)),
            Body::Directory(names) => {
                let mut kept = Names::default();
                for (name, old) in names.forget(survives).on_disk.iter() {
                    let new = self.next;
                    self.next += 1;
                    self.keep(old, new, before, survives);
                    if self.nodes.contains_key(&new) {
                        kept.0.insert(name.clone(), new);
                    }
                }
                Body::Directory(Cached { now: kept.clone(), on_disk: kept, changes: Vec::new() })
            }
        };
        self.nodes.insert(new, Node { mode: node.mode, body });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(on_disk: &[u8], write: impl FnOnce(&mut Cached<Bytes>)) -> Cached<Bytes> {
        let mut file = Cached::default();
        file.write(0, on_disk);
        file.sync();
        write(&mut file);
        file
    }

    /// Returns the distinct contents after all combinations of surviving changes.
    fn outcomes(make: impl Fn() -> Cached<Bytes>) -> Vec<Vec<u8>> {
        let changes = make().changes.len();
        let mut found: Vec<_> = (0..1_u32 << changes)
            .map(|chosen| {
                let mut next = 0..changes;
                let kept = make().forget(&mut || chosen >> next.next().unwrap() & 1 == 1);
                kept.now().bytes().to_vec()
            })
            .collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn a_write_is_torn_between_sectors_and_its_length_is_a_separate_change() {
        let torn = outcomes(|| file(&[b'a'; 1024], |file| file.write(510, b"bbbb")));
        assert_eq!(torn.len(), 4, "either half, both or none");
        let appended = outcomes(|| file(b"a", |file| file.write(1, b"bc")));
        assert_eq!(appended, [&b"a"[..], b"a\0\0", b"abc"]);
    }

    #[test]
    fn writes_survive_in_any_order() {
        let rewritten = outcomes(|| {
            file(b"a", |file| {
                file.write(0, b"b");
                file.change(Write::Cut(0));
                file.write(0, b"c");
            })
        });
        for outcome in [&b""[..], b"\0", b"a", b"b", b"c"] {
            assert!(rewritten.iter().any(|found| found == outcome), "{outcome:?} is not in {rewritten:?}");
        }
    }

    #[test]
    fn a_rename_that_survives_without_the_name_it_renamed_still_names_the_file() {
        let mut contents = Contents::new();
        let node = contents.add(Node { mode: 0o600, body: Body::File(file(b"bytes", |_| {})) });
        let Some(Node { body: Body::Directory(root), .. }) = contents.node(ROOT) else { unreachable!() };
        root.change(Naming::Make("old".into(), node));
        root.change(Naming::Rename("old".into(), "new".into(), node));
        let mut survives = [false, true].into_iter();
        contents.forget(&mut || survives.next().unwrap());
        let Some(Node { body: Body::Directory(root), .. }) = contents.node(ROOT) else { unreachable!() };
        let names: Vec<_> = root.now().iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, ["new"]);
    }
}
