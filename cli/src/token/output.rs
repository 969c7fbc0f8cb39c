//! Destination of minted tokens: standard output, a new file, or the end of an existing one.

use crate::args::Mint;
use crate::failure::Failure;
use crate::stdio::note;
use postern_daemon::files::private_file;
use std::fmt::{self, Display};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Prefix of each line in a file of tokens.
const PREFIX: &[u8] = b"PrivateToken token=\"";
/// Upper bound of a line's length, in bytes: 354 bytes of token in base64, and the header syntax.
const LINE_LIMIT: u64 = 4096;

pub(super) enum Output {
    Stdout,
    File { file: File, path: PathBuf, is_new: bool },
}

impl Output {
    pub(super) fn open(args: &Mint) -> Result<Self, Failure> {
        match &args.out {
            None => Ok(Self::Stdout),
            Some(path) if args.append => append(path),
            Some(path) => create(path),
        }
    }

    /// Writes a line, unbuffered and in one piece.
    pub(super) fn line(&mut self, value: &str) -> io::Result<()> {
        let line = format!("{value}\n");
        match self {
            Self::Stdout => {
                let mut out = io::stdout();
                out.write_all(line.as_bytes())?;
                out.flush()
            }
            Self::File { file, .. } => {
                let end = file.stream_position()?;
                file.write_all(line.as_bytes()).inspect_err(|_| {
                    // A full disk accepts part of a line, but the file must contain whole tokens. If the truncation fails too,
                    // `--append` finds and removes the partial line.
                    let _ = file.set_len(end);
                })
            }
        }
    }

    /// Removes a new file that is empty: the next run would fail because it exists.
    pub(super) fn close(&self, written: u32) {
        if let Self::File { path, is_new: true, .. } = self
            && written == 0
        {
            let _ = std::fs::remove_file(path); // an empty file does no harm
        }
    }

    /// Returns the options with which the same command mints the rest.
    pub(super) fn go_on(&self, left: u32) -> String {
        match self {
            Self::Stdout => format!("--count {left}"),
            Self::File { .. } => format!("--count {left} --append"),
        }
    }
}

impl Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File { path, .. } => path.display().fmt(f),
        }
    }
}

/// Creates a new file. Never overwrites one: tokens are worth money, and a repeated mint costs quota.
fn create(path: &Path) -> Result<Output, Failure> {
    let opened = private_file().write(true).create_new(true).open(path);
    let file = opened.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AlreadyExists => {
                "add --append to write behind what is in it, or name a file that does not exist"
            }
            _ => "name a file in a directory that exists and that you may write to",
        };
        Failure::usage(format_args!("cannot create {}: {error}; {advice}", path.display()))
    })?;
    locked(file, path, true)
}

fn append(path: &Path) -> Result<Output, Failure> {
    let sentence = |error: io::Error| format!("cannot append to {}: {error}", path.display());
    let is_new = !path.exists();
    let opened = private_file().read(true).write(true).create(true).truncate(false).open(path);
    let opened = opened.map_err(|error| Failure::usage(sentence(error)))?;
    let mut output = locked(opened, path, is_new)?;
    if let Output::File { file, .. } = &mut output
        && !seek_behind_last_token(file, path).map_err(|error| Failure::runtime(sentence(error)))?
    {
        return Err(Failure::usage(format_args!(
            "{} does not hold tokens, one Proxy-Authorization value a line, so nothing is appended to it; name \
             another file",
            path.display()
        )));
    }
    Ok(output)
}

/// Locks the file, because each process looks up the write position only once.
fn locked(file: File, path: &Path, is_new: bool) -> Result<Output, Failure> {
    match file.try_lock() {
        Ok(()) => Ok(Output::File { file, path: path.to_owned(), is_new }),
        Err(TryLockError::WouldBlock) => Err(Failure::runtime(format_args!(
            "another process writes to {}: wait for its end, or name another file",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(Failure::runtime(format_args!(
            "cannot lock {}: {error}; name a file elsewhere",
            path.display()
        ))),
    }
}

/// Seeks to the start of a new line. Removes a partial last line, which a kill or a crash leaves: its token is incomplete and
/// worthless. Keeps a complete last token that only lacks the newline. Returns `false` if the file does not hold tokens.
fn seek_behind_last_token(file: &mut File, path: &Path) -> io::Result<bool> {
    let length = file.seek(SeekFrom::End(0))?;
    let mut head = vec![0; PREFIX.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut head)?;
    if !PREFIX.starts_with(&head) {
        return Ok(false);
    }
    let start = length.saturating_sub(LINE_LIMIT);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(LINE_LIMIT).read_to_end(&mut tail)?;
    let last_line = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let rest = &tail[last_line..];
    let begins_a_token = rest.starts_with(PREFIX) || PREFIX.starts_with(rest);
    if !begins_a_token {
        return Ok(false);
    }
    file.seek(SeekFrom::End(0))?;
    if rest.is_empty() {
        return Ok(true);
    }
    if std::str::from_utf8(rest).is_ok_and(|value| postern_token::inspect(value).is_ok()) {
        return file.write_all(b"\n").map(|()| true);
    }
    file.set_len(start + last_line as u64)?;
    file.seek(SeekFrom::End(0))?;
    note(format_args!(
        "the last line of {} was written in part only, by a run that was cut off: it is removed",
        path.display()
    ));
    Ok(true)
}
