//! Tests of what a process has once, such as its metrics, while other tests run in the same process.

use std::process::Command;

/// Runs the test of this path (`module::name`) again in a process of its own, and returns whether this is that process.
///
/// # Panics
///
/// When the test fails there, or there is no such test.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TEST_IN_A_PROCESS_OF_ITS_OWN";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ended = command.args([test, "--exact"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    false
}
