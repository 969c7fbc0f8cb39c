//! One epoch: its file, its set of keys, and the order in which both are written.

use super::directory::{Directory, On, StoreError};
use super::format::{
    HEADER_LEN, HEADERS, Header, HeaderFault, ORIGIN, ORIGIN_LEN, Origin, RECORD_LEN, RECORDS, Read, Record,
    ShortKey,
};
use super::index::Index;
use crate::{Epoch, Marks};
use parking_lot::{Mutex, RwLock};
use postern_token::{Mark, MarkId, TokenKeyId, UnixSeconds};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes read at once while loading: 512 Ki records, 10 MiB.
const CHUNK: usize = RECORD_LEN << 19;

/// Upper limit for the block size that padding is based on: network file systems report a megabyte.
const LARGEST_BLOCK: u64 = 64 * 1024;

/// A file with more damaged records than this, and more damaged than whole ones, is not a records file.
const DAMAGE_LIMIT: u64 = 1000;

pub(crate) struct EpochLog {
    pub(crate) key: TokenKeyId,
    pub(crate) file: File,
    index: Index,
    expires: AtomicU64,
    /// Offset of the next record. Writers reserve their place by adding, so they never overlap, and a failed or short write
    /// leaves a gap of one record and moves no other record.
    next: AtomicU64,
    /// A record could not be written: padding must be written before further records.
    full: AtomicBool,
    /// Offset reserved for the padding while it cannot be written.
    trial: Mutex<Option<u64>>,
    /// Something was written since the last sync began.
    dirty: AtomicBool,
    /// The expiry in each of the two headers; `None` if that header is broken.
    headers: Mutex<[Option<UnixSeconds>; 2]>,
    pub(crate) found: Found,
    /// The mark that binds its tokens, and the id of the mark.
    pub(crate) mark: Option<Mark>,
    id: RwLock<Option<(Marks, MarkId)>>,
}

/// Counts of the records found while loading.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) whole: u64,
    pub(crate) damaged: u64,
    pub(crate) holes: u64,
}

impl EpochLog {
    pub(crate) fn first_bytes(epoch: &Epoch, origin: Option<&Origin>) -> Vec<u8> {
        let mut bytes = vec![0; RECORDS as usize];
        for at in HEADERS {
            let header = Header { key: epoch.key, expires: epoch.expires }.encode();
            bytes[at as usize..at as usize + HEADER_LEN].copy_from_slice(&header);
        }
        if let Some(origin) = origin {
            bytes[ORIGIN as usize..ORIGIN as usize + ORIGIN_LEN].copy_from_slice(&origin.encode());
        }
        bytes
    }

    /// Creates an epoch without records over a file that begins with [`EpochLog::first_bytes`].
    pub(crate) fn new(epoch: &Epoch, file: File, mark: Option<Mark>) -> Self {
        Self {
            key: epoch.key,
            file,
            index: Index::new(),
            expires: AtomicU64::new(epoch.expires.0),
            next: AtomicU64::new(RECORDS),
            full: AtomicBool::new(false),
            trial: Mutex::default(),
            dirty: AtomicBool::new(false),
            headers: Mutex::new([Some(epoch.expires); 2]),
            found: Found::default(),
            mark,
            id: RwLock::default(),
        }
    }

    /// Returns the epoch without its records if it is over by `now`. `None` if it is not, or if [`EpochLog::open`] has to tell what
    /// is wrong with its headers.
    pub(crate) fn over(key: TokenKeyId, directory: &Directory, now: UnixSeconds) -> Option<Self> {
        let path = directory.records(key);
        let file = File::open(&path).ok()?;
        let ends = read_headers(&file, key, &path).ok()?;
        let expires = ends.into_iter().flatten().max().filter(|expires| *expires <= now)?;
        Some(Self::new(&Epoch { key, expires, mark: None }, file, None))
    }

    /// Opens the file of a key and reads its records. A file other than the one that its mark was drawn for
    /// gets a new mark. Otherwise the records move to a new file, so that an earlier copy no longer matches its mark.
    pub(crate) fn open(key: TokenKeyId, directory: &Directory) -> Result<Self, StoreError> {
        let path = &directory.records(key);
        let mut file = OpenOptions::new().read(true).write(true).open(path).on("open", path)?;
        let meta = file.metadata().on("read", path)?;
        let damaged = |why: &str| Err(StoreError::damaged(path, why));
        if meta.len() < RECORDS {
            return damaged(&format!("it ends after {} bytes, within its header", meta.len()));
        }
        let headers = read_headers(&file, key, path)?;
        let Some(expires) = headers.into_iter().flatten().max() else {
            return damaged("both its headers are broken");
        };
        let mut origin = [0; ORIGIN_LEN];
        file.read_exact_at(&mut origin, ORIGIN).on("read", path)?;
        let is_wiped = headers[0].is_none(); // zeros there may replace a mark
        let mark = match Origin::read(&origin, &meta) {
            Read::Unmarked if !is_wiped => None,
            Read::Marked(mark) => {
                file = directory.move_records(key, &file, mark)?.unwrap_or(file);
                Some(mark)
            }
            Read::Unmarked | Read::Moved => Some(renew(&file, &meta, key).on("write", path)?),
        };
        let mut log = Self::new(&Epoch { key, expires, mark: None }, file, mark);
        log.headers = Mutex::new(headers);
        log.load(path, &meta)?;
        Ok(log)
    }

    fn load(&mut self, path: &Path, meta: &Metadata) -> Result<(), StoreError> {
        // Reserves by the allocated blocks: the length may include holes.
        let records = meta.len().min(meta.blocks().saturating_mul(512)) / RECORD_LEN as u64;
        self.index.reserve(usize::try_from(records).unwrap_or(0));

        let (mut reader, mut chunk, mut at) = (&self.file, Vec::new(), RECORDS);
        reader.seek(SeekFrom::Start(RECORDS)).on("read", path)?;
        loop {
            chunk.clear();
            let read = reader.take(CHUNK as u64).read_to_end(&mut chunk).on("read", path)?;
            // A truncated last record: its missing bytes count as zeros, and its place is not used again.
            chunk.resize(read.next_multiple_of(RECORD_LEN), 0);
            take_in(&self.index, &mut self.found, chunk.as_chunks().0);
            at += chunk.len() as u64;
            if read < CHUNK {
                break;
            }
        }
        self.next = AtomicU64::new(at);
        if self.found.damaged > DAMAGE_LIMIT && self.found.damaged > self.found.whole {
            let why = format!("{} records are damaged and {} whole", self.found.damaged, self.found.whole);
            return Err(StoreError::damaged(path, &why));
        }
        Ok(())
    }

    pub(crate) fn knows(&self, id: MarkId, marks: &Marks) -> bool {
        let Some(mark) = self.mark else { return false };
        if let Some((of, known)) = &*self.id.read()
            && Arc::ptr_eq(&of.id, &marks.id)
        {
            return *known == id;
        }
        let known = (marks.id)(self.key, mark); // the first call, or other marks since
        *self.id.write() = Some((marks.clone(), known));
        known == id
    }

    pub(crate) fn expires(&self) -> UnixSeconds {
        UnixSeconds(self.expires.load(Ordering::Acquire))
    }

    pub(crate) fn contains(&self, key: ShortKey) -> bool {
        self.index.contains(key)
    }

    /// Spends a key in the only safe order: memory first (one caller wins, all others are refused from here on), then the file,
    /// and only then the answer. Returns `false` if the key was spent before.
    ///
    /// A record that cannot be written leaves the key spent in memory: refusing is safe.
    pub(crate) fn spend(&self, key: ShortKey) -> io::Result<bool> {
        if !self.index.insert(key) {
            return Ok(false);
        }
        let at = self.next.fetch_add(RECORD_LEN as u64, Ordering::Relaxed);
        let written = self.file.write_all_at(&Record::encode(key), at);
        // A failed write was promised to no caller, so it requests no sync: on such a disk the sync might fail too and stop the
        // store permanently.
        let outcome = if written.is_ok() { &self.dirty } else { &self.full };
        outcome.store(true, Ordering::Release);
        written.map(|()| true)
    }

    /// Tests whether records can be written again after a failure, with padding of more than one disk block: the rest of a used
    /// block may be writable although no new block is free. The place stays reserved until the padding is written, so that a
    /// full disk does not lengthen the file with each trial.
    pub(crate) fn try_to_write(&self) -> io::Result<()> {
        if !self.full.load(Ordering::Acquire) {
            return Ok(());
        }
        let block = self.file.metadata()?.blksize().clamp(4096, LARGEST_BLOCK);
        let padding = (2 * block).next_multiple_of(RECORD_LEN as u64);
        let mut trial = self.trial.lock();
        let at = *trial.get_or_insert_with(|| self.next.fetch_add(padding, Ordering::Relaxed));
        self.file.write_all_at(&vec![0; padding as usize], at)?;
        self.dirty.store(true, Ordering::Release);
        *trial = None;
        self.full.store(false, Ordering::Release);
        Ok(())
    }

    /// Moves the expiry to a later second, durably. The header that is not rewritten stays intact.
    ///
    /// A failed sync affects the records of all callers and is reported by the system only once: `sync_failed` is called with
    /// it.
    pub(crate) fn extend(
        &self,
        expires: UnixSeconds,
        sync_failed: impl FnOnce(&io::Error),
    ) -> io::Result<()> {
        let mut headers = self.headers.lock();
        if expires <= self.expires() {
            return Ok(());
        }
        let older = usize::from(headers[1] < headers[0]); // a broken header counts as the oldest
        let header = Header { key: self.key, expires };
        headers[older] = None;
        self.file.write_all_at(&header.encode(), HEADERS[older])?;
        self.file.sync_data().inspect_err(sync_failed)?;
        headers[older] = Some(expires);
        self.expires.store(expires.0, Ordering::Release);
        Ok(())
    }

    /// Syncs if anything was written since the last sync.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // Cleared before the sync: a concurrent write sets it again.
        if self.dirty.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }

    pub(crate) fn records(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.bytes() + size_of::<Self>()
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// Returns the end in each header, `None` for a broken one.
fn read_headers(file: &File, key: TokenKeyId, path: &Path) -> Result<[Option<UnixSeconds>; 2], StoreError> {
    let mut ends = [None; 2];
    for (at, end) in HEADERS.into_iter().zip(&mut ends) {
        let mut bytes = [0; HEADER_LEN];
        file.read_exact_at(&mut bytes, at).on("read", path)?;
        match Header::decode(&bytes) {
            Ok(header) if header.key == key => *end = Some(header.expires),
            Ok(_) => {
                return Err(StoreError::damaged(path, "its header names another key than its file name"));
            }
            Err(HeaderFault::Newer(version)) => {
                let path = path.display();
                let reason =
                    format!("{path} has version {version}, written by a later Postern: run that version");
                return Err(StoreError::Refused(reason));
            }
            Err(HeaderFault::Broken) => {}
        }
    }
    Ok(ends)
}

fn renew(file: &File, meta: &Metadata, key: TokenKeyId) -> io::Result<Mark> {
    let origin = Origin::draw(meta);
    file.write_all_at(&origin.encode(), ORIGIN)?;
    file.sync_data()?;
    tracing::warn!(
        token_key = %key.short(),
        "the spent records of a token key were copied, restored, moved or damaged since they were last used, so some may be \
         missing: tokens that were requested before are void"
    );
    Ok(origin.mark())
}

fn take_in(index: &Index, found: &mut Found, records: &[[u8; RECORD_LEN]]) {
    index.insert_all(records.iter().filter_map(|bytes| match Record::decode(bytes) {
        Record::Whole(key) => {
            found.whole += 1;
            Some(key)
        }
        Record::Damaged(key) => {
            found.damaged += 1;
            Some(key) // if only the checksum is damaged, this keeps the token spent
        }
        Record::Hole => {
            found.holes += 1;
            None
        }
    }));
}
