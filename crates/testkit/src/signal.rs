//! Signals to processes.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time until a process is stopped, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal, such as "HUP", to a process. After "STOP", returns when all threads are stopped: a thread runs until the
/// kernel stops it, and could answer until then.
pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
    assert!(sent.unwrap().success(), "SIG{name} to {process}");
    let began = Instant::now();
    while name == "STOP" && !is_stopped(process) {
        assert!(began.elapsed() < PATIENCE, "{process} does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns `true` if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.all(|thread| {
        // A thread that has ended since counts as stopped.
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.map_or(true, |status| status.contains("State:\tT"))
    })
}
