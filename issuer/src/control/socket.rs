//! The socket of a running issuer: one request per connection, as a line of JSON; the answer is lines of JSON.

use super::{Line, Refused, Request};
use crate::Config;
use crate::accounts::{self, Accounts, AccountsError, check_directory, own_user};
use crate::keyring::Commands;
use crate::keys;
use postern_daemon::files::{DataDir, DataDirError};
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as Blocking;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// File name of the socket, in the directory of the database.
const SOCKET: &str = "control.sock";
/// Largest request in bytes: a file that declares about fifty thousand accounts. Most requests are a few hundred bytes.
const MOST_REQUEST: u64 = 16 * 1024 * 1024;
const MOST_CONNECTIONS: usize = 8;
/// Longest time for a request to arrive, and longest pause in reading the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for a whole answer.
const ANSWER: Duration = Duration::from_secs(600);
/// Longest wait for an issuer that starts or stops.
const STARTING: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);
/// Longest path that is used as a socket address, in bytes.
const MOST_PATH: usize = 100;

/// Returns the path of the socket in `directory`. A long path leads through the open directory, which must stay open with it.
fn place(directory: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let path = directory.join(SOCKET);
    if path.as_os_str().as_bytes().len() <= MOST_PATH {
        return Ok((path, None));
    }
    let open = File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()));
    Ok((path, Some(open)))
}

/// The control socket of a running issuer. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
    _directory: Option<File>,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // otherwise the next start removes it
    }
}

impl Control {
    /// Listens in `directory`, whose lock the caller holds: an existing socket is left from an issuer that was killed.
    pub(crate) fn bind(directory: &Path) -> Result<Self, AccountsError> {
        let bound = (|| {
            let (path, open) = place(directory)?;
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(Self { listener, path, _directory: open })
        })();
        bound.map_err(|error| AccountsError::Unusable {
            path: directory.join(SOCKET),
            reason: format!("the socket cannot be made ({error})"),
        })
    }

    /// Answers operators. Never returns; cancel safe: a change that has begun still completes.
    pub(crate) async fn serve(&self, accounts: &Arc<Accounts>, commands: &Commands) {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PATIENCE / 100).await; // possibly out of descriptors
                continue;
            };
            // The mode of the socket ensures the same, but not on every system, and not while the socket is created.
            let is_known = stream.peer_cred().is_ok_and(|peer| [own_user(), 0].contains(&peer.uid()));
            if !is_known {
                continue;
            }
            let (accounts, commands) = (accounts.clone(), commands.clone());
            tokio::spawn(async move {
                let (request, stream) = match tokio::time::timeout(PATIENCE, read(stream)).await {
                    Ok(Ok(read)) => read,
                    Ok(Err(_)) | Err(_) => return,
                };
                let (of_accounts, lines) = match request {
                    Ok(Request::Account(request)) => (Some(request), Ok(Vec::new())),
                    Ok(Request::Key(request)) => (None, commands.carry_out(request).await),
                    Err(refused) => (None, Err(refused)),
                };
                let answering = move || {
                    let _place = place;
                    send(stream, |line| match of_accounts {
                        Some(request) => accounts.answer(request, line),
                        None => say(lines, line),
                    })
                };
                if let Ok(Err(error)) = tokio::task::spawn_blocking(answering).await {
                    tracing::debug!("an operator's request was not read to its end: {error}");
                }
            });
        }
    }
}

/// Reads the only line of a connection.
async fn read(stream: UnixStream) -> io::Result<(Result<Request, Refused>, Blocking)> {
    let mut reader = tokio::io::BufReader::new(stream.take(MOST_REQUEST));
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    let stream = reader.into_inner().into_inner().into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = serde_json::from_slice(&line).map_err(|error| {
        Refused::runtime(format!(
            "the issuer does not understand the request ({error}): is it of another version than this postern?"
        ))
    });
    Ok((request, stream))
}

/// Sends an answer that is complete.
fn say(lines: Result<Vec<Line>, Refused>, each: &mut dyn FnMut(Line) -> io::Result<()>) -> io::Result<()> {
    match lines {
        Ok(lines) => lines.into_iter().chain([Line::Done]).try_for_each(each),
        Err(refused) => each(Line::Failed(refused)),
    }
}

/// Sends the lines of `answer`.
fn send(
    stream: Blocking,
    answer: impl FnOnce(&mut dyn FnMut(Line) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER;
    let mut stream = BufWriter::new(stream);
    answer(&mut |line: Line| {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        serde_json::to_writer(&mut stream, &line)?;
        stream.write_all(b"\n")
    })?;
    stream.flush()
}

/// Sends a request to the issuer of `config` if it runs, or carries it out on its files. Calls `each` with the lines of the
/// answer, except the last one. Blocks.
///
/// # Errors
/// [`Refused`], with a sentence for the operator. An error of `each` ends the call, too.
pub fn ask(
    config: &Config,
    request: &Request,
    each: &mut dyn FnMut(Line) -> io::Result<()>,
) -> Result<(), Refused> {
    let directory = &config.keys.directory;
    let mut last = None;
    let mut keep = |line: Line| match line {
        Line::Done | Line::Failed(_) => {
            last = Some(line);
            Ok(())
        }
        line => each(line),
    };
    let deadline = Instant::now() + STARTING;
    loop {
        match connect(directory) {
            Ok(stream) => {
                talk(stream, request, &mut keep)?;
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                check_directory(directory)?;
                return Err(Refused::runtime(format!(
                    "the socket {} may not be used: {error}",
                    directory.join(SOCKET).display()
                )));
            }
            Err(_) => {} // no issuer runs, or one starts or stops
        }
        match DataDir::open(directory) {
            Ok(lock) => {
                match request.clone() {
                    Request::Account(request) => {
                        accounts::control::answer(&lock, config, request, &mut keep)?
                    }
                    Request::Key(request) => say(keys::control::answer(lock, config, request), &mut keep),
                }
                .map_err(unwritten)?;
                break;
            }
            Err(DataDirError::InUse { .. }) if Instant::now() < deadline => std::thread::sleep(TICK),
            Err(error @ DataDirError::InUse { .. }) => {
                return Err(Refused::runtime(format!(
                    "{error}; it does not answer at {} either: is it of an older version?",
                    directory.join(SOCKET).display()
                )));
            }
            Err(error) => {
                check_directory(directory)?; // the likely cause
                return Err(Refused::runtime(error.to_string()));
            }
        }
    }
    match last {
        Some(Line::Failed(refused)) => Err(refused),
        Some(_) => Ok(()),
        None => Err(Refused::unsure("the issuer's answer broke off", request.look())),
    }
}

fn connect(directory: &Path) -> io::Result<Blocking> {
    let (path, _open) = place(directory)?;
    Blocking::connect(path)
}

fn unwritten(error: io::Error) -> Refused {
    Refused::runtime(format!("the answer cannot be written: {error}"))
}

fn talk(
    stream: Blocking,
    request: &Request,
    each: &mut dyn FnMut(Line) -> io::Result<()>,
) -> Result<(), Refused> {
    let broken = |error: io::Error| {
        let why = format!("the conversation with the issuer broke off ({error})");
        Refused::unsure(why, request.look())
    };
    let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
    line.push(b'\n');
    if line.len() as u64 > MOST_REQUEST {
        return Err(Refused::usage(format!(
            "a running issuer takes {MOST_REQUEST} bytes at once, and this request has {}: give it less at a time, or stop the issuer \
             first",
            line.len()
        )));
    }
    let begun = (|| {
        stream.set_read_timeout(Some(3 * PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        (&stream).write_all(&line)
    })();
    begun.map_err(broken)?;
    for line in BufReader::new(stream).lines() {
        let line: Line =
            serde_json::from_str(&line.map_err(broken)?).map_err(|error| broken(io::Error::other(error)))?;
        each(line).map_err(unwritten)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket address has room for some hundred bytes, and a directory's path may be longer.
    #[tokio::test]
    async fn the_socket_is_private_and_found_under_any_path_and_goes_with_the_issuer() {
        let home = tempfile::tempdir().unwrap();
        for name in ["short", &"long-".repeat(40)] {
            let directory = home.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            let control = Control::bind(&directory).unwrap();
            let mode = std::fs::metadata(directory.join(SOCKET)).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600);
            connect(&directory).unwrap();
            std::mem::forget(control); // simulates a kill
            let control = Control::bind(&directory).unwrap();
            connect(&directory).unwrap();
            drop(control);
            assert!(connect(&directory).is_err() && !directory.join(SOCKET).exists());
        }
    }
}
