//! Commands whose reader goes away, as in `postern doctor | head -1`: they end as they would have anyway, without a word.

use crate::init::init;
use crate::support::process::{command, run};
use std::fs::File;
use std::process::Output;
use tempfile::TempDir;

/// Runs a command into a pipe that has no reader.
fn unread(line: &str) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command(line.split(' ')).stdout(writer).output().unwrap()
}

#[test]
fn commands_whose_reader_has_left_end_as_they_would_have() {
    let scratch = TempDir::new().unwrap();
    let home = scratch.path().join("fleet");
    init(&home, &["--fleet"]).assert_stopped();
    let home = home.display();
    for line in [
        "completions bash".to_owned(),
        "help".to_owned(),
        format!("client status --config {home}/client.toml"),
        format!("client status --json --config {home}/client.toml"),
        format!("doctor {home}/gateway-1.toml"),
        format!("doctor {home}/mcrouter-1.json"),
        format!("doctor egress localhost:80 --config {home}/gateway-1.toml"),
        format!("doctor {home}"),
        format!("doctor {home} --json"),
        format!("issuer account list --config {home}/issuer.toml"),
        format!("issuer key list --config {home}/issuer.toml --json"),
        format!("issuer usage --config {home}/issuer.toml"),
        format!("status {home}"),
        format!("status {home} --json"),
        "token inspect PrivateToken".to_owned(),
    ] {
        let (read, unread) = (run(line.split(' ')), unread(&line));
        assert_eq!(unread.status.code(), read.code, "{line}: {unread:?}");
        assert_eq!(String::from_utf8_lossy(&unread.stderr), read.stderr, "{line}");
    }
}

/// The key is shown once, so an operator who adds an account has to learn that the key is lost.
#[test]
fn an_api_key_without_a_reader_is_a_failure() {
    let scratch = TempDir::new().unwrap();
    let home = scratch.path().join("one");
    init(&home, &[]).assert_stopped();
    for command in ["add bob --quota 9/1d", "rotate-key agent"] {
        let ended = unread(&format!("issuer account {command} --config {}/issuer.toml", home.display()));
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{said}");
        assert!(said.contains("the answer cannot be written: Broken pipe"), "{said}");
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    for line in ["completions zsh", "doctor nowhere"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = command(line.split(' ')).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{said}");
        assert!(said.starts_with("postern: the answer cannot be written: No space left"), "{said}");
    }
}
