//! One epoch: its file, its set of keys, and the order in which the two are written.

use super::directory::Directory;
use super::error::{On, StoreError};
use super::format::{HEADER_LEN, HEADERS, Header, HeaderFault, RECORD_LEN, RECORDS, Record, ShortKey};
use super::index::Index;
use super::origin::{ORIGIN, ORIGIN_LEN, Origin, Read};
use crate::{Epoch, Marks};
use parking_lot::{Mutex, RwLock};
use postern_token::{Mark, MarkId, TokenKeyId, UnixSeconds};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes read at a time while loading: 512 Ki records, 10 MiB.
const CHUNK: usize = RECORD_LEN << 19;

/// The largest block that padding is measured by: network filesystems name a megabyte.
const LARGEST_BLOCK: u64 = 64 * 1024;

/// With more damaged records than this, and more than whole ones, the file is something else than records.
const DAMAGE_LIMIT: u64 = 1000;

/// The records of one live epoch.
pub(crate) struct EpochLog {
    key: TokenKeyId,
    file: File,
    index: Index,
    expires: AtomicU64,
    /// Where the next record goes: reserved by adding, so that writers never meet and a write that failed or fell
    /// short leaves a gap of one record and moves nothing else.
    next: AtomicU64,
    /// A record could not be written: padding has to be written before further records.
    full: AtomicBool,
    /// Where the padding goes, while it cannot be written.
    trial: Mutex<Option<u64>>,
    /// Something was written since the last sync began.
    dirty: AtomicBool,
    /// The expiry in each of the two headers; `None` where it is broken.
    headers: Mutex<[Option<UnixSeconds>; 2]>,
    found: Found,
    /// What binds its tokens, and the id of that.
    mark: Option<Mark>,
    id: RwLock<Option<(Marks, MarkId)>>,
}

/// What was found while loading.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) whole: u64,
    pub(crate) damaged: u64,
    pub(crate) holes: u64,
}

impl EpochLog {
    /// The first bytes of a new file: both headers, and its mark.
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

    /// An epoch without records, over a file with [`EpochLog::first_bytes`] in it.
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

    /// Opens the file of a key and reads its headers, but no record yet. Where it is not the file that its mark was given
    /// to, it gets another one; else the records move to a new file, so that a copy made before is of another.
    pub(crate) fn open(key: TokenKeyId, directory: &Directory) -> Result<Self, StoreError> {
        let path = &directory.records(key);
        let mut file = OpenOptions::new().read(true).write(true).open(path).on("open", path)?;
        let meta = file.metadata().on("read", path)?;
        let len = meta.len();
        if len < RECORDS {
            let why = format!("it ends after {len} bytes, within its header");
            return Err(StoreError::Damaged { path: path.to_owned(), why });
        }
        let mut headers = [None; 2];
        for (at, expires) in HEADERS.into_iter().zip(&mut headers) {
            let mut bytes = [0; HEADER_LEN];
            file.read_exact_at(&mut bytes, at).on("read", path)?;
            match Header::decode(&bytes) {
                Ok(header) if header.key == key => *expires = Some(header.expires),
                Ok(_) => {
                    let why = "its header names another key than its file name".to_owned();
                    return Err(StoreError::Damaged { path: path.to_owned(), why });
                }
                Err(HeaderFault::Newer(version)) => {
                    return Err(StoreError::Newer { path: path.to_owned(), version });
                }
                Err(HeaderFault::Broken) => {}
            }
        }
        let Some(expires) = headers.into_iter().flatten().max() else {
            let why = "both its headers are broken".to_owned();
            return Err(StoreError::Damaged { path: path.to_owned(), why });
        };
        let mut origin = [0; ORIGIN_LEN];
        file.read_exact_at(&mut origin, ORIGIN).on("read", path)?;
        let is_wiped = headers[0].is_none(); // zeros there may have been a mark
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
        Ok(log)
    }

    /// Reads all records into memory.
    pub(crate) fn load(&mut self, path: &Path) -> Result<(), StoreError> {
        let meta = self.file.metadata().on("read", path)?;
        // Reserves by the blocks that the file really has: the length may include holes.
        let records = meta.len().min(meta.blocks().saturating_mul(512)) / RECORD_LEN as u64;
        self.index.reserve(usize::try_from(records).unwrap_or(0));

        let mut chunk = vec![0; CHUNK.min(records_bytes(meta.len()))];
        let mut at = RECORDS;
        loop {
            let read = read_up_to(&self.file, &mut chunk, at).on("read", path)?;
            // A last record that was cut short: what is missing reads as zeros, and its place is not used again.
            let rounded = read.next_multiple_of(RECORD_LEN);
            chunk[read..rounded].fill(0);
            self.take_in(chunk[..rounded].as_chunks().0);
            at += rounded as u64;
            if read < chunk.len() {
                break;
            }
        }
        self.next = AtomicU64::new(at);
        if self.found.damaged > DAMAGE_LIMIT && self.found.damaged > self.found.whole {
            let why = format!("{} records are damaged and {} whole", self.found.damaged, self.found.whole);
            return Err(StoreError::Damaged { path: path.to_owned(), why });
        }
        Ok(())
    }

    fn take_in(&mut self, records: &[[u8; RECORD_LEN]]) {
        let found = &mut self.found;
        self.index.insert_all(records.iter().filter_map(|bytes| match Record::decode(bytes) {
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

    pub(crate) fn key(&self) -> TokenKeyId {
        self.key
    }

    /// The mark that binds its tokens, if one does.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Whether its tokens carry the mark with this id.
    pub(crate) fn knows(&self, id: MarkId, marks: &Marks) -> bool {
        let Some(mark) = self.mark else { return false };
        if let Some((of, known)) = &*self.id.read()
            && Arc::ptr_eq(&of.id, &marks.id)
        {
            return *known == id;
        }
        let known = (marks.id)(self.key, mark); // the first time, or others since
        *self.id.write() = Some((marks.clone(), known));
        known == id
    }

    pub(crate) fn expires(&self) -> UnixSeconds {
        UnixSeconds(self.expires.load(Ordering::Acquire))
    }

    pub(crate) fn contains(&self, key: ShortKey) -> bool {
        self.index.contains(key)
    }

    /// Spends a key, in the order that makes it safe: memory (one caller wins, all others are refused from here on),
    /// then the file, and only then may the caller answer. False when the key was spent before.
    ///
    /// A record that cannot be written leaves the key spent in memory: refusing is safe.
    pub(crate) fn spend(&self, key: ShortKey) -> io::Result<bool> {
        if !self.index.insert(key) {
            return Ok(false);
        }
        let at = self.next.fetch_add(RECORD_LEN as u64, Ordering::Relaxed);
        let written = self.file.write_all_at(&Record::encode(key), at);
        // What a failed write left is promised to no caller, so it asks for no sync, which might fail on such a disk and stop
        // the store for good.
        let outcome = if written.is_ok() { &self.dirty } else { &self.full };
        outcome.store(true, Ordering::Release);
        written.map(|()| true)
    }

    /// Tests whether records can be written again after a failure, by padding of more than a block of the disk: the
    /// rest of a block in use may be writable although no new block is free. The place is kept until the padding is
    /// written, so that a disk that stays full does not make the file longer with each trial.
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

    /// Moves the expiry to a later second, durably. The header that is not rewritten stays whole.
    ///
    /// A failed sync concerns all callers' records and is reported by the system only once: `sync_failed` passes it on.
    pub(crate) fn extend(
        &self,
        expires: UnixSeconds,
        sync_failed: impl FnOnce(&io::Error),
    ) -> io::Result<()> {
        let mut headers = self.headers.lock();
        if expires <= self.expires() {
            return Ok(());
        }
        let older = usize::from(headers[1] < headers[0]); // a broken one is the oldest
        let header = Header { key: self.key, expires };
        headers[older] = None;
        self.file.write_all_at(&header.encode(), HEADERS[older])?;
        self.file.sync_data().inspect_err(sync_failed)?;
        headers[older] = Some(expires);
        self.expires.store(expires.0, Ordering::Release);
        Ok(())
    }

    /// Syncs what has been written, if anything has.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // Taken before the sync: a write that comes meanwhile raises it again.
        if self.dirty.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }

    pub(crate) fn found(&self) -> Found {
        self.found
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
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

/// Gives a file another mark, durably.
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

/// The bytes of records in a file of `len` bytes, and room for one more, so that its end is noticed in one reading.
fn records_bytes(len: u64) -> usize {
    let records = len.saturating_sub(RECORDS) / RECORD_LEN as u64 + 1;
    usize::try_from(records).map_or(CHUNK, |records| records.saturating_mul(RECORD_LEN))
}

/// Reads until `buffer` is full or the file ends.
fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
