//! Command `postern token inspect`: explains a value, or each line of a file or of standard input. With `--compare`, it compares the
//! keys and challenges that several addresses serve.

use crate::args::Inspect;
use crate::failure::Failure;
use crate::stdio::{print, print_line};
use postern_client::compare::{View, differences};
use postern_token::UnixSeconds;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::iter;
use std::path::Path;

/// Maximum length of a line, in bytes: exceeds the longest possible challenge.
const LINE_LIMIT: u64 = 1 << 20;
/// Exit code for a wrong value.
const WRONG: u8 = 1;

pub(crate) fn inspect(args: Inspect) -> Result<(), Failure> {
    match args.value {
        Some(value) if is_file(&value) => lines(Box::new(BufReader::new(open(&value)?))),
        Some(value) => one(value.trim(), !is_named_like_a_file(&value)),
        None => lines(Box::new(BufReader::new(io::stdin()))),
    }
}

fn is_file(value: &str) -> bool {
    let path = Path::new(value);
    path.exists() && !path.is_dir()
}

/// `true` if `value` may be a file name: header values contain one of these characters, and bare values are longer.
fn is_named_like_a_file(value: &str) -> bool {
    value.len() < 255 && !value.contains([' ', '"', '=']) && !value.is_empty()
}

fn open(path: &str) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::usage(format_args!("cannot read {path}: {error}")))
}

fn one(value: &str, is_value: bool) -> Result<(), Failure> {
    let inspection = postern_token::inspect(value).map_err(|error| {
        let or_file = if is_value { "" } else { "; if it names a file, there is none of this name" };
        Failure::new(WRONG, format_args!("{error}{or_file}"))
    })?;
    print(inspection)
}

/// Inspects each line that is not blank. A single line is printed like a value on the command line; several are numbered, and a
/// wrong line does not end the inspection.
fn lines(mut input: Box<dyn BufRead>) -> Result<(), Failure> {
    let mut number = 0;
    let mut lines = iter::from_fn(|| next_line(input.as_mut(), &mut number).transpose()).peekable();
    let Some(first) = lines.next().transpose().map_err(Failure::runtime)? else { return one("", true) };
    if lines.peek().is_none() {
        return one(&first.1, true);
    }
    let (mut wrong, mut seen) = (0, 0);
    for line in iter::once(Ok(first)).chain(lines) {
        let (number, text) = line.map_err(Failure::runtime)?;
        seen += 1;
        let shown = match postern_token::inspect(&text) {
            Ok(inspection) => writeln!(io::stdout(), "Line {number}: {inspection}"),
            Err(error) => {
                wrong += 1;
                let _ = io::stdout().flush(); // keeps the order of lines if both streams have one destination
                writeln!(io::stderr(), "postern: line {number}: {error}")
            }
        };
        if shown.is_err() {
            break;
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

/// Returns the next line that is not blank, behind its number; counts lines in `number`.
fn next_line(input: &mut dyn BufRead, number: &mut usize) -> io::Result<Option<(usize, String)>> {
    loop {
        let mut bytes = Vec::new();
        if input.take(LINE_LIMIT).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        *number += 1;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if !text.is_empty() {
            return Ok(Some((*number, text)));
        }
    }
}

/// Prints the view of each address, and the differences.
pub(crate) async fn compare(args: &Inspect) -> Result<(), Failure> {
    if args.compare.len() < 2 {
        return Err(Failure::usage(
            "--compare takes two addresses at least: one alone has nothing to differ from",
        ));
    }
    let mut views = Vec::new();
    for url in &args.compare {
        let view = View::fetch(url, args.ca.as_deref()).await.map_err(Failure::runtime)?;
        print_line(&view)?;
        views.push(view);
    }
    let found = differences(&views, UnixSeconds::now());
    if found.is_empty() {
        return print_line("They agree.");
    }
    Err(Failure::new(
        WRONG,
        format_args!(
            "they do not agree: {}. A key or challenge that only some are shown tells clients apart. After a change of keys a copy may be \
             behind for some minutes; compare again, also from another network",
            found.join("; ")
        ),
    ))
}
