//! A token of SoftHSM in its own directory, and issuers that use it.

use crate::support::daemon::{Daemon, issuer_config};
use crate::support::process::{Ended, Postern, command};
use crate::support::{admin, eventually, root};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The path in Debian's package `softhsm2`, which the guide names too.
pub const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
pub const PIN: &str = "83519402";

pub struct Hsm {
    home: TempDir,
    module: PathBuf,
    /// Lines of `[keys.pkcs11]`.
    pub more: String,
}

impl Hsm {
    /// Made by the commands of the guide.
    pub fn new() -> Self {
        let home = TempDir::new().unwrap();
        std::fs::create_dir(home.path().join("tokens")).unwrap();
        let tokens = format!("directories.tokendir = {}\n", home.path().join("tokens").display());
        std::fs::write(home.path().join("softhsm2.conf"), tokens).unwrap();
        let hsm = Self { home, module: MODULE.into(), more: String::new() };
        hsm.set_pin(PIN);
        hsm.shell(&guide("softhsm2-util --init-token"));
        hsm
    }

    /// The same behind the module of `faulty.c`.
    pub fn faulty() -> Self {
        let mut hsm = Self::new();
        hsm.module = hsm.path("faulty.so");
        let source = root().join("tests/hsm/faulty.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&hsm.module).arg(source).arg("-ldl");
        let cc = cc.output().unwrap();
        assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
        hsm.more = "timeout = \"3s\"\n".to_owned();
        hsm
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn set_pin(&self, pin: &str) {
        std::fs::write(self.path("pin"), format!("{pin}\n")).unwrap();
        std::fs::set_permissions(self.path("pin"), PermissionsExt::from_mode(0o600)).unwrap();
    }

    /// Begins a fault, which `right` ends.
    pub fn fault(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    pub fn right(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    /// Sets the number of sessions that the faulty module accepts. The next signature loses those that are open.
    pub fn limit(&self, sessions: u32) {
        let path = self.path("new");
        std::fs::write(&path, sessions.to_string()).unwrap();
        std::fs::rename(path, self.path("limit")).unwrap();
        self.fault("lose");
    }

    pub fn take_away(&self) {
        std::fs::rename(self.path("tokens"), self.path("away")).unwrap();
    }

    pub fn bring_back(&self) {
        std::fs::rename(self.path("away"), self.path("tokens")).unwrap();
    }

    /// Returns the faulty module's notes, one for each thread.
    pub fn noted(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The configuration of an issuer under `home` with these lines in `[keys]` and, if it is to, with the HSM.
    pub fn config(&self, home: &Path, keys: &str, has_hsm: bool) -> PathBuf {
        let (module, pin, more) = (&self.module, self.path("pin"), &self.more);
        let section =
            format!("[keys.pkcs11]\nmodule = {module:?}\ntoken = \"postern\"\npin_file = {pin:?}\n{more}");
        issuer_config(home, &format!("{keys}{}", if has_hsm { section.as_str() } else { "" }))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        command.env("FAULTY_HOME", self.home.path()).env("FAULTY_MODULE", MODULE);
        command
    }

    /// An issuer that listens.
    pub fn start(&self, config: &Path) -> Daemon {
        Daemon::of("issuer", self.command(&["issuer", "--config", config.to_str().unwrap()]))
    }

    pub async fn ready(&self, config: &Path) -> Daemon {
        let daemon = self.start(config);
        is_ready(&daemon).await;
        daemon
    }

    /// `postern issuer key ARGUMENTS`.
    pub fn key(&self, config: &Path, arguments: &[&str]) -> Ended {
        let config = config.to_str().unwrap();
        let arguments = [&["issuer", "key"], arguments, &["--config", config]].concat();
        Postern::start(self.command(&arguments)).ended()
    }

    /// The keys, the newest first, and the remarks.
    pub fn list(&self, config: &Path) -> (Vec<Value>, Vec<String>) {
        let ended = self.key(config, &["list", "--json"]);
        ended.assert_stopped();
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (remarks, keys) = lines.into_iter().partition::<Vec<_>, _>(|line| line.get("remark").is_some());
        (keys, remarks.iter().map(|line| line["remark"].as_str().unwrap().to_owned()).collect())
    }

    /// Runs a script that succeeds, and returns its output.
    pub fn shell(&self, script: &str) -> String {
        let script = script.replace("/etc/postern/hsm-pin", self.path("pin").to_str().unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script]).env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The ids of the private keys in the HSM, by the command of the guide.
    pub fn private_keys(&self) -> Vec<String> {
        let listed = self.shell(&guide("pkcs11-tool"));
        let mut ids: Vec<_> = listed
            .lines()
            .filter_map(|line| line.trim().strip_prefix("ID:"))
            .map(|id| id.trim().to_owned())
            .collect();
        ids.sort();
        ids
    }
}

/// The command of the guide that begins so.
pub fn guide(begin: &str) -> String {
    let guide = include_str!("../../docs/operate/install.md");
    let (_, section) = guide.split_once("### Keys in an HSM").unwrap();
    let section = section.split_once("\n### ").unwrap().0;
    section.lines().map(str::trim).find(|line| line.starts_with(begin)).unwrap().to_owned()
}

pub async fn is_ready(issuer: &Daemon) {
    says(issuer, 200, "ready").await;
}

/// Waits until `/readyz` has this status and text.
pub async fn says(issuer: &Daemon, status: u16, text: &str) -> String {
    eventually(&format!("/readyz says {status} {text}"), || async {
        let (is, body) = admin::get(issuer.admin, "/readyz").await?;
        (is == status && body.contains(text)).then_some(body)
    })
    .await
}

/// The files of keys in an issuer's directory with this ending.
pub fn files(home: &Path, ending: &str) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(home.join("issuer")).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect()
}
