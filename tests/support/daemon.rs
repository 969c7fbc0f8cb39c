//! `postern issuer`, `postern gateway` and `postern client` from configuration files, each on free ports.

use super::process::{Ended, Postern, command, run};
use super::{admin, eventually};
use postern_token::ChallengeDigest;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One daemon, listening.
pub struct Daemon {
    pub process: Postern,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

impl Daemon {
    /// Starts `postern KIND --config CONFIG`, ready to serve when this returns.
    pub async fn ready(kind: &str, config: &Path) -> Self {
        Self::ready_with(kind, config, &[]).await
    }

    /// The same with more arguments.
    pub async fn ready_with(kind: &str, config: &Path, more: &[&OsStr]) -> Self {
        let daemon = Self::start_with(kind, config, more);
        daemon.until_ready(kind).await;
        daemon
    }

    /// Waits until the daemon reports that it is ready.
    pub async fn until_ready(&self, kind: &str) {
        eventually(&format!("the {kind} is ready"), || async {
            admin::get(self.admin, "/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
    }

    /// Waits until `/readyz` has this status and contains these parts; returns its body.
    pub async fn readyz(&self, status: u16, parts: &[&str]) -> String {
        eventually(&format!("/readyz is {status} and contains {parts:?}"), || async {
            let (found, body) = admin::get(self.admin, "/readyz").await?;
            (found == status && parts.iter().all(|part| body.contains(part))).then_some(body)
        })
        .await
    }

    /// Sends SIGHUP and waits until the log has `phrase` one more time; returns the log.
    pub fn reread(&self, phrase: &str) -> String {
        let count = |text: &str| text.matches(phrase).count();
        let before = count(&self.process.written().1);
        self.process.signal("HUP");
        self.process.wait_for(phrase, |_, stderr| (count(stderr) > before).then(|| stderr.to_owned()))
    }

    /// The same, not yet ready.
    pub fn start(kind: &str, config: &Path) -> Self {
        Self::start_with(kind, config, &[])
    }

    fn start_with(kind: &str, config: &Path, more: &[&OsStr]) -> Self {
        let mut command = command([kind.as_ref(), "--config".as_ref(), config.as_os_str()]);
        command.args(more);
        Self::of(kind, command)
    }

    /// The daemon of this kind that a command starts.
    pub fn of(kind: &str, command: Command) -> Self {
        let name = if kind == "client" { "agent" } else { kind };
        let process = Postern::start(command);
        let address = process.wait_for_address(&format!("the {name} listens on "));
        let admin = process.wait_for_address("the admin page listens on ");
        Self { process, address, admin }
    }

    /// The same, started by another program, which ends its arguments with a command to run.
    pub fn started_by(mut program: Command, kind: &str, config: &Path) -> Self {
        let plain = command([kind.as_ref(), "--config".as_ref(), config.as_os_str()]);
        program.arg(plain.get_program()).args(plain.get_args());
        plain.get_envs().for_each(|(name, _)| _ = program.env_remove(name));
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::of(kind, program)
    }

    pub fn kill(self) -> Ended {
        self.process.kill()
    }

    pub fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn https(&self) -> String {
        format!("https://{}", self.address)
    }
}

const LISTEN: &str = "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";

/// The configuration of an issuer with its keys under `home`, and what `more` adds.
pub fn issuer_config(home: &Path, more: &str) -> PathBuf {
    write(home, "issuer.toml", format!("{LISTEN}[keys]\ndirectory = {:?}\n{more}", home.join("issuer")))
}

/// An account in a file of accounts.
pub fn declared(name: &str, key: &str, quota: &str) -> String {
    let hash = hex::encode(ChallengeDigest::of(key.as_bytes()).0); // SHA-256, by the name at hand
    format!("[[accounts]]\nname = \"{name}\"\nkey_sha256 = \"{hash}\"\nquota = \"{quota}\"\n")
}

/// Makes the accounts of an issuer, which may run, what a file of this text declares.
pub fn apply(config: &Path, accounts: &str) -> Ended {
    let file = write(config.parent().unwrap(), "accounts.toml", accounts.to_owned());
    let words = ["issuer", "account", "apply", "--prune", "--config"].map(OsStr::new);
    run(words.into_iter().chain([config.as_os_str(), file.as_os_str()]))
}

/// The configuration of an issuer with this account.
pub fn issuer_config_with(home: &Path, account: &str) -> PathBuf {
    let config = issuer_config(home, "");
    apply(&config, account).assert_stopped();
    config
}

/// The configuration of a gateway with the keys of the issuer at `issuer`, open egress, and what `issuer_more` adds to
/// the section `[issuer]` and `more` to the file. Eight workers, so that they interrupt each other on few cores too.
pub fn gateway_config(home: &Path, issuer: &str, issuer_more: &str, fsync: &str, more: &str) -> PathBuf {
    let path = home.join("spent");
    write(
        home,
        "gateway.toml",
        format!(
            "{LISTEN}workers = 8
[issuer]
directory = \"{issuer}/.well-known/private-token-issuer-directory\"
{issuer_more}
[challenge]
issuer_name = \"issuer.example\"
origin = \"proxy.example\"
[store]
path = {path:?}
fsync = \"{fsync}\"
[egress]
private = true
ports = \"any\"
{more}"
        ),
    )
}

/// Adds to the configuration of a gateway that `[store]` is shared, at these addresses.
pub fn with_memcacheds(gateway: &Path, addresses: &[String]) {
    let text = std::fs::read_to_string(gateway).unwrap();
    let store = format!("[store]\nkind = \"memcached\"\nmemcached.addresses = {addresses:?}\n");
    std::fs::write(gateway, text.replace("[store]\n", &store)).unwrap();
}

/// The configuration of an agent with its wallet under `home`. `ca` is trusted for gateway and issuer.
pub fn client_config(home: &Path, gateway: &str, issuer: &str, ca: Option<&Path>) -> PathBuf {
    let ca = ca.map_or(String::new(), |path| format!("ca = {path:?}\n"));
    let wallet = home.join("wallet");
    write(
        home,
        "client.toml",
        format!(
            "{LISTEN}[gateway]\nurl = \"{gateway}\"\n{ca}[issuer]\nurl = \"{issuer}\"\n{ca}[wallet]\npath = {wallet:?}\ndelay = \"0s\"\n"
        ),
    )
}

fn write(home: &Path, name: &str, text: String) -> PathBuf {
    let path = home.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
