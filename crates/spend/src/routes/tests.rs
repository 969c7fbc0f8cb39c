//! Files that are fit, files that are not, and files that no router loads.

mod twemproxy;

use super::Severity::{self, Note, Refuse, Warn};
use super::{Finding, judge_mcrouter};
use proptest::prelude::*;
use std::time::Duration;

const SHIPPED: &str = include_str!("../../../../deploy/mcrouter/single.json");

const PATIENCE: Option<Duration> = Some(Duration::from_millis(100));

fn worst(findings: &[Finding]) -> Severity {
    findings.first().map_or(Note, |finding| finding.severity)
}

fn text(Finding { severity, place, reason, instead }: &Finding) -> String {
    format!("{severity:?}: {place}: {reason} {instead}")
}

/// Asserts that the highest severity is `severity`, and that one finding of that severity contains each of `parts`.
#[track_caller]
fn expect(findings: &[Finding], severity: Severity, parts: &[&str]) {
    assert_eq!(worst(findings), severity, "{findings:#?}");
    let said = |finding: &&Finding| parts.iter().all(|part| text(finding).contains(part));
    let same = findings.iter().filter(|finding| finding.severity == severity);
    assert!(same.clone().any(|finding| said(&finding)), "none contains {parts:?}: {findings:#?}");
}

/// Returns a file with two pools and this route.
fn routed(route: &str) -> String {
    let pools = r#"{"A": {"servers": ["10.0.0.1:1", "10.0.0.2:1"], "server_timeout": 50}, "B": {"servers": ["10.0.0.3:1"],
        "server_timeout": 50}}"#;
    format!("{{\"pools\": {pools}, \"route\": {route}}}")
}

fn selected(add: &str, get: &str) -> String {
    routed(&format!(
        "{{\"type\": \"OperationSelectorRoute\", \"operation_policies\": {{\"add\": {add}, \"get\": {get}, \"gets\": {get}}}}}"
    ))
}

#[test]
fn the_file_that_we_deploy_is_fit() {
    for patience in [None, PATIENCE] {
        let findings = judge_mcrouter(SHIPPED, patience);
        expect(&findings, Note, &["an `add` comes to the pool spent (3 servers)"]);
    }
}

#[test]
fn pools_with_one_owner_for_a_key_are_fit() {
    for pool in ["\"PoolRoute|A\"", "{\"type\": \"PoolRoute\", \"pool\": \"A\"}"] {
        expect(&judge_mcrouter(&selected(pool, pool), PATIENCE), Note, &["the pool A (2 servers)"]);
    }
    let operations = r#"{"type": "OperationSelectorRoute", "default_policy": {"type": "ErrorRoute"}, "operation_policies":
        {"add": "PoolRoute|A", "get": "PoolRoute|A", "gets": "PoolRoute|A", "incr": "PoolRoute|B", "delete": "NullRoute"}}"#;
    let prefixes = [
        format!("{{\"type\": \"PrefixSelectorRoute\", \"wildcard\": {operations}}}"),
        format!(
            "{{\"type\": \"PrefixSelectorRoute\", \"policies\": {{\"other.\": {operations}}}, \"wildcard\": {operations}}}"
        ),
        format!(
            "{{\"type\": \"PrefixSelectorRoute\", \"policies\": {{\"|\": {operations}, \"p\": {operations}}}}}"
        ),
    ];
    for route in prefixes {
        expect(&judge_mcrouter(&routed(&route), PATIENCE), Note, &["the pool A (2 servers)"]);
    }
}

#[test]
fn a_router_that_passes_more_than_it_need_is_a_warning() {
    let default = r#"{"type": "OperationSelectorRoute", "default_policy": "PoolRoute|A"}"#;
    let deletes = r#"{"type": "OperationSelectorRoute", "default_policy": "ErrorRoute", "operation_policies": {"add":
        "PoolRoute|A", "get": "PoolRoute|A", "gets": "PoolRoute|A", "delete": "PoolRoute|B"}}"#;
    for route in ["\"PoolRoute|A\"", default, deletes] {
        expect(&judge_mcrouter(&routed(route), PATIENCE), Warn, &["passes every command", "single.json"]);
    }
}

/// Every route outside the accepted ones is refused, with its place and the remedy.
#[test]
fn every_other_route_is_refused_and_sent_to_replicas() {
    let two = r#""children": ["PoolRoute|A", "PoolRoute|B"]"#;
    let majority =
        r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"]}"#;
    let routes = [
        majority.to_owned(),
        "\"AllMajorityRoute|Pool|A\"".to_owned(),
        format!("{{\"type\": \"FailoverRoute\", {two}}}"),
        "\"FailoverRoute|Pool|A\"".to_owned(),
        format!("{{\"type\": \"AllSyncRoute\", {two}}}"),
        format!("{{\"type\": \"AllFastestRoute\", {two}}}"),
        format!("{{\"type\": \"MissFailoverRoute\", {two}}}"),
        format!("{{\"type\": \"HashRoute\", {two}}}"),
        "\"HashRoute|Pool|A\"".to_owned(),
        "\"Pool|A\"".to_owned(),
        "\"LoggingRoute|PoolRoute|A\"".to_owned(),
        r#"{"type": "ShadowRoute", "children": "PoolRoute|A", "shadows": [{"target": "PoolRoute|B"}]}"#
            .to_owned(),
        r#"{"type": "PrefixSelectorRoute", "wildcard": "PoolRoute|A"}"#.to_owned(), // not at the root: it does not load
        "\"\"".to_owned(),
    ];
    for route in &routes {
        let findings = judge_mcrouter(&selected(route, "\"PoolRoute|A\""), PATIENCE);
        expect(&findings, Refuse, &["Refuse: line 2 column ", "is not known", "`store.memcached.replicas`"]);
    }
    for route in ["3", "[]", "[\"PoolRoute|A\"]", "{}", "{\"type\": 3}", "null"] {
        expect(
            &judge_mcrouter(&routed(route), PATIENCE),
            Refuse,
            &["wants a route", "`store.memcached.replicas`"],
        );
    }
}

/// A check by a list of unfit options accepted these files; mcrouter does not load them, or splits a bucket.
#[test]
fn a_file_that_does_not_load_is_not_fit() {
    let cases = [
        ("\"server_timeout\": 50", "\"server_timeout\": \"50\"", "no whole number"),
        ("\"server_timeout\": 50", "\"server_timeout\": \"50ms\"", "no whole number"),
        ("\"server_timeout\": 50", "\"server_timeout\": 0", "no whole number"),
        ("\"server_timeout\": 50", "\"server_timeout\": 50.0", "no whole number"),
        ("\"server_timeout\": 50", "\"server_timeout\": 1000001", "no whole number"),
        ("\"server_timeout\": 50", "\"connect_timeout\": 0, \"server_timeout\": 50", "no whole number"),
        ("\"server_timeout\"", "\"protocol\": \"binary\", \"server_timeout\"", "`protocol` is not known"),
        ("\"server_timeout\"", "\"protocol\": 3, \"server_timeout\"", "`protocol` is not known"),
        ("\"server_timeout\"", "\"weights\": [1], \"server_timeout\"", "`weights` is not known"),
        ("\"server_timeout\"", "\"inherit\": \"other\", \"server_timeout\"", "`inherit` is not known"),
        ("\"server_timeout\"", "\"failover_tag\": true, \"server_timeout\"", "`failover_tag` is not known"),
        ("10.0.0.1:11211", "10.0.0.1", "`host:port`"),
        ("10.0.0.1:11211", "10.0.0.1:70000", "`host:port`"),
        ("10.0.0.1:11211", "10.0.0.1:11211:binary", "`host:port`"),
        ("10.0.0.1:11211", "10.0.0.1:11211:ascii:tls", "`host:port`"),
        ("10.0.0.1:11211", "[10.0.0.1]:11211", "`host:port`"),
        ("\"10.0.0.1:11211\"", "{\"type\": \"NullRoute\"}", "`host:port`"),
        ("[\"10.0.0.1:11211\", \"10.0.0.2:11211\", \"10.0.0.3:11211\"]", "[]", "no list of `servers`"),
        ("\"servers\"", "\"server\"", "`server` is not known"),
        ("\"spent\": {", "\"spent\": {}, \"other\": {", "no list of `servers`"),
        ("\"spent\": {", "\"sp@nt\": {", "holds more than letters"),
        ("\"spent\": {", "\"spent\": {\"servers\": [\"a:1\"]}, \"spent\": {", "stands twice"),
        ("\"PoolRoute|spent\"", "\"PoolRoute|other\"", "the pool other is not in this file"),
        ("\"PoolRoute|spent\"", "\"PoolRoute\"", "the pool  is not in this file"),
        ("\"PoolRoute|spent\"", "\"PoolRoute|%pool%\"", "is not in this file"),
        ("\"PoolRoute|spent\"", "\"@route()\"", "@route() is not known"),
        ("\"OperationSelectorRoute\"", "\"if\"", "if is not known"),
        ("\"add\":", "\"adds\":", "adds is no operation"),
        ("\"add\":", "\"set\":", "do not come to one pool"),
        ("\"add\": \"PoolRoute|spent\"", "\"add\": \"ErrorRoute\"", "do not come to one pool"),
        (",\n      \"gets\": \"PoolRoute|spent\"", "", "plants no mark"),
        ("\"gets\": \"PoolRoute|spent\"", "\"gets\": \"ErrorRoute\"", "plants no mark"),
        ("\"route\"", "\"routes\"", "`routes` is not known"),
        ("\"route\"", "\"rout\"", "`rout` is not known"),
        ("\"route\"", "\"macros\": {}, \"route\"", "`macros` is not known"),
        ("\"route\"", "\"named_handles\": [], \"route\"", "`named_handles` is not known"),
        ("\"type\":", "\"name\": \"x\", \"type\":", "`name` is not known"),
        ("\"pools\"", "\"pool\"", "`pool` is not known"),
    ];
    for (from, to, part) in cases {
        assert!(SHIPPED.contains(from), "{from}");
        let findings = judge_mcrouter(&SHIPPED.replacen(from, to, 1), PATIENCE);
        expect(&findings, Refuse, &["Refuse: line ", part]);
        assert!(!findings[0].instead.is_empty(), "{findings:#?}");
    }
    let route = "\"route\": {\"type\": \"PoolRoute\", \"pool\": \"A\", \"hash\": ";
    for hash in [
        "\"Latest\"",
        "\"LoadBalancer\"",
        "\"ConstShard\"",
        "\"ch3\"",
        "\"WeightedCh3\"",
        "\"WeightedCh3RV\"",
        "3",
        "{\"hash_func\": 3}",
        "{\"hash_func\": \"Ch3\", \"weights\": [1, 1]}",
        "{\"salt\": 3}",
        "{\"salt\": \"%x%\"}",
        "{\"bucketize\": true}",
        "{\"tags\": [\"a\", \"b\"]}",
        "\"Crc32\"",
        "{\"salt\": \"x\"}",
    ] {
        let file = routed("").replace("\"route\": ", &format!("{route}{hash}}}"));
        expect(&judge_mcrouter(&file, PATIENCE), Refuse, &["Refuse: line 2 column "]);
    }
}

#[test]
fn a_get_comes_to_where_an_add_writes() {
    for get in ["\"PoolRoute|B\"", "\"NullRoute\""] {
        let file = selected("\"PoolRoute|A\"", get);
        expect(&judge_mcrouter(&file, None), Refuse, &["do not come to one pool"]);
    }
}

/// A witness is useful only on the server of the records that it stands for.
#[test]
fn all_of_our_keys_take_one_route() {
    for policies in [
        r#""policies": {"|": "PoolRoute|B"}, "wildcard": "PoolRoute|A""#,
        r#""policies": {"|AA": "PoolRoute|A"}, "wildcard": "PoolRoute|A""#,
        r#""policies": {"|": "PoolRoute|A"}"#,
        r#""policies": {}"#,
    ] {
        let file = routed(&format!("{{\"type\": \"PrefixSelectorRoute\", {policies}}}"));
        expect(&judge_mcrouter(&file, None), Refuse, &["line 2 column ", "do not all take one route"]);
    }
}

#[test]
fn the_router_gives_up_before_the_gateway() {
    let timeout = |text: &str| SHIPPED.replace("\"server_timeout\": 50", text);
    let (late, none) = (timeout("\"server_timeout\": 100"), timeout("\"connect_timeout\": 5"));
    expect(&judge_mcrouter(&late, PATIENCE), Warn, &["waits 100 ms", "after 100 ms", "Write 50"]);
    expect(&judge_mcrouter(&none, PATIENCE), Warn, &["waits 1000 ms", "`server_timeout`"]);
    expect(&judge_mcrouter(&late, Some(Duration::from_millis(101))), Note, &[]);
    expect(&judge_mcrouter(&late, None), Warn, &["gives up first, after 100 ms"]);
}

#[test]
fn what_is_no_configuration_is_refused_with_a_sentence() {
    let deep = "[".repeat(100_000);
    for (text, part) in [
        ("", "line 1 column 1"),
        ("{\n\"route\": ", "line 2 column"),
        ("{\"route\": \"PoolRoute|A\",,}", "line 1 column"),
        ("{route: 1}", "line 1 column"),
        ("{'route': 1}", "line 1 column"),
        ("{\"route\": +1}", "line 1 column"),
        ("{} {}", "line 1 column"),
        (deep.as_str(), "nesting depth"),
        ("[]", "takes an object"),
        ("{}", "no `route`"),
    ] {
        expect(&judge_mcrouter(text, None), Refuse, &[part]);
    }
    let control = judge_mcrouter("{\"route\": \"\\u001b[2J\"}", None);
    assert!(!text(&control[0]).contains('\u{1b}'), "names of the file do not reach the terminal as they are");
    let commented = SHIPPED.replacen("\"pools\"", "/* a \" */ \"pools\"", 1);
    expect(&judge_mcrouter(&commented, PATIENCE), Note, &[]);
}

/// Replacements for a part of the file.
const PIECES: [&str; 18] = [
    "",
    "null",
    "3",
    "-1e9",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    "\"x\"",
    "\"|\"",
    "\"PoolRoute|A\"",
    ",",
    "\"",
    "{",
    "}",
    "/*",
    "\\",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Every mutation of a file results in findings.
    #[test]
    fn no_mutation_is_a_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, prop::sample::select(&PIECES[..])), 1..5),
    ) {
        let mut text = SHIPPED.to_owned();
        for (at, length, piece) in edits {
            let start = text.floor_char_boundary(at.index(text.len() + 1));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end, piece);
        }
        let findings = judge_mcrouter(&text, PATIENCE);
        prop_assert!(!findings.is_empty());
        prop_assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)));
    }
}
