//! `docs/operate/accounts.md` is walked from nothing to the first token.

use crate::support::daemon::Daemon;
use crate::support::process::command;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The section of the page, up to the next one.
fn section() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/operate/accounts.md")).unwrap();
    let (_, rest) = page.split_once("## From nothing to the first token").unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// A `postern` with the arguments of a line, in `home`.
fn postern(home: &Path, line: &str) -> Command {
    let mut command = command(line.split_whitespace().skip(1));
    command.current_dir(home);
    command
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_leads_from_nothing_to_the_first_token() {
    let home = TempDir::new().unwrap();
    let section = section();
    let (_, file) = section.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    // Free ports: others may have those of the page.
    let file = file.replace(":8081", ":0").replace(":9091", ":0");
    std::fs::write(home.path().join("issuer.toml"), file).unwrap();
    let lines: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let [add, start, mint, show] = lines.as_slice() else { panic!("{lines:?}") };

    let added = said(&mut postern(home.path(), add));
    let key = added.lines().find_map(|line| line.strip_prefix("API key: ")).unwrap();
    let issuer = Daemon::of("issuer", postern(home.path(), start));
    let mint = mint.replace("http://127.0.0.1:8081", &issuer.http()).replace("KEY", key);
    assert!(said(&mut postern(home.path(), &mint)).starts_with("PrivateToken token="));
    let shown = said(&mut postern(home.path(), show));
    assert!(shown.starts_with("alice  10000/1d\n") && shown.trim_end().ends_with(": 1 tokens"), "{shown}");
    issuer.process.terminate().assert_stopped();
}
