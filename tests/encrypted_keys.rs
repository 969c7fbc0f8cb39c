//! Key files encrypted under `[keys] passphrase_file`, as an operator meets them: OpenSSL reads and writes them, a kill in the middle
//! of the change costs no key, and the passphrase is nowhere but in its file.

use crate::accounts::{issuer, json, said};
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::{Ended, Postern, command, run};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const FIRST: &str = "kZp7-first-passphrase-of-the-test";
const SECOND: &str = "kZp7-second-passphrase-of-the-test";

/// Sets the lines of the passphrase file; a configuration with it, and keys of every type.
fn configured(home: &Path, passphrases: &[&str]) -> PathBuf {
    let file = home.join("passphrase");
    std::fs::write(&file, passphrases.join("\n") + "\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    issuer_config(home, &format!("types = [2, 5, 1]\npassphrase_file = {file:?}\n"))
}

fn ids(list: &[Value]) -> Vec<String> {
    let mut ids: Vec<_> = list.iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

fn key_files(home: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(home.join("issuer")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| {
            path.extension().is_some_and(|end| ["p8", "type5", "type1"].iter().any(|known| end == *known))
        })
        .collect();
    files.sort();
    files
}

/// Runs a script that succeeds, in `home`, and returns its output.
fn shell(home: &Path, script: &str) -> Vec<u8> {
    let output = Command::new("sh").args(["-euc", script]).current_dir(home).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The commands that the guide shows for a file of this ending, for `file` and the passphrase file of the test.
fn recovery(ending: &str, file: &Path) -> String {
    let guide = include_str!("../docs/operate/install.md");
    let (_, section) = guide.split_once("### Encrypted key files").unwrap();
    let lines = section.lines().map(str::trim_start);
    let (mut script, mut is_wanted) = (String::new(), false);
    for line in lines.take_while(|line| !line.starts_with("### ")) {
        match line.strip_prefix("# ") {
            Some(heading) => is_wanted = heading.contains(ending),
            None if line.is_empty() => is_wanted = false,
            None if is_wanted => script += &format!("{line}\n"),
            None => {}
        }
    }
    assert!(script.contains("openssl"), "the guide shows nothing for {ending}");
    script.replace("KEY_FILE", file.to_str().unwrap()).replace("PASSPHRASE_FILE", "passphrase")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openssl_decrypts_each_file_by_the_commands_of_the_guide_and_the_issuer_reads_what_openssl_wrote() {
    let home = TempDir::new().unwrap();
    let config = configured(home.path(), &[FIRST]);
    said(&config, &["key", "rotate", "--in", "0s"]);
    let all = ids(&json(&config, &["key", "list"]));
    let files = key_files(home.path());
    assert!(files.len() >= 3);
    std::fs::create_dir(home.path().join("plain")).unwrap();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let id = name.rsplit_once('.').unwrap().0.rsplit('-').next().unwrap();
        let told =
            said(&config, &["key", "export", id, home.path().join("plain").to_str().unwrap(), "--plain"]);
        assert!(told.contains("Anyone who can read it can issue tokens"), "{told}");
        let plain = std::fs::read(home.path().join("plain").join(name)).unwrap();
        let ending = format!(".{}", file.extension().unwrap().to_str().unwrap());
        assert!(shell(home.path(), &recovery(&ending, file)) == plain, "{name}");
        assert_ne!(std::fs::read(file).unwrap(), plain);
    }
    // Both ways in which OpenSSL encrypts: scrypt, and PBKDF2, its default.
    for more in ["-scrypt", ""] {
        let file = files.iter().find(|file| file.extension().unwrap() == "p8").unwrap();
        let plain = home.path().join("plain").join(file.file_name().unwrap());
        shell(
            home.path(),
            &format!(
                "openssl pkcs8 -topk8 -in {plain:?} -inform DER -out {file:?} -outform DER -v2 aes-256-cbc {more} -passout file:passphrase"
            ),
        );
        assert_eq!(ids(&json(&config, &["key", "list"])), all);
    }
}

/// At another moment each time, first from plain files, then from one passphrase to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_while_files_are_encrypted_costs_no_key() {
    let home = TempDir::new().unwrap();
    let plain = issuer_config(home.path(), "types = [2, 5, 1]\n");
    Daemon::ready("issuer", &plain).await.process.terminate().assert_stopped();
    let all = ids(&json(&plain, &["key", "list"]));
    for kill in 0..8_u32 {
        let lines = if kill % 2 == 0 { [FIRST, SECOND] } else { [SECOND, FIRST] };
        let config = configured(home.path(), &lines);
        let start = Postern::start(command(["issuer", "--config", config.to_str().unwrap()]));
        tokio::time::sleep(Duration::from_millis(250) * kill).await;
        start.kill();
        assert_eq!(ids(&json(&config, &["key", "list"])), all, "after {kill}");
    }
    let config = configured(home.path(), &[SECOND, FIRST]);
    Daemon::ready("issuer", &config).await.process.terminate().assert_stopped();
    let config = configured(home.path(), &[SECOND]);
    let running = Daemon::ready("issuer", &config).await;
    assert_eq!(ids(&json(&config, &["key", "list"])), all);
    running.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_passphrase_is_refused_by_start_and_doctor_and_none_is_ever_shown() {
    let home = TempDir::new().unwrap();
    let config = configured(home.path(), &[FIRST]);
    let mut traced = command(["issuer", "--config", config.to_str().unwrap()]);
    traced.env("RUST_LOG", "trace");
    let running = Daemon::of("issuer", traced);
    said(&config, &["key", "rotate", "--in", "0s"]);
    let ended = running.process.terminate();
    ended.assert_stopped();
    let before: Vec<_> = key_files(home.path()).iter().map(|file| std::fs::read(file).unwrap()).collect();

    let start = |config: &Path| run(["issuer", "--config", config.to_str().unwrap()]);
    let mut outputs = vec![ended];
    let wrong = ["passphrase_file", "decrypts the key file", "Nothing was changed"];
    let config = configured(home.path(), &[SECOND]);
    start(&config).assert_failed(64, &wrong);
    doctor(&config).assert_would_not_start(64, &wrong);
    outputs.extend([start(&config), doctor(&config)]);
    let config = issuer_config(home.path(), "types = [2, 5, 1]\n");
    let encrypted = ["is encrypted", "[keys] passphrase_file"];
    start(&config).assert_failed(64, &encrypted);
    doctor(&config).assert_would_not_start(64, &encrypted);
    outputs.extend([start(&config), doctor(&config)]);
    let config = configured(home.path(), &[FIRST]);
    std::fs::set_permissions(home.path().join("passphrase"), PermissionsExt::from_mode(0o604)).unwrap();
    for ended in [start(&config), doctor(&config), issuer(&config, &["key", "rotate"])] {
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(said.contains("mode 0604") && said.contains("chmod 600"), "{ended:?}");
        outputs.push(ended);
    }
    let after: Vec<_> = key_files(home.path()).iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert_eq!(before, after);
    for Ended { stdout, stderr, .. } in &outputs {
        assert!(!stdout.contains("kZp7") && !stderr.contains("kZp7"), "{stdout}{stderr}");
    }
}
