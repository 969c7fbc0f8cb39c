//! Signals to processes.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than it takes to stop, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a process a signal, such as "HUP". Returns from "STOP" when it does nothing more: a thread goes on until the kernel gets
/// round to stopping it, and would answer meanwhile.
pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
    assert!(sent.unwrap().success(), "SIG{name} to {process}");
    let began = Instant::now();
    while name == "STOP" && !is_stopped(process) {
        assert!(began.elapsed() < PATIENCE, "{process} does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether all of its threads are.
fn is_stopped(process: u32) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.all(|thread| {
        // A thread that has ended since does nothing more, either.
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.map_or(true, |status| status.contains("State:\tT"))
    })
}
