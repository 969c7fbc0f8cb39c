//! A configuration with every shape that the daemons use.

mod refusals;

use super::schema::{Leaf, Schema};
use super::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// A daemon's configuration.
#[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Whole {
    /// Listening address.
    listen: Listen,
    /// Place of spent records.
    store: Store,
    egress: Egress,
    /// Absent: plain.
    tls: Option<Tls>,
    /// Accounts that may request tokens.
    accounts: Vec<Account>,
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Listen {
    /// The public address | port.
    address: SocketAddr,
    admin: Option<SocketAddr>,
    /// Time for a client's header.
    header_timeout: ConfigDuration,
    max_header: Size,
    backlog: u16,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            address: ([0, 0, 0, 0], 8080).into(),
            admin: None,
            header_timeout: ConfigDuration::secs(10),
            max_header: Size::kib(16),
            backlog: 1024,
        }
    }
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Store {
    kind: StoreKind,
    password: Option<Secret>,
    memcached: Memcached,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum StoreKind {
    /// In this process.
    #[default]
    Embedded,
    /// Over the network.
    Memcached,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Memcached {
    addresses: Vec<String>,
    replicas: Vec<Vec<String>>,
    connect_timeout: Option<ConfigDuration>,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Egress {
    private: bool,
    ports: Ports,
    share: f64,
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
enum Ports {
    List(Vec<u16>),
    Word(Any),
}

impl Default for Ports {
    fn default() -> Self {
        Self::List(vec![80, 443])
    }
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Any {
    Any,
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct Tls {
    certificate: String,
    key: String,
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct Account {
    name: String,
    quota: u64,
}

fn read(text: &str, env: &[(&str, &str)]) -> Result<Whole, ConfigError> {
    parse("gateway.toml", text, env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(read("", &[]).unwrap(), Whole::default());
}

#[test]
fn every_shape_is_read() {
    let whole = read(
        r#"
        [listen]
        address = "127.0.0.1:1"
        header_timeout = "250ms"
        max_header = "64KiB"
        [store]
        kind = "memcached"
        memcached.addresses = ["a:1", "unix:/b"]
        [egress]
        ports = "any"
        [tls]
        certificate = "c"
        key = "k"
        [[accounts]]
        name = "one"
        quota = 5
        "#,
        &[],
    )
    .unwrap();
    assert_eq!(whole.listen.address, ([127, 0, 0, 1], 1).into());
    assert_eq!(whole.listen.header_timeout, ConfigDuration::millis(250));
    assert_eq!(whole.listen.max_header.0, 65_536);
    assert_eq!(whole.store.kind, StoreKind::Memcached);
    assert_eq!(whole.store.memcached.addresses, ["a:1", "unix:/b"]);
    assert_eq!(whole.egress.ports, Ports::Word(Any::Any));
    assert_eq!(whole.tls.unwrap().key, "k");
    assert_eq!(whole.accounts[0].quota, 5);
}

#[test]
fn a_variable_overrides_what_the_file_says() {
    let env = [
        ("POSTERN_LISTEN_ADDRESS", "127.0.0.1:9"),
        ("POSTERN_LISTEN_HEADER_TIMEOUT", "3s"),
        ("POSTERN_LISTEN_BACKLOG", "7"),
        ("POSTERN_STORE_PASSWORD", "123"),
        ("POSTERN_STORE_KIND", "memcached"),
        ("POSTERN_STORE_MEMCACHED_ADDRESSES", "[\"a:1\", \"b:2\"]"),
        ("POSTERN_STORE_MEMCACHED_REPLICAS", "[[\"a:1\"],[\"b:1\", \"c:1\"]]"),
        ("POSTERN_STORE_MEMCACHED_CONNECT_TIMEOUT", "1s"),
        ("POSTERN_EGRESS_PRIVATE", "true"),
        ("POSTERN_EGRESS_PORTS", "any"),
        ("POSTERN_TLS_CERTIFICATE", "c"),
        ("POSTERN_TLS_KEY", "k"),
        ("POSTERN_DATA", "not ours to judge"),
        ("POSTERN_LISTEN", "nor is a section"),
        ("LISTEN_ADDRESS", "nor this"),
    ];
    let whole = read("[listen]\naddress = \"127.0.0.1:1\"\nbacklog = 1\n", &env).unwrap();
    assert_eq!(whole.listen.address, ([127, 0, 0, 1], 9).into());
    assert_eq!(whole.listen.header_timeout, ConfigDuration::secs(3));
    assert_eq!(whole.listen.backlog, 7);
    assert_eq!(whole.store.password.unwrap().expose(), "123", "a number is text where text is wanted");
    assert_eq!(whole.store.kind, StoreKind::Memcached);
    assert_eq!(whole.store.memcached.addresses, ["a:1", "b:2"]);
    assert_eq!(whole.store.memcached.replicas, [vec!["a:1"], vec!["b:1", "c:1"]]);
    assert_eq!(whole.store.memcached.connect_timeout, Some(ConfigDuration::secs(1)));
    assert!(whole.egress.private);
    assert_eq!(whole.egress.ports, Ports::Word(Any::Any));
    assert_eq!(whole.tls, Some(Tls { certificate: "c".to_owned(), key: "k".to_owned() }));
    assert_eq!(read("", &[("POSTERN_EGRESS_PORTS", "[1]")]).unwrap().egress.ports, Ports::List(vec![1]));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load::<Whole>(Path::new("/nonexistent/gateway.toml"), []).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/gateway.toml: cannot read the configuration: "), "{error}");
}

#[test]
fn the_keys_of_a_map_are_free_and_those_of_its_values_are_not() {
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Pools {
        pools: BTreeMap<String, Account>,
    }
    let read = |text| parse::<Pools>("pools.toml", text, []);
    let pools = read("[pools.any-name]\nname = \"a\"\nquota = 7").unwrap().pools;
    assert_eq!((pools["any-name"].name.as_str(), pools["any-name"].quota), ("a", 7));
    let misspelt = read("[pools.b]\nname = \"a\"\nquoat = 7").unwrap_err().to_string();
    assert_eq!(
        misspelt,
        "pools.toml, line 3: unknown key \"pools.b.quoat\"; did you mean \"pools.b.quota\"?"
    );
    let missing = read("").unwrap_err().to_string();
    assert_eq!(missing, "pools.toml: pools is missing; write a table, or set POSTERN_POOLS");
}

#[test]
fn variables_are_unambiguous() {
    let schema = Schema::of::<Whole>();
    let mut names: Vec<_> = schema.leaves().iter().map(Leaf::variable).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.contains(&"POSTERN_STORE_MEMCACHED_ADDRESSES".to_owned()));
    assert!(!names.iter().any(|name| name.starts_with("POSTERN_ACCOUNTS")), "lists of tables have none");
}

#[test]
fn the_reference_lists_every_key_with_its_default() {
    let text = reference::<Whole>("postern gateway", &[]);
    for line in [
        "## postern gateway",
        "### `[listen]`\n\nListening address.",
        "- `address` (string, `\"0.0.0.0:8080\"`): The public address | port.",
        "- `header_timeout` (duration, `\"10s\"`): Time for a client's header.",
        "- `kind` (\"embedded\" or \"memcached\", `\"embedded\"`):",
        "### `[store.memcached]`",
        "- `ports` (\"any\", or a list of ports, `[80,443]`):",
        "- `certificate` (string, required):",
        "### `[[accounts]]`\n\nAccounts that may request tokens.",
        "- `quota` (number, required):",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
}
