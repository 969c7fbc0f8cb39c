use super::*;
use postern_config::{ConfigDuration, Environment, Fixed, Secret, open};
use serde::Deserialize;

/// A daemon's configuration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    listen: Listen,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    tls: Option<Tls>,
    #[serde(default)]
    accounts: Vec<Account>,
    api_key: Option<Secret>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Listen {
    address: String,
}

impl Default for Listen {
    fn default() -> Self {
        Self { address: "127.0.0.1:1".to_owned() }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Limits {
    connections: u32,
    header_timeout: ConfigDuration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10, header_timeout: ConfigDuration::secs(10) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Tls {
    key: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Account {
    name: String,
    password: Secret,
    quota: u64,
}

const FIXED: [Fixed; 3] = [
    Fixed { key: "listen.address", why: "the socket is bound" },
    Fixed { key: "tls", why: "it is read at the start" },
    Fixed { key: "api_key", why: "it is read at the start" },
];

struct Scene {
    home: tempfile::TempDir,
    readiness: Readiness,
    shutdown: Shutdown,
    reloader: Reloader<Config>,
}

/// Rejects a configuration without an account if others can reach the daemon.
fn check(config: &Config) -> Result<(), String> {
    let is_open = config.accounts.is_empty() && !config.listen.address.starts_with("127.");
    if is_open { Err("list an account".to_owned()) } else { Ok(()) }
}

impl Scene {
    fn new(text: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("daemon.toml");
        std::fs::write(&path, text).unwrap();
        let (_, file) = open::<Config>(&path, Environment::default()).unwrap();
        let (readiness, shutdown) = (Readiness::new(), Shutdown::new());
        let reloader = Reloader::new(file, &readiness, &shutdown);
        Self { home, readiness, shutdown, reloader }
    }

    fn reload(&mut self, text: &str) -> Option<Config> {
        self.write(text);
        let reading = self.reloader.read(&FIXED, check)?;
        let config = reading.config.clone();
        self.reloader.applied(reading);
        Some(config)
    }

    fn write(&self, text: &str) {
        std::fs::write(self.home.path().join("daemon.toml"), text).unwrap();
    }

    /// Reads `text`; returns the log's sentences about changes in force and about pending ones.
    fn said(&mut self, text: &str) -> (Vec<String>, Vec<String>) {
        self.write(text);
        let reading = self.reloader.file.read_again(&FIXED, check).unwrap();
        let said = (reading.changed.clone(), reading.pending.clone());
        self.reloader.file.adopt(reading);
        said
    }
}

fn list(sentences: &[&str]) -> Vec<String> {
    sentences.iter().map(|sentence| (*sentence).to_owned()).collect()
}

#[test]
fn what_changed_is_said_by_its_path_and_a_secret_by_its_name_alone() {
    let mut scene = Scene::new("api_key = \"first-secret\"\n[limits]\nconnections = 10\n");
    let (now, later) = scene.said(
        "api_key = \"second-secret\"\n[limits]\nconnections = 20\nheader_timeout = \"10s\"\n[tls]\nkey = \"k.pem\"\n",
    );
    assert_eq!(
        now,
        list(&["limits.connections = 20 (was 10)"]),
        "a default that is written out is no change"
    );
    assert_eq!(
        later,
        list(&[
            "api_key has another value: it is read at the start",
            "tls.key = \"k.pem\" (was not set): it is read at the start"
        ])
    );

    let (now, later) = scene.said("[listen]\naddress = \"127.0.0.1:2\"\n");
    assert_eq!(now, list(&["limits.connections = 10 (was 20)"]));
    let still = [
        "api_key is no longer set: it is read at the start",
        "listen.address = \"127.0.0.1:2\" (was \"127.0.0.1:1\"): the socket is bound",
    ];
    assert_eq!(later, list(&still), "it is compared with what is in force, not with the last file");
}

fn account(name: &str, password: &str, quota: u64) -> String {
    format!("[[accounts]]\nname = \"{name}\"\npassword = \"{password}\"\nquota = {quota}\n")
}

#[test]
fn accounts_are_added_removed_and_changed_by_name() {
    let (one, two) = (account("one", "secret-1", 1), account("two", "secret-2", 1));
    let mut scene = Scene::new(&format!("{one}{two}"));
    let (now, later) = scene.said(&format!("{}{}", account("two", "secret-3", 5), account("three", "s", 1)));
    assert_eq!(now, list(&["accounts: added \"three\"; removed \"one\"; changed \"two\" (password, quota)"]));
    assert_eq!(later, list(&[]));
    let many: String = (0..30).map(|number| account(&format!("many-{number:02}"), "s", 1)).collect();
    let (now, _) = scene.said(&many);
    assert!(now[0].contains("\"many-09\" and 20 more; removed \"three\", \"two\""), "{now:?}");
}

#[test]
fn what_needs_a_restart_stays_as_it_was() {
    let mut scene = Scene::new("api_key = \"kept\"\n");
    let text = format!("api_key = \"other\"\n[listen]\naddress = \"127.0.0.1:9\"\n{}", account("a", "b", 3));
    let config = scene.reload(&text).unwrap();
    assert_eq!(config.accounts[0].password.expose(), "b");
    assert_eq!(config.listen.address, "127.0.0.1:1");
    assert_eq!(config.api_key.unwrap().expose(), "kept");
    assert!(scene.reload(&text).is_none(), "nothing else has changed since");
}

#[test]
fn what_could_not_be_put_in_force_is_tried_again_and_readiness_says_why() {
    let mut scene = Scene::new("");
    scene.write("[limits]\nconnections = 20\n");
    assert!(scene.reloader.read(&FIXED, check).is_some());
    scene.reloader.refused("the store does not answer");
    assert!(scene.readiness.degraded()[0].contains("the store does not answer; mend the file"));
    let again = scene.reloader.read(&FIXED, check).unwrap();
    assert_eq!(again.changed, list(&["limits.connections = 20 (was 10)"]));
    scene.reloader.applied(again);
    assert_eq!(scene.readiness.degraded(), list(&[]));
    assert!(scene.reloader.read(&FIXED, check).is_none());
}

#[test]
fn a_change_that_is_safe_only_after_a_restart_is_refused() {
    let mut scene = Scene::new(&format!("{}[listen]\naddress = \"0.0.0.0:1\"\n", account("a", "b", 3)));
    assert!(scene.reload("[listen]\naddress = \"127.0.0.1:1\"\n").is_none(), "it still listens to everyone");
    let said = scene.readiness.degraded();
    assert!(said[0].contains("list an account; that is without listen.address"), "{said:?}");
}

#[test]
fn a_bad_file_changes_nothing_and_readiness_says_so_until_it_is_good_again() {
    let mut scene = Scene::new("");
    assert_eq!(scene.readiness.degraded(), list(&[]));
    assert!(scene.reload("[limits]\nconnection = 3\nheader_timeout = 4\n").is_none());
    let said = scene.readiness.degraded();
    assert!(said[0].starts_with("configuration: the configuration file cannot be used since 20"), "{said:?}");
    assert!(said[0].contains("line 2: unknown key \"limits.connection\""), "{said:?}");
    assert!(scene.readiness.reasons().is_empty(), "the daemon works");
    std::fs::remove_file(scene.home.path().join("daemon.toml")).unwrap();
    assert!(scene.reloader.read(&FIXED, check).is_none());
    assert!(scene.readiness.degraded()[0].contains("cannot read the configuration"));

    assert!(scene.reload("").is_none(), "as it was at the start");
    assert_eq!(scene.readiness.degraded(), list(&[]));
}

#[tokio::test]
async fn each_request_is_handled_once() {
    let mut scene = Scene::new("");
    scene.shutdown.reload();
    scene.reloader.requested().await;
    let again = tokio::time::timeout(std::time::Duration::from_millis(20), scene.reloader.requested()).await;
    assert!(again.is_err());
}
