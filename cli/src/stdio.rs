//! Output of commands. Rust ignores SIGPIPE, as a daemon must, so a reader that has gone (`postern doctor | head -1`) fails each
//! write. This error is ignored: the remaining output is dropped, and the command ends with the exit code that it would have had.
//! Any other write error, such as a full disk, fails the command.
//!
//! Output that is shown once, an API key or a token, does not use this module: it would be lost with its reader.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    let mut out = Stdout::lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(unprinted)
}

pub(crate) fn print_line(text: impl Display) -> Result<(), Failure> {
    print(format_args!("{text}\n"))
}

/// Warns of a secret on the command line, which every user of the machine can read.
pub(crate) fn warn_of_secret(what: &str, instead: &str) {
    note(format_args!(
        "{what} stands on the command line, where other users of this machine can read it, and in the shell's history: {instead}"
    ));
}

/// Prints to standard error. Errors are ignored, because there is no other place to report them.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

pub(crate) fn unprinted(error: io::Error) -> Failure {
    Failure::runtime(format_args!("the answer cannot be written: {error}"))
}

/// Buffered standard output that ignores a broken pipe.
pub(crate) struct Stdout(BufWriter<StdoutLock<'static>>);

impl Stdout {
    pub(crate) fn lock() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        readers_may_leave(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        readers_may_leave(self.0.flush(), ())
    }
}

fn readers_may_leave<T>(written: io::Result<T>, all: T) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(all),
        written => written,
    }
}
