//! Signals to processes.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time until a process is stopped, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal, such as "HUP", to a process. After "STOP", returns when all threads are stopped: a thread runs until the
/// kernel stops it, and could answer until then.
pub fn signal(process: u32, name: &str) {
    send(name, &process.to_string(), || vec![process]);
}

/// Sends a signal to a process and the others of its group, as [`signal`] does.
pub fn signal_group(leader: u32, name: &str) {
    send(name, &format!("-{leader}"), || group(leader));
}

fn send(name: &str, to: &str, processes: impl Fn() -> Vec<u32>) {
    let sent = Command::new("kill").args(["-s", name, "--", to]).status();
    assert!(sent.unwrap().success(), "SIG{name} to {to}");
    let began = Instant::now();
    while name == "STOP" && !processes().into_iter().all(is_stopped) {
        assert!(began.elapsed() < PATIENCE, "{to} does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the processes of a group.
fn group(leader: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_member = |process: &u32| {
        // "PID (NAME) STATE PARENT GROUP …", where the name may contain anything.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let group = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(2));
        group == Some(&leader.to_string())
    };
    processes.filter(is_member).collect()
}

/// Returns `true` if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    // A process or a thread that has ended since counts as stopped.
    let Ok(mut threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return true };
    threads.all(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.map_or(true, |status| status.contains("State:\tT"))
    })
}
