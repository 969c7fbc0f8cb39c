//! The binary under test as a process, with everything it writes.

use super::PATIENCE;
use postern_testkit::signal::signal;
use std::ffi::OsStr;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A running `postern`; killed when it is dropped.
pub struct Postern {
    child: Child,
    outputs: Outputs,
}

/// The end of a process.
#[derive(Debug)]
pub struct Ended {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Clone)]
struct Outputs(Arc<(Mutex<Collected>, Condvar)>);

struct Collected {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    open: usize,
}

/// The binary under test, in an environment without anything that could change what it does.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postern"));
    for (name, _) in std::env::vars_os() {
        if name == "RUST_LOG" || name.to_string_lossy().starts_with("POSTERN_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    Postern::start(command(args)).ended()
}

impl Postern {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let outputs = Outputs(Arc::new((
            Mutex::new(Collected { stdout: Vec::new(), stderr: Vec::new(), open: 2 }),
            Condvar::new(),
        )));
        outputs.collect(child.stdout.take().unwrap(), |collected| &mut collected.stdout);
        outputs.collect(child.stderr.take().unwrap(), |collected| &mut collected.stderr);
        Self { child, outputs }
    }

    /// Waits until `find` finds something in what was written to stdout and stderr so far.
    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&str, &str) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let (lock, changed) = &*self.outputs.0;
        let mut collected = lock.lock().unwrap();
        loop {
            let (stdout, stderr) = collected.texts();
            if let Some(found) = find(&stdout, &stderr) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if collected.open == 0 || left.is_zero() {
                let how = if left.is_zero() { "took too long" } else { "ended" };
                panic!("the process {how} before it wrote {what}\nstdout: {stdout}\nstderr: {stderr}");
            }
            collected = changed.wait_timeout(collected, left).unwrap().0;
        }
    }

    /// The address that stands after `phrase` in what was written.
    pub fn wait_for_address(&self, phrase: &str) -> SocketAddr {
        self.wait_for(phrase, |stdout, stderr| {
            address_after(stdout, phrase).or_else(|| address_after(stderr, phrase))
        })
    }

    fn until_silent(&self) {
        let (lock, changed) = &*self.outputs.0;
        let waited =
            changed.wait_timeout_while(lock.lock().unwrap(), PATIENCE, |collected| collected.open > 0);
        let (collected, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "the process does not end: {:?}", collected.texts());
    }

    /// Everything written so far: stdout, stderr.
    pub fn written(&self) -> (String, String) {
        self.outputs.0.0.lock().unwrap().texts()
    }

    /// Its standard input, when the command has one; closed when it is dropped.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as "TERM".
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(mut self) -> Ended {
        self.child.kill().unwrap();
        self.ended()
    }

    /// SIGTERM, and its end.
    pub fn terminate(self) -> Ended {
        self.signal("TERM");
        self.ended()
    }

    /// Waits for it to end.
    pub fn ended(mut self) -> Ended {
        self.until_silent();
        let status = self.child.wait().unwrap();
        let (stdout, stderr) = self.written();
        Ended { code: status.code(), stdout, stderr }
    }
}

/// Where a test fails, what the process wrote belongs to the reason.
impl Drop for Postern {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
        if std::thread::panicking() {
            let (_, stderr) = self.outputs.0.0.lock().unwrap_or_else(PoisonError::into_inner).texts();
            println!("process {} wrote:\n{stderr}", self.child.id());
        }
    }
}

impl Ended {
    /// It failed with this code, one sentence on stderr, and nothing on stdout.
    pub fn assert_failed(&self, code: i32, sentence: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(self.stdout.is_empty(), "{self:#?}");
        for part in sentence {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
    }

    pub fn assert_stopped(&self) {
        assert_eq!(self.code, Some(0), "{self:#?}");
    }
}

impl Outputs {
    fn collect(&self, mut pipe: impl Read + Send + 'static, into: fn(&mut Collected) -> &mut Vec<u8>) {
        let shared = self.0.clone();
        std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            loop {
                let length = pipe.read(&mut chunk).unwrap_or(0);
                let mut collected = shared.0.lock().unwrap();
                into(&mut collected).extend_from_slice(&chunk[..length]);
                collected.open -= usize::from(length == 0);
                shared.1.notify_all();
                if length == 0 {
                    return;
                }
            }
        });
    }
}

impl Collected {
    fn texts(&self) -> (String, String) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&self.stdout), text(&self.stderr))
    }
}

/// The address in the first whole line that has `phrase` before it.
fn address_after(text: &str, phrase: &str) -> Option<SocketAddr> {
    let (_, rest) = text.split_once(phrase)?;
    let end = rest.find(|c: char| c.is_whitespace())?; // a line that is still being written has no end
    let address =
        rest[..end].trim_start_matches("http://").trim_start_matches("https://").trim_end_matches('/');
    Some(address.parse().unwrap_or_else(|_| panic!("{address:?} is no address")))
}

/// Returns the CPU time of all threads of a process.
pub fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let spent = tasks.map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default(); // it may have ended
        text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0)
    });
    Duration::from_nanos(spent.sum())
}

/// `true` if a thread of the process runs, or waits for a processor.
pub fn wants_processor(pid: u32) -> bool {
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.any(|task| {
        let text = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default(); // it may have ended
        text.rsplit_once(')').is_some_and(|(_, fields)| fields.starts_with(" R"))
    })
}

/// Returns the resident memory of a process, in KiB.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
