//! `postern token inspect`: explains what a value holds, or each line of a file or of standard input.

use crate::args::Inspect;
use crate::failure::Failure;
use crate::stdio::print;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// The longest line that is read: the longest challenge there can be, and room to spare.
const LINE_LIMIT: u64 = 1 << 20;
/// A value was wrong.
pub(super) const WRONG: u8 = 1;

pub(crate) fn inspect(args: Inspect) -> Result<(), Failure> {
    match (args.file, args.value) {
        (Some(path), _) => lines(open(&path)?),
        (None, Some(value)) if is_file(&value) => lines(open(Path::new(&value))?),
        (None, Some(value)) => one(value.trim(), !is_named_like_a_file(&value)),
        (None, None) => lines(Box::new(BufReader::new(io::stdin()))),
    }
}

fn is_file(value: &str) -> bool {
    let path = Path::new(value);
    path.exists() && !path.is_dir()
}

/// No header value has these, and no bare one is so short.
fn is_named_like_a_file(value: &str) -> bool {
    value.len() < 255 && !value.contains([' ', '"', '=']) && !value.is_empty()
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    let file = File::open(path)
        .map_err(|error| Failure::usage(format_args!("cannot read {}: {error}", path.display())))?;
    Ok(Box::new(BufReader::new(file)))
}

fn one(value: &str, is_value: bool) -> Result<(), Failure> {
    let inspection = postern_token::inspect(value).map_err(|error| {
        let or_file = if is_value { "" } else { "; if it names a file, there is none of this name" };
        Failure::new(WRONG, format_args!("{error}{or_file}"))
    })?;
    print(inspection)
}

/// A line that has something in it, and its number.
struct Line {
    number: usize,
    text: String,
}

/// Inspects each line. One alone is shown as a value on the command line is; several are numbered, and those that are
/// wrong do not hide the others.
fn lines(mut input: Box<dyn BufRead>) -> Result<(), Failure> {
    let mut number = 0;
    let mut next = || next_line(input.as_mut(), &mut number).map_err(Failure::runtime);
    let Some(first) = next()? else { return one("", true) };
    let Some(second) = next()? else { return one(&first.text, true) };
    let (mut line, mut queued, mut wrong, mut seen) = (first, Some(second), 0, 0);
    loop {
        seen += 1;
        let shown = match postern_token::inspect(&line.text) {
            Ok(inspection) => writeln!(io::stdout(), "Line {}: {inspection}", line.number),
            Err(error) => {
                wrong += 1;
                let _ = io::stdout().flush(); // in the order of the lines, where both go to one place
                writeln!(io::stderr(), "postern: line {}: {error}", line.number)
            }
        };
        let following = match queued.take() {
            Some(second) => Some(second),
            None => next()?,
        };
        match (shown, following) {
            (Ok(()), Some(following)) => line = following,
            _ => break,
        }
    }
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::new(
        WRONG,
        format_args!("{wrong} of {seen} lines hold nothing that can be used: see the lines above"),
    ))
}

fn next_line(input: &mut dyn BufRead, number: &mut usize) -> io::Result<Option<Line>> {
    loop {
        let mut bytes = Vec::new();
        if input.take(LINE_LIMIT).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        *number += 1;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if !text.is_empty() {
            return Ok(Some(Line { number: *number, text }));
        }
    }
}
