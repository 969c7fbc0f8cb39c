//! Where the key files of an issuer are: in its directory, or as rows of the database that several issuers share.
//!
//! Each change is one step that is durable when it returns. In the database the steps are made under a lock, which the connection
//! of those steps holds.

use super::KeysError;
use super::files::content;
use crate::database::postgres::Server;
use crate::database::{Connection, Error, KEYS, Value, values};
use postern_daemon::files::{DataDir, replace_secret, sync_directory, write_private};
use postern_token::{UnixSeconds, key_file};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

#[derive(Debug)]
pub(crate) enum Shelf {
    Directory(PathBuf),
    /// The connection, and the place of the server, which messages show in place of a directory.
    Table(Connection, PathBuf),
}

impl Shelf {
    /// Returns the shelf of an issuer: its directory, or the database of `server`. Refuses key files that the database would hide.
    pub(crate) fn of(directory: &DataDir, server: Option<Arc<Server>>) -> Result<Self, KeysError> {
        let own = Self::Directory(directory.path().to_owned());
        let Some(server) = server else { return Ok(own) };
        match own.key_files()?.into_iter().next() {
            Some(path) => Err(KeysError::Left { path }),
            None => Self::in_database(server),
        }
    }

    /// Returns the table of the database of `server`, which is created if there is none.
    pub(crate) fn in_database(server: Arc<Server>) -> Result<Self, KeysError> {
        let place = PathBuf::from(&server.place).join("token_keys");
        match Connection::open(server) {
            Ok(connection) => Ok(Self::Table(connection, place)),
            Err(error) => Err(KeysError::Database { place, reason: error.to_string() }),
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        matches!(self, Self::Table(..))
    }

    /// Returns the directory of the files, or what stands for it.
    pub(super) fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) | Self::Table(_, directory) => directory,
        }
    }

    pub(super) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory().join(name)
    }

    /// Keeps other issuers from changes until [`Shelf::release`].
    pub(super) fn hold(&self) -> Result<(), KeysError> {
        match self {
            Self::Table(Connection::Postgres(session), place) => session
                .hold(KEYS)
                .map_err(|error| KeysError::Database { place: place.clone(), reason: error.to_string() }),
            _ => Ok(()),
        }
    }

    /// Describes the fault of the clock, if it differs from the database's.
    pub(super) fn clock_fault(&self, now: UnixSeconds) -> Result<Option<String>, KeysError> {
        match self {
            Self::Directory(_) => Ok(None),
            Self::Table(connection, place) => connection
                .clock_fault(now)
                .map_err(|error| KeysError::Database { place: place.clone(), reason: error.to_string() }),
        }
    }

    pub(super) fn release(&self) {
        if let Self::Table(Connection::Postgres(session), _) = self {
            session.release();
        }
    }

    /// Returns the paths of all files, in order.
    pub(super) fn all(&self) -> io::Result<Vec<PathBuf>> {
        let mut paths = match self {
            Self::Directory(directory) => {
                let entries = std::fs::read_dir(directory)?;
                entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?
            }
            Self::Table(connection, place) => {
                let names = connection.rows("SELECT name FROM token_keys", &[], |row| row.get::<String>(0));
                names.map_err(other)?.into_iter().map(|name| place.join(name)).collect()
            }
        };
        paths.sort();
        Ok(paths)
    }

    /// Returns the key files, oldest first.
    pub(super) fn key_files(&self) -> Result<Vec<PathBuf>, KeysError> {
        let mut paths = self.all().map_err(KeysError::unreadable(self.directory()))?;
        paths.retain(|path| key_file::token_type(path).is_some());
        Ok(paths)
    }

    /// Reads a key file ([`content`]).
    pub(super) fn content(&self, path: &Path) -> Result<Zeroizing<Vec<u8>>, KeysError> {
        match self {
            Self::Directory(_) => content(path),
            Self::Table(..) => self.read(path).map_err(KeysError::unreadable(path)),
        }
    }

    pub(super) fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match self {
            Self::Directory(_) => std::fs::read(path).map(Zeroizing::new),
            Self::Table(connection, _) => {
                let sql = "SELECT content FROM token_keys WHERE name = ?1";
                let found = connection.first(sql, values![name(path)], |row| row.get::<Vec<u8>>(0));
                found.map_err(other)?.map(Zeroizing::new).ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }

    /// Writes a new file.
    pub(super) fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let sql = "INSERT INTO token_keys (name, content) VALUES (?1, ?2)";
        match self {
            Self::Directory(_) => write_private(path, content),
            Self::Table(connection, _) => changed(connection, sql, values![name(path), content]),
        }
    }

    pub(super) fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let sql = "UPDATE token_keys SET content = ?2 WHERE name = ?1";
        match self {
            Self::Directory(_) => replace_secret(path, content),
            Self::Table(connection, _) => changed(connection, sql, values![name(path), content]),
        }
    }

    /// Renames a file: a crash leaves it under one of the two names.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let sql = "UPDATE token_keys SET name = ?2 WHERE name = ?1";
        match self {
            Self::Directory(directory) => {
                std::fs::rename(directory.join(from), directory.join(to))?;
                sync_directory(directory)
            }
            Self::Table(connection, _) => changed(connection, sql, values![from, to]),
        }
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let sql = "DELETE FROM token_keys WHERE name = ?1";
        match self {
            Self::Directory(directory) => {
                std::fs::remove_file(path)?;
                sync_directory(directory)
            }
            Self::Table(connection, _) => changed(connection, sql, values![name(path)]),
        }
    }
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn other(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Changes one row, under the lock of [`Shelf::hold`]: behind a pooler in transaction mode another session may have it.
fn changed(connection: &Connection, sql: &str, values: &[Value]) -> io::Result<()> {
    let locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted";
    if connection.first(locks, &[], |_| Ok(())).map_err(other)?.is_none() {
        return Err(io::Error::other(
            "the lock for changes of token keys is not this session's: name the server itself in [accounts] database, no pooler",
        ));
    }
    match connection.run(sql, values).map_err(other)? {
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(()),
    }
}
