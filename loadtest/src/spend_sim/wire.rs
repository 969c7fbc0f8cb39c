//! memcached's ASCII protocol as servers and routers read it: `get` of several keys, `add`, `version`.

use std::io::Write;
use std::sync::Arc;

/// A record's name, and its value.
pub(crate) type Name = Arc<[u8]>;
pub(crate) type Value = Arc<[u8]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Get(Vec<Name>),
    Add {
        name: Name,
        exptime: u64,
        value: Value,
    },
    Version,
    /// Any other command: it is answered with an error, and the connection is closed.
    Other,
}

/// Answer to the command for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Stored,
    NotStored,
    Hit(Value),
    Miss,
    Error,
}

/// Parses the first command of `input`. Returns the command and its length; `None` until it is complete.
pub(crate) fn command(input: &[u8]) -> Option<(Command, usize)> {
    let line_end = input.iter().position(|byte| *byte == b'\n')?.checked_sub(1)?;
    let mut words = input[..line_end].split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let mut used = line_end + 2;
    let command = match words.next() {
        Some(b"get") => Command::Get(words.map(Name::from).collect()),
        Some(b"version") => Command::Version,
        Some(b"add") => match (words.next(), words.next(), number(words.next()), number(words.next())) {
            (Some(name), Some(_flags), Some(exptime), Some(length)) => {
                let value = Value::from(input.get(used..used + length as usize)?);
                used += length as usize + 2;
                input.get(..used)?;
                Command::Add { name: Name::from(name), exptime, value }
            }
            _ => Command::Other,
        },
        _ => Command::Other,
    };
    Some((command, used))
}

fn number(word: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

/// Appends the reply to an `add`.
pub(crate) fn added(answer: &Answer, out: &mut Vec<u8>) {
    out.extend_from_slice(match answer {
        Answer::Stored => b"STORED\r\n",
        Answer::NotStored => b"NOT_STORED\r\n",
        _ => b"SERVER_ERROR unavailable\r\n",
    });
}

/// Appends the reply to a `get`. A single error makes the whole reply an error.
pub(crate) fn got<'a>(found: impl Iterator<Item = (&'a Name, &'a Answer)> + Clone, out: &mut Vec<u8>) {
    if found.clone().any(|(_, answer)| *answer == Answer::Error) {
        out.extend_from_slice(b"SERVER_ERROR unavailable\r\n");
        return;
    }
    for (name, answer) in found {
        if let Answer::Hit(value) = answer {
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(name);
            let _ = write!(out, " 0 {}\r\n", value.len()); // writing to a Vec cannot fail
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"END\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_whole_or_not_at_all() {
        let text = b"add k 0 1900000000 3\r\nabc\r\nget a b\r\nversion\r\ndelete k\r\n";
        for cut in 0..text.len() {
            let (mut commands, mut used) = (Vec::new(), 0);
            for end in [cut, text.len()] {
                while let Some((command, length)) = command(&text[used..end]) {
                    commands.push(command);
                    used += length;
                }
            }
            let add =
                Command::Add { name: Name::from(*b"k"), exptime: 1_900_000_000, value: Value::from(*b"abc") };
            let get = Command::Get(vec![Name::from(*b"a"), Name::from(*b"b")]);
            assert_eq!(commands, [add, get, Command::Version, Command::Other], "cut at {cut}");
        }
    }
}
