//! Follows `docs/start.md` as a new reader would: types its commands, in its order, and compares what they print with
//! the page. What the fences of the page's code blocks mean:
//!
//! | fence | the block is |
//! |---|---|
//! | `sh install` | not run; each line must be one of those in [`is_an_installation`] |
//! | `sh NAME-terminal` | typed into that terminal, a separate bash; every command must end with exit code 0 |
//! | `sh NAME-terminal fails` | the same, and the command must end with another exit code |
//! | `sh NAME-terminal stays` | the same, and runs until Ctrl-C; then the exit code must be 0 |
//! | `text` | what the block before it prints: each line a part of one line, in this order, `…` for anything |
//! | `text any-order` | the same, in any order |
//! | `keys NAME-terminal` | Ctrl-C, pressed in that terminal |
//!
//! Only this is replaced, and nothing in the ignored test that `scripts/fresh-clone-check` runs but the last:
//! - `postern` is the binary under test;
//! - the ports by free ones, which options give to `up`, because other tests run at the same time;
//! - `https://example.com/` by the page that the walk serves itself, for there may be no Internet.

use crate::support::{read, root};
use postern_testkit::ports;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything takes that works, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The ports on the page, and the option of `up` that sets each. The last is the page server's, those before it are of
/// the gateway with TLS.
const PORTS: [(&str, &str); 7] = [
    ("8118", "--client"),
    ("8080", "--gateway"),
    ("8081", "--issuer"),
    ("9090", "--admin"),
    ("8443", ""),
    ("9443", ""),
    ("8000", ""),
];
const OUTSIDE: &str = "https://example.com/";

#[test]
fn every_command_of_the_page_prints_what_the_page_shows() {
    let mut page = page();
    let mut up = "postern up".to_owned();
    let ports = PORTS.map(|_| ports::free());
    // In two steps: a port may have the digits of another number on the page.
    for (index, (number, _)) in PORTS.into_iter().enumerate() {
        assert!(page.contains(number), "{number} is not on the page any more");
        page = page.replace(number, &format!("<port {index}>"));
    }
    for (index, ((_, option), port)) in PORTS.into_iter().zip(ports).enumerate() {
        page = page.replace(&format!("<port {index}>"), &port.to_string());
        if !option.is_empty() {
            up.push_str(&format!(" {option} 127.0.0.1:{port}"));
        }
    }
    page = page.replace("postern up", &up);
    walk(&page);
}

#[test]
#[ignore = "takes the ports of the page: scripts/fresh-clone-check runs it in a clone"]
fn literally() {
    walk(&page());
}

fn page() -> String {
    read(&root().join("docs/start.md"))
}

/// The folder of the binary under test before all others.
fn path() -> OsString {
    let own = Path::new(env!("CARGO_BIN_EXE_postern")).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&others))).unwrap()
}

fn walk(page: &str) {
    let place = tempfile::TempDir::new().unwrap();
    let page = page.replace(OUTSIDE, &served(page));
    let mut terminals: HashMap<String, Terminal> = HashMap::new();
    let mut last: Option<(String, usize)> = None;
    let mut kinds = HashMap::new();
    for Block { line, kind, text } in blocks(&page) {
        let words: Vec<&str> = kind.split(' ').collect();
        *kinds.entry(words[0].to_owned()).or_insert(0) += 1;
        match words[..] {
            ["sh", "install"] => {
                assert!(
                    text.lines().all(is_an_installation),
                    "line {line}: is this how it is installed?\n{text}"
                );
            }
            ["sh", name, ref how @ ..] => {
                let terminal =
                    terminals.entry(name.to_owned()).or_insert_with(|| Terminal::open(place.path()));
                println!("{name}: {}", text.trim_end());
                let from = terminal.type_in(&text);
                match how {
                    [] => assert!(
                        terminal.ended_well(from),
                        "line {line}: a command failed\n{}",
                        terminal.output(from)
                    ),
                    ["fails"] => assert!(
                        !terminal.ended_well(from),
                        "line {line}: it must fail\n{}",
                        terminal.output(from)
                    ),
                    ["stays"] => {}
                    other => panic!("line {line}: unknown {other:?}"),
                }
                if text == "find postern-data -type f\n" {
                    explains_each_file(&page, &terminal.output(from));
                }
                last = Some((name.to_owned(), from));
            }
            ["text", ref how @ ..] => {
                let (name, from) =
                    last.take().unwrap_or_else(|| panic!("line {line}: of which command is this?"));
                let any_order = *how == ["any-order"];
                terminals[&name].says(line, from, &text, any_order);
            }
            ["keys", name] => {
                assert_eq!(text, "Ctrl-C\n", "line {line}");
                let terminal = terminals.get_mut(name).unwrap();
                let from = terminal.started;
                terminal.interrupt();
                assert!(terminal.ended_well(from), "line {line}: not exit code 0\n{}", terminal.output(from));
            }
            _ => panic!("line {line}: the fence {kind:?} has no meaning here"),
        }
    }
    // A page whose blocks are not found would pass.
    assert!(
        kinds["sh"] > 10 && kinds["text"] > 8 && kinds["keys"] > 2,
        "only these blocks were found: {kinds:?}"
    );
}

/// Asserts that the page's table has a row for each file that was found.
fn explains_each_file(page: &str, found: &str) {
    let rows: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `postern-data/")?.split('`').next()).collect();
    for file in found.lines().filter_map(|line| line.strip_prefix("postern-data/")) {
        let is_row = |row: &&str| match row.split_once('*') {
            Some((start, end)) => file.starts_with(start) && file.ends_with(end),
            None => file == *row,
        };
        assert!(rows.iter().any(is_row), "the page does not explain postern-data/{file}: {rows:?}");
    }
}

/// The address of the page that the walk serves: the last of the ports, wherever it stands.
fn served(page: &str) -> String {
    let (_, rest) = page.split_once("http.server ").unwrap();
    format!("http://127.0.0.1:{}/", rest.split(' ').next().unwrap())
}

fn is_an_installation(line: &str) -> bool {
    let rustup = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal";
    let own = "cargo install --path cli --locked";
    let package = |name: &str| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        name.chars().all(is_plain) || name == "./postern*_amd64.deb"
    };
    match line.strip_prefix("sudo apt-get install -y ") {
        Some(packages) => packages.split(' ').all(package),
        None => ["sudo apt-get update", rustup, ". \"$HOME/.cargo/env\"", own].contains(&line),
    }
}

/// A fenced code block: where it begins, what stands behind the fence, what is in it.
struct Block {
    line: usize,
    kind: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => {
                open = Some(Block { line: index + 1, kind: kind.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// A bash, and everything that it and its commands have written.
struct Terminal {
    shell: Child,
    input: ChildStdin,
    written: Arc<(Mutex<Vec<u8>>, Condvar)>,
    /// Length of the output when the last command was typed.
    started: usize,
}

/// Bash's output after the last command that was typed, and after one that failed.
const DONE: &str = "<<done>>";
const FAILED: &str = "<<failed>>";

impl Terminal {
    fn open(place: &Path) -> Self {
        // A test that runs in the background of a script inherits SIGINT ignored, and a program started so ignores it.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "bash", "--noprofile", "--norc"]);
        command.current_dir(place).process_group(0).env("PATH", path());
        // These variables would change what programs do, unseen by the page.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name == "RUST_LOG" || name.starts_with("POSTERN_") || name.to_lowercase().ends_with("_proxy") {
                command.env_remove(name);
            }
        }
        let mut shell =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "exec 2>&1\ntrap 'echo \"{FAILED}\"' ERR").unwrap();
        let written = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        collect(shell.stdout.take().unwrap(), written.clone());
        Self { shell, input, written, started: 0 }
    }

    /// Types the commands. Returns where in what is written their output begins.
    fn type_in(&mut self, commands: &str) -> usize {
        self.started = self.written.0.lock().unwrap().len();
        writeln!(self.input, "{commands}printf '%s\\n' '' '{DONE}'").unwrap();
        self.started
    }

    /// Ctrl-C: the signal that a terminal sends to whatever runs in it.
    fn interrupt(&self) {
        signal("INT", self.shell.id());
    }

    /// Waits until the commands have ended. Whether none of them failed.
    fn ended_well(&self, from: usize) -> bool {
        self.until(from, |output| output.contains(DONE), "the end of the command");
        !self.output(from).contains(FAILED)
    }

    /// Waits until everything in `expected` was output.
    fn says(&self, line: usize, from: usize, expected: &str, any_order: bool) {
        let what = format!("what the page has in line {line}");
        self.until(from, |output| matches(expected, output, any_order), &what);
    }

    fn output(&self, from: usize) -> String {
        String::from_utf8_lossy(&self.written.0.lock().unwrap()[from..]).into_owned()
    }

    fn until(&self, from: usize, found: impl Fn(&str) -> bool, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        let (lock, more) = &*self.written;
        let mut written = lock.lock().unwrap();
        loop {
            let output = String::from_utf8_lossy(&written[from..]).into_owned();
            if found(&output) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // After the command has ended nothing more comes.
            assert!(!left.is_zero() && !output.contains(DONE), "{what} did not come:\n{output}");
            written = more.wait_timeout(written, left).unwrap().0;
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        signal("KILL", self.shell.id()); // whatever still runs in it
        let _ = self.shell.wait();
    }
}

/// Signals the process group that `leader` leads.
fn signal(name: &str, leader: u32) {
    let _ = Command::new("kill").args(["-s", name, "--", &format!("-{leader}")]).status();
}

fn collect(mut output: impl Read + Send + 'static, written: Arc<(Mutex<Vec<u8>>, Condvar)>) {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut chunk) {
            written.0.lock().unwrap().extend_from_slice(&chunk[..length]);
            written.1.notify_all();
        }
    });
}

/// Returns whether each line of `expected` is a part of a line of `output`; in this order, unless any will do.
fn matches(expected: &str, output: &str, any_order: bool) -> bool {
    let mut lines = output.lines();
    expected.lines().filter(|wanted| !matches!(wanted.trim(), "" | "…")).all(|wanted| {
        if any_order {
            lines = output.lines();
        }
        lines.by_ref().any(|line| is_part(wanted, line))
    })
}

/// Returns whether the pieces of `wanted` between `…` are in `line`, one after the other.
fn is_part(wanted: &str, line: &str) -> bool {
    let rest = wanted.split('…').try_fold(line, |rest, piece| Some(rest.split_once(piece)?.1));
    rest.is_some()
}

#[test]
fn what_is_expected_is_looked_for_in_order() {
    let output = "one two three\nfour\nfive\n";
    assert!(matches("two\n…\nfive\n", output, false));
    assert!(matches("one … three\n", output, false));
    assert!(!matches("three … one\n", output, false));
    assert!(!matches("five\nfour\n", output, false));
    assert!(matches("five\nfour\n", output, true));
    assert!(!matches("six\n", output, true));
}
