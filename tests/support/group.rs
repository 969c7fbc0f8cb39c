//! Two issuers that share keys and accounts, and the copies between them, made by the script of the guide.

use super::accounts::used;
use super::daemon::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The two, by their configurations.
pub struct Group {
    pub home: TempDir,
    pub first: PathBuf,
    pub follower: PathBuf,
}

impl Group {
    /// Two issuers with these shares and what `keys` adds to `[keys]`, none of them started.
    pub fn new(first: &str, follower: &str, keys: &str) -> Self {
        let home = TempDir::new().unwrap();
        let config = |name: &str, group: String| {
            let path = home.path().join(format!("{name}.toml"));
            let directory = home.path().join(name);
            let text = format!(
                "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[keys]\ndirectory = {directory:?}\n{keys}\n[group]\n{group}\n"
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        let copies = home.path().join("copies");
        std::fs::create_dir(&copies).unwrap();
        std::fs::set_permissions(&copies, PermissionsExt::from_mode(0o700)).unwrap();
        let first = config("first", format!("share = {first:?}"));
        let follower = config("follower", format!("share = {follower:?}\nfollow = {copies:?}"));
        Self { home, first, follower }
    }

    pub fn copies(&self) -> PathBuf {
        self.home.path().join("copies")
    }

    /// Runs the script of the guide, with a stand-in for rsync, which copies the same files within this machine.
    pub fn copy(&self) {
        let guide = include_str!("../../docs/operate/accounts.md");
        let (_, section) = guide.split_once("## Several issuers").unwrap();
        let (_, script) = section.split_once("```sh\n").unwrap();
        let script = script.split_once("\n```").unwrap().0;
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let mut adapted = String::new();
        for line in script.lines() {
            adapted += &match line.split_once('=') {
                Some(("state", _)) => format!("state={}", path(&self.home.path().join("first"))),
                Some(("config", _)) => format!("config={}", path(&self.first)),
                Some(("to", _)) => format!("to={}", path(&self.copies())),
                _ => line.to_owned(),
            };
            adapted.push('\n');
        }
        let tools = self.home.path().join("tools");
        std::fs::create_dir_all(&tools).unwrap();
        let stand_in = "#!/bin/sh\nset -eu\nfor to; do from=${last-}; last=$to; done\nfrom=${from%/}\nfor file in \"$from\"/*.p8* \"$from\"/*.type[15]* \
                        \"$from\"/accounts.secret \"$from\"/accounts.sqlite; do\ncase $file in \"$state\"/accounts.sqlite) continue;; esac\n\
                        [ ! -e \"$file\" ] || cp -p \"$file\" \"$to/\"\ndone\n";
        let stand_in = stand_in.replace("$state", &path(&self.home.path().join("first")));
        let rsync = tools.join("rsync");
        std::fs::write(&rsync, stand_in).unwrap();
        std::fs::set_permissions(&rsync, PermissionsExt::from_mode(0o755)).unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_postern")).parent().unwrap();
        let paths = format!("{}:{}:{}", tools.display(), binary.display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh").args(["-c", &adapted]).env("PATH", paths).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Both issuers, as if the follower had joined in an earlier period.
    pub async fn started(&self) -> [Daemon; 2] {
        let daemons = self.joined().await;
        let [first, follower] = daemons;
        follower.process.terminate().assert_stopped();
        let database = rusqlite::Connection::open(self.home.path().join("follower/accounts.sqlite")).unwrap();
        assert_eq!(database.execute("UPDATE shares SET since_unix = 1", []).unwrap(), 2);
        drop(database);
        [first, Daemon::ready("issuer", &self.follower).await]
    }

    pub async fn joined(&self) -> [Daemon; 2] {
        let first = Daemon::ready("issuer", &self.first).await;
        self.copy();
        [first, Daemon::ready("issuer", &self.follower).await]
    }

    pub fn used(&self) -> [i64; 2] {
        ["first", "follower"]
            .map(|name| used(&self.home.path().join(name)).get("alice").copied().unwrap_or(0))
    }
}
