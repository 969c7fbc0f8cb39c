//! Every presentation and its answer, written to a file as it happens, and read back afterwards.
//!
//! A line is one presentation, `token gateway start end answer`, or one outage, `outage from until what`; separated by
//! tabs, times in microseconds since the run began.

use crate::support::PATIENCE;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// One presentation of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presentation {
    pub token: usize,
    pub gateway: usize,
    /// Before the connection was opened.
    pub start: u64,
    /// Time at which the answer, or its absence, was certain.
    pub end: u64,
    pub answer: Answer,
}

/// The answer to a presentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200, and what was sent came back.
    Opened,
    /// 200, and nothing came back.
    OpenedAndLost,
    /// 407, `details="token already spent"`.
    AlreadySpent,
    /// 407: the token's mark does not stand where its record went.
    Void,
    /// 503.
    Unavailable,
    /// No answer: refused, reset, closed.
    Broken,
    /// Anything else.
    Other(u16),
}

/// A time in which the store may fail to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    pub from: u64,
    pub until: u64,
    pub what: String,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Presentation(Presentation),
    Outage(Outage),
}

/// The file, during the run.
pub struct History {
    began: Instant,
    path: PathBuf,
    file: Mutex<File>,
    presentations: watch::Sender<usize>,
}

impl History {
    pub fn create(path: PathBuf) -> Self {
        let file = Mutex::new(File::create(&path).unwrap());
        Self { began: Instant::now(), path, file, presentations: watch::Sender::new(0) }
    }

    /// Microseconds since the run began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap()
    }

    pub fn write(&self, presentation: Presentation) {
        self.append(Line::Presentation(presentation));
        self.presentations.send_modify(|count| *count += 1);
    }

    /// From `from` until `margin` from now. It is meant to be over by then.
    pub fn write_outage(&self, from: u64, margin: Duration, what: &str) {
        let until = self.now() + u64::try_from(margin.as_micros()).unwrap();
        self.append(Line::Outage(Outage { from, until, what: what.to_owned() }));
    }

    /// Returns when there are this many presentations.
    pub async fn written(&self, count: usize) {
        let mut presentations = self.presentations.subscribe();
        let waited = tokio::time::timeout(2 * PATIENCE, presentations.wait_for(|now| *now >= count)).await;
        assert!(waited.is_ok(), "only {} presentations so far", *self.presentations.borrow());
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append(&self, line: Line) {
        // One write, to the file itself: what happened before a crash of the test is there.
        self.file.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Reads a file that [`History`] wrote.
pub fn read(text: &str) -> Result<Vec<Line>, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line was cut off".to_owned());
    }
    text.lines().map(|line| line.parse().map_err(|()| format!("{line:?} is no line of a history"))).collect()
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Presentation(Presentation { token, gateway, start, end, answer }) => {
                write!(f, "{token}\t{gateway}\t{start}\t{end}\t{answer}")
            }
            Self::Outage(Outage { from, until, what }) => write!(f, "outage\t{from}\t{until}\t{what}"),
        }
    }
}

impl FromStr for Line {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |field: &str| field.parse::<u64>().map_err(drop);
        let index = |field: &str| field.parse::<usize>().map_err(drop);
        match fields[..] {
            ["outage", from, until, what] => {
                Ok(Self::Outage(Outage { from: number(from)?, until: number(until)?, what: what.to_owned() }))
            }
            [token, gateway, start, end, answer] => Ok(Self::Presentation(Presentation {
                token: index(token)?,
                gateway: index(gateway)?,
                start: number(start)?,
                end: number(end)?,
                answer: answer.parse()?,
            })),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened => f.write_str("opened"),
            Self::OpenedAndLost => f.write_str("opened-and-lost"),
            Self::AlreadySpent => f.write_str("spent"),
            Self::Void => f.write_str("void"),
            Self::Unavailable => f.write_str("unavailable"),
            Self::Broken => f.write_str("broken"),
            Self::Other(status) => write!(f, "other-{status}"),
        }
    }
}

impl FromStr for Answer {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Ok(match word {
            "opened" => Self::Opened,
            "opened-and-lost" => Self::OpenedAndLost,
            "spent" => Self::AlreadySpent,
            "void" => Self::Void,
            "unavailable" => Self::Unavailable,
            "broken" => Self::Broken,
            other => Self::Other(other.strip_prefix("other-").ok_or(())?.parse().map_err(drop)?),
        })
    }
}
