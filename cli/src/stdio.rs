//! What commands print. Rust ignores SIGPIPE, as a daemon must, so a reader that goes away (`postern doctor | head -1`) is an
//! error of each write. That reader has seen enough: what is left is dropped, and the command ends as it would have anyway, with
//! the same exit code. Any other failure to print, such as a full disk, is a failure of the command.
//!
//! What is shown once and lost with its reader, an API key or a token, is written without this.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Prints a text.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    let mut out = Stdout::lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(unprinted)
}

/// Prints a text, and ends the line.
pub(crate) fn print_line(text: impl Display) -> Result<(), Failure> {
    print(format_args!("{text}\n"))
}

/// Warns of a secret that stands where every user of the machine can read it.
pub(crate) fn warn_of_secret(what: &str, instead: &str) {
    note(format_args!(
        "{what} stands on the command line, where other users of this machine can read it, and in the shell's history: {instead}"
    ));
}

/// Says something on standard error; where that fails nothing is left to say it on.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The failure of a command that cannot print.
pub(crate) fn unprinted(error: io::Error) -> Failure {
    Failure::runtime(format_args!("the answer cannot be written: {error}"))
}

/// Standard output, for an answer of any length.
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
