mod input;

use super::Severity::{Note, Refuse, Warn};
use super::{Finding, Severity, judge};

const QUORUM: &str = include_str!("../../../deploy/mcrouter/quorum.json");
const SINGLE: &str = include_str!("../../../deploy/mcrouter/single.json");

const POOLS: &str = r#"
    "A": {"servers": ["10.0.0.1:1", "10.0.0.2:1"]}, "B": {"servers": ["10.0.0.3:1", "10.0.0.4:1"]},
    "C": {"servers": ["10.0.0.5:1", "10.0.0.6:1"]}, "D": {"servers": ["10.0.0.7:1"]},
    "sharesA": {"servers": ["10.0.0.2:1", "10.0.0.9:1"]}, "empty": {"servers": []}, "three": {"servers": ["10.1.0.1:1",
    "10.1.0.2:1", "10.1.0.3:1"]}, "slow": {"inherit": "A", "server_timeout": 5000}, "one": {"servers": ["h:1"]},
    "twice": {"servers": ["localhost:1", "127.0.0.1:1:ascii"]}, "circle": {"inherit": "circle"}, "text": "file:x",
    "bad": {"servers": ["nowhere"]}, "caret": {"servers": ["10.2.0.1:1:caret", "10.2.0.2:1"], "protocol": "caret"},
    "odd": {"servers": ["10.0.0.1:1"], "failover_tag": true}, "inA": {"servers": ["PoolRoute|A"]},
    "routes": {"servers": [{"type": "PoolRoute", "pool": "A"}, {"type": "PoolRoute", "pool": "B"}]},
    "fanned": {"servers": ["10.1.0.1:1", "10.1.0.2:1"], "additional_fanout": 1}"#;

fn config(rest: &str) -> String {
    format!("{{\"pools\": {{{POOLS}}}, {rest}}}")
}

/// The findings for `route` as the only route.
fn everything(route: &str) -> Vec<Finding> {
    judge(&config(&format!("\"route\": {route}")))
}

/// The findings for `add` as the route of `add`, with a `get` that reads everywhere.
fn add(add: &str) -> Vec<Finding> {
    add_and_get(
        add,
        r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"]}"#,
    )
}

fn add_and_get(add: &str, get: &str) -> Vec<Finding> {
    let operations = format!("{{\"add\": {add}, \"get\": {get}}}");
    everything(&format!("{{\"type\": \"OperationSelectorRoute\", \"operation_policies\": {operations}}}"))
}

fn worst(findings: &[Finding]) -> Severity {
    findings.first().map_or(Note, |finding| finding.severity)
}

/// The weightiest finding has `severity` and the route `kind`, and contains `part`.
#[track_caller]
fn expect(findings: &[Finding], severity: Severity, kind: &str, part: &str) {
    assert_eq!(worst(findings), severity, "{findings:#?}");
    let said = findings.iter().any(|finding| {
        finding.severity == severity && finding.route == kind && finding.to_string().contains(part)
    });
    assert!(said, "no finding of {kind:?} contains {part:?}: {findings:#?}");
}

#[test]
fn the_files_that_we_deploy_are_fit() {
    let limit = "it survives one loss in the life of a token key";
    for (text, part) in [(QUORUM, "a quorum: 3 replicas"), (QUORUM, limit), (SINGLE, "one pool of 3 servers")]
    {
        let findings = judge(text);
        assert_eq!(worst(&findings), Note, "{findings:#?}");
        assert!(findings.iter().any(|finding| finding.reason.contains(part)), "{findings:#?}");
    }
}

#[test]
fn what_is_done_wrong_to_the_files_that_we_deploy_is_refused_with_its_place() {
    let add = "route.operation_policies.add";
    let cases = [
        (QUORUM, "AllMajorityRoute", "FailoverRoute", add, "FailoverRoute"),
        (QUORUM, "AllMajorityRoute", "AllFastestRoute", add, "AllFastestRoute"),
        (QUORUM, "\"add\"", "\"set\"", "route.default_policy", "ErrorRoute"),
        (QUORUM, "10.0.3.2:11211", "10.0.1.1:11211", add, "AllMajorityRoute"),
        (
            QUORUM,
            "[\"PoolRoute|replica-a\", \"PoolRoute|replica-b\"",
            "[\"FailoverRoute|Pool|replica-a\", \"PoolRoute|replica-b\"",
            "route.operation_policies.add.children[0]",
            "FailoverRoute",
        ),
        (SINGLE, "\"PoolRoute|spent\"", "\"FailoverRoute|Pool|spent\"", add, "FailoverRoute"),
        (SINGLE, "\"PoolRoute|spent\"", "\"Pool|spent\"", add, ""),
        (SINGLE, "\"server_timeout\"", "\"failover_errors\": [], \"server_timeout\"", "pools.spent", "pool"),
    ];
    for (text, from, to, path, kind) in cases {
        let broken = text.replacen(from, to, 1);
        assert_ne!(broken, text, "{from}");
        let findings = judge(&broken);
        let first = &findings[0];
        let seen = (first.severity, first.path.as_str(), first.route.as_str());
        assert_eq!(seen, (Refuse, path, kind), "{from} -> {to}: {findings:#?}");
    }
}

#[test]
fn routes_that_own_their_keys_or_are_a_quorum_are_fit_for_add() {
    let fit = [
        r#""PoolRoute|A""#,
        r#""HashRoute|Pool|three""#,
        r#"{"type": "HashRoute", "hash_func": "Crc32", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
        r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "WeightedCh3", "salt": "x", "weights": [1, 1]}}"#,
        r#"{"type": "PoolRoute", "pool": {"name": "inline", "servers": ["10.9.0.1:1", "10.9.0.2:1"]}}"#,
        r#""PoolRoute|routes""#,
        r#""AllMajorityRoute|Pool|three""#,
        r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", ["PoolRoute|B", ["PoolRoute|C"]], ""]}"#,
        r#"{"type": "AllMajorityRoute", "children": "PoolRoute|A"}"#,
        r#"{"type": "FailoverRoute", "children": ["PoolRoute|A"]}"#,
        r#"{"type": "LoggingRoute", "target": "PoolRoute|A"}"#,
        r#""LoggingRoute|PoolRoute|A""#,
        r#"{"type": "LatencyInjectionRoute", "child": "PoolRoute|A", "before_latency_ms": 1}"#,
        r#"{"type": "BigValueRoute", "target": "PoolRoute|A", "split_threshold": 1000, "batch_size": 1}"#,
        r#"{"type": "RoutingGroupRoute", "routing_group_policies": {"update_like": "PoolRoute|A", "get_like": "PoolRoute|A"}}"#,
        r#"{"type": "OperationSelectorRoute", "default_policy": "PoolRoute|A", "operation_policies": {"delete": "NullRoute"}}"#,
        r#"{"type": "ShadowRoute", "children": "PoolRoute|A", "shadows": [{"target": "PoolRoute|B"}]}"#,
        r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|B"}"#,
        r#"{"type": "PrefixSelectorRoute", "policies": {"other": "FailoverRoute|Pool|A"}, "wildcard": "PoolRoute|A"}"#,
        r#"{"type": "PrefixSelectorRoute", "policies": {"p": "PoolRoute|A", "|": "PoolRoute|A"}, "wildcard": "NullRoute"}"#,
        r#"{"type": "PrefixSelectorRoute", "policies": {"p": "NullRoute", "ps1.": "PoolRoute|A", "pc1": "PoolRoute|A",
            "pp": "PoolRoute|A", "po": "PoolRoute|A", "|": "PoolRoute|A"}}"#,
    ];
    for route in fit {
        let findings = everything(route);
        assert_eq!(worst(&findings), Note, "{route}: {findings:#?}");
        assert!(
            findings.iter().any(|finding| finding.reason.contains("an `add` comes to")),
            "{route}: {findings:#?}"
        );
    }
}

/// Expects that an `add` through each route, with these fields, is refused for a reason that contains this.
fn expect_refused(cases: &[(&str, &str, &str)]) {
    for (kind, fields, part) in cases {
        let findings = add(&format!("{{\"type\": \"{kind}\", {fields}}}"));
        expect(&findings, Refuse, kind, part);
        assert!(findings[0].path.starts_with("route.operation_policies.add"), "{findings:#?}");
    }
}

#[test]
fn routes_that_can_admit_twice_or_never_are_refused_for_add() {
    let two = r#""children": ["PoolRoute|A", "PoolRoute|B"]"#;
    expect_refused(&[
        ("FailoverRoute", two, "stored by the next one"),
        (
            "FailoverWithExptimeRoute",
            r#""normal": "PoolRoute|A", "failover": "PoolRoute|B""#,
            "stored by the next one",
        ),
        ("SaltedFailoverRoute", r#""pool": "A""#, "stored by the next one"),
        ("AllFastestRoute", two, "fastest"),
        ("AllInitialRoute", two, "only the first child's answer counts"),
        ("AllAsyncRoute", two, "NOT_STORED at once"),
        ("AllAsyncRoute", r#""children": ["PoolRoute|A"]"#, "NOT_STORED at once"),
        ("RandomRoute", two, "by chance"),
        ("LatestRoute", two, "prefers another child"),
        ("LoadBalancerRoute", two, "by load"),
        ("HostIdRoute", two, "host id"),
        ("OriginalClientHashRoute", two, "client's address"),
        ("NullRoute", "\"x\": 1", "stores nothing"),
        ("DevNullRoute", "\"x\": 1", "stores nothing"),
        ("ErrorRoute", "\"x\": 1", "503"),
        ("WarmUpRoute", r#""cold": "PoolRoute|A", "warm": "PoolRoute|B""#, "only the cold side"),
        ("MigrateRoute", r#""from": "PoolRoute|A", "to": "PoolRoute|B", "start_time": 1"#, "stays behind"),
        (
            "L1L2CacheRoute",
            r#""l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 1"#,
            "writes into L1",
        ),
        (
            "KeySplitRoute",
            r#""destination": "PoolRoute|A", "replicas": 2, "all_sync": true"#,
            "through each mcrouter",
        ),
        ("ShardSplitRoute", r#""destination": "PoolRoute|A", "shard_splits": {}"#, "through each mcrouter"),
        ("ModifyExptimeRoute", r#""target": "PoolRoute|A", "exptime": 60"#, "when records expire"),
    ]);
    // An unsafe child makes its parents unsafe, and is named itself.
    let nested = add(
        r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B", {"type": "LoggingRoute",
            "target": {"type": "FailoverRoute", "children": ["PoolRoute|C", "PoolRoute|D"]}}]}"#,
    );
    assert_eq!(nested[0].path, "route.operation_policies.add.children[2].target");
    assert_eq!(nested[0].route, "FailoverRoute");
}

#[test]
fn options_and_children_that_make_a_route_unsafe_are_refused_for_add() {
    expect_refused(&[
        (
            "ModifyKeyRoute",
            r#""target": "PoolRoute|A", "ensure_key_prefix": "x", "modify_inplace": true"#,
            "two tokens",
        ),
        (
            "RateLimitRoute",
            r#""target": "PoolRoute|A", "rates": {}, "fallback": "PoolRoute|B""#,
            "another store",
        ),
        ("BigValueRoute", r#""target": "PoolRoute|A", "split_threshold": 10"#, "cut into pieces"),
        (
            "HashRoute",
            r#""hash_func": "Latest", "children": ["PoolRoute|A", "PoolRoute|B"]"#,
            "prefers another child",
        ),
        (
            "HashRoute",
            r#""hash_func": "LoadBalancer", "children": ["PoolRoute|A", "PoolRoute|B"]"#,
            "by load",
        ),
        ("HashRoute", r#""children": []"#, "no children"),
        ("PoolRoute", r#""pool": "A", "hash": "Latest""#, "prefers another child"),
        ("PoolRoute", r#""pool": "A", "hash": {"hash_func": "LoadBalancer"}"#, "by load"),
        ("PoolRoute", r#""pool": "A", "shard_splits": {}"#, "may change servers"),
        ("PoolRoute", r#""pool": "A", "failover": "PoolRoute|B""#, "may change servers"),
        ("PoolRoute", r#""pool": "empty""#, "no servers"),
        ("PoolRoute", "\"x\": 1", "names no pool"),
        ("SRRoute", r#""service_name": "x""#, "not known to be safe"),
        ("PrefixSelectorRoute", r#""wildcard": "PoolRoute|A""#, "not known to be safe"),
        (
            "AllMajorityRoute",
            r#""children": ["PoolRoute|A", "PoolRoute|sharesA", "PoolRoute|C"]"#,
            "same server, 10.0.0.2:1",
        ),
        ("AllMajorityRoute", r#""children": ["PoolRoute|A", "PoolRoute|A", "PoolRoute|C"]"#, "same server"),
        ("AllMajorityRoute", r#""children": ["Pool|three", "PoolRoute|C"]"#, "4 children"),
        ("AllMajorityRoute", r#""children": ["Pool|fanned", "PoolRoute|C"]"#, "5 children"),
        ("AllMajorityRoute", r#""children": ["Pool|three", "PoolRoute|C", "PoolRoute|D"]"#, "5 children"),
        ("AllSyncRoute", r#""children": "Pool|twice""#, "same server, 127.0.0.1:1"),
        ("OperationSelectorRoute", r#""operation_policies": {"get": "PoolRoute|A"}"#, "no route for `add`"),
        ("OperationSelectorRoute", r#""operation_policies": ["x"]"#, "takes an object"),
        ("LoggingRoute", "\"x\": 1", "takes one route here as `target` and finds 0"),
    ]);
}

#[test]
fn what_never_admits_twice_but_costs_tokens_is_a_warning() {
    let cases = [
        (
            r#"{"type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
            "AllSyncRoute",
            "both be refused",
        ),
        (
            r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}"#,
            "AllMajorityRoute",
            "two children",
        ),
        (r#""MissFailoverRoute|Pool|A""#, "MissFailoverRoute", "first child alone"),
        (
            r#"{"type": "RateLimitRoute", "target": "PoolRoute|A", "rates": {}}"#,
            "RateLimitRoute",
            "over the rate",
        ),
        (r#"{"type": "PoolRoute", "pool": "A", "rates": {}}"#, "PoolRoute", "over the rate"),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": "WeightedCh3RV"}"#,
            "PoolRoute",
            "weights can be changed",
        ),
        (
            r#"{"type": "ModifyKeyRoute", "target": "PoolRoute|A", "ensure_key_prefix": "x"}"#,
            "ModifyKeyRoute",
            "same file",
        ),
        (r#""PoolRoute|slow""#, "pool", "over a second"),
        (r#""PoolRoute|caret""#, "pool", "another protocol"),
        (r#""PoolRoute|one""#, "PoolRoute", "all records are on one server"),
    ];
    for (route, kind, part) in cases {
        expect(&everything(route), Warn, kind, part);
    }
    expect(&everything(r#""PoolRoute|twice""#)[1..], Note, "pool", "listed twice");
}

#[test]
fn a_get_must_see_what_an_add_wrote() {
    let quorum = r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"]}"#;
    let all = r#""children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"]"#;
    let salted = r#"{"type": "PoolRoute", "pool": "A", "hash": {"salt": "x"}}"#;
    let key = r#"{"type": "ModifyKeyRoute", "target": "PoolRoute|A", "ensure_key_prefix": "x"}"#;
    let miss = format!("{{\"type\": \"MissFailoverRoute\", {all}}}");
    assert_eq!(worst(&add_and_get(quorum, quorum)), Note);
    let never = "never comes to where";
    let cases = [
        ("\"PoolRoute|A\"", "\"PoolRoute|B\"", Refuse, "PoolRoute", never),
        ("\"PoolRoute|A\"", salted, Refuse, "PoolRoute", never),
        ("\"PoolRoute|A\"", key, Refuse, "ModifyKeyRoute", never),
        ("\"PoolRoute|A\"", "\"NullRoute\"", Refuse, "NullRoute", never),
        ("\"PoolRoute|A\"", "\"ErrorRoute\"", Refuse, "ErrorRoute", never),
        (quorum, "\"AllAsyncRoute|Pool|A\"", Refuse, "AllAsyncRoute", never),
        (quorum, &miss, Refuse, "MissFailoverRoute", "others came back empty"),
        (quorum, "\"SRRoute\"", Refuse, "SRRoute", "might write"),
        (
            quorum,
            r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B"}"#,
            Refuse,
            "WarmUpRoute",
            "writes",
        ),
        (quorum, "\"PoolRoute|A\"", Warn, "PoolRoute", "may miss"),
        (quorum, &format!("{{\"type\": \"FailoverRoute\", {all}}}"), Warn, "FailoverRoute", "may miss"),
        (quorum, &format!("{{\"type\": \"AllFastestRoute\", {all}}}"), Warn, "AllFastestRoute", "may miss"),
        (quorum, &format!("{{\"type\": \"AllSyncRoute\", {all}}}"), Warn, "AllSyncRoute", "may miss"),
        (
            "\"PoolRoute|A\"",
            r#"{"type": "PoolRoute", "pool": "A", "slow_warmup": {"failoverTarget": "PoolRoute|B"}}"#,
            Warn,
            "PoolRoute",
            "may miss",
        ),
    ];
    for (add, get, severity, kind, part) in cases {
        expect(&add_and_get(add, get), severity, kind, part);
    }
    // The canaries' prefix must not take another route than the records'.
    let apart = everything(
        r#"{"type": "PrefixSelectorRoute", "policies": {"pc1": "PoolRoute|B"}, "wildcard": "PoolRoute|A"}"#,
    );
    expect(&apart, Refuse, "PrefixSelectorRoute", "watch another store");
    let nowhere = everything(r#"{"type": "PrefixSelectorRoute", "policies": {"ps1.": "PoolRoute|B"}}"#);
    expect(&nowhere, Refuse, "PrefixSelectorRoute", "begin with pc1. have no route");
}

#[test]
fn copies_must_not_come_to_the_memory_itself() {
    let pool = r#"{"type": "PoolRoute", "pool": "A", "shadows": [{"target": "FailoverRoute|Pool|sharesA"}]}"#;
    let quorum = r#"{"type": "AllMajorityRoute", "children": ["PoolRoute|B", "PoolRoute|C",
        {"type": "ShadowRoute", "children": "PoolRoute|A", "shadows": [{"target": "PoolRoute|C"}]}]}"#;
    let staging = r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|sharesA"}"#;
    for (route, kind) in [(pool, "FailoverRoute"), (quorum, "PoolRoute"), (staging, "PoolRoute")] {
        expect(&everything(route), Refuse, kind, "copies of an `add` come to servers");
    }
}

#[test]
fn named_handles_and_pools_are_followed() {
    let named = r#""named_handles": {"safe": "PoolRoute|A", "bad": {"type": "FailoverRoute", "children": "Pool|A"},
        "list": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"], "loop": "HashRoute|loop", "NullRoute": "PoolRoute|A"}"#;
    let with = |route: &str| judge(&config(&format!("{named}, \"route\": {route}")));
    assert_eq!(worst(&with("\"safe\"")), Note);
    assert_eq!(worst(&with("\"AllMajorityRoute|list\"")), Note);
    assert_eq!(worst(&with("\"NullRoute\"")), Note, "a name goes before a type");
    let bad = with("\"LoggingRoute|bad\"");
    assert_eq!((bad[0].path.as_str(), bad[0].severity), ("named_handles.bad", Refuse));
    expect(&with("\"loop\""), Refuse, "", "in a circle");
    expect(&with("\"list\""), Refuse, "", "takes one route here and finds 3");
    let inline = r#"{"type": "OperationSelectorRoute", "operation_policies": {"get": "x",
        "add": {"type": "FailoverRoute", "name": "x", "children": ["PoolRoute|A", "PoolRoute|B"]}}}"#;
    expect(&everything(inline), Refuse, "FailoverRoute", "stored by the next one");
    let twice = r#"["PoolRoute|A", {"type": "NullRoute", "name": "x"}, {"type": "ErrorRoute", "name": "x"}]"#;
    expect(&everything(twice), Refuse, "", "stands for another handle");
    for (pool, part) in [
        ("nobody", "not in this file"),
        ("text", "takes an object"),
        ("circle", "in a circle"),
        ("bad", "would not take the server nowhere"),
        ("odd", "could change servers"),
    ] {
        expect(&everything(&format!("\"PoolRoute|{pool}\"")), Refuse, "pool", part);
    }
}

#[test]
fn routes_by_routing_prefix_are_judged_where_ours_come_to_them() {
    let routes = |routes: &str| judge(&config(&format!("\"routes\": {routes}")));
    let fine = routes(
        r#"[{"aliases": ["/././"], "route": "PoolRoute|A"}, {"aliases": ["/b/c/"], "route": "FailoverRoute|Pool|A"}]"#,
    );
    assert_eq!(worst(&fine), Note, "{fine:#?}");
    assert!(
        fine.iter().any(|finding| finding.path == "routes[1].route" && finding.reason.contains("not judged"))
    );
    expect(
        &routes(r#"{"/a/b/": "PoolRoute|A", "/b/c/": "FailoverRoute|Pool|A"}"#),
        Refuse,
        "FailoverRoute",
        "next one",
    );
    expect(&routes(r#"[{"aliases": []}]"#), Refuse, "", "no `route`");
    expect(&routes("3"), Refuse, "", "a list or an object");
    expect(&judge(&config("\"route\": \"PoolRoute|A\", \"routes\": []")), Refuse, "", "both");
    expect(&judge(&config("\"x\": 1")), Refuse, "", "neither");
}

#[test]
fn a_pool_with_servers_that_no_epoch_marker_may_watch_is_a_warning() {
    let pool = |servers: u8| {
        let servers: Vec<_> = (0..servers).map(|server| format!("\"10.3.0.{server}:1\"")).collect();
        let pools = format!("\"pools\": {{\"A\": {{\"servers\": [{}]}}}}", servers.join(", "));
        judge(&format!("{{{pools}, \"route\": \"PoolRoute|A\"}}"))
    };
    assert_eq!(worst(&pool(12)), Note);
    expect(&pool(26), Warn, "PoolRoute", "on average 2.1 of them have none");
}
