use super::*;
use std::time::Duration;

const SHIPPED: &str = include_str!("../../../../deploy/twemproxy/nutcracker.yml");

const BOUND: Gateway = Gateway { timeout: Duration::from_millis(100), bound: true };
const UNBOUND: Gateway = Gateway { bound: false, ..BOUND };

fn worst(findings: &[Finding]) -> Severity {
    findings.first().map_or(Note, |finding| finding.severity)
}

#[track_caller]
fn expect(text: &str, gateway: Option<Gateway>, severity: Severity, part: &str) {
    let findings = judge_twemproxy(text, gateway);
    let said =
        findings.iter().any(|finding| finding.severity == severity && finding.to_string().contains(part));
    assert!(said, "no {severity:?} contains {part:?}: {findings:#?}");
}

#[test]
fn the_file_that_we_deploy_is_fit() {
    for gateway in [None, Some(BOUND), Some(UNBOUND)] {
        let findings = judge_twemproxy(SHIPPED, gateway);
        assert_eq!(worst(&findings), Note, "{findings:#?}");
        assert!(findings[0].to_string().contains("one pool of 3 servers"), "{findings:#?}");
    }
}

#[test]
fn what_is_done_wrong_to_the_file_that_we_deploy_is_found() {
    let cases = [
        ("auto_eject_hosts: false", "auto_eject_hosts: true", Refuse, "once more by the first one"),
        ("auto_eject_hosts: false", "auto_eject_hosts: yes", Refuse, "neither `true` nor `false`"),
        ("hash_tag: \"||\"", "hash_tag: \"{}\"", Refuse, "is not what encloses the name of a bucket"),
        ("hash_tag: \"||\"", "", Refuse, "it has no `hash_tag`"),
        ("ketama", "random", Refuse, "a token is admitted once by each"),
        ("ketama", "modula", Warn, "nearly every key changes its server"),
        ("ketama", "rendezvous", Refuse, "`distribution: rendezvous` is not known"),
        ("timeout: 50", "timeout: 100", Warn, "Write `timeout: 50`"),
        ("timeout: 50", "", Warn, "without end"),
        ("timeout: 50", "timeout: -1", Warn, "without end"),
        ("preconnect: true", "", Warn, "Write `preconnect: true`"),
        ("preconnect: true", "preconnect: true\n  redis: true", Refuse, "it speaks Redis"),
        ("preconnect: true", "preconnect: true\n  server_connections: 2", Refuse, "it has 2 connections"),
        ("preconnect: true", "preconnect: true\n  server_retry_timeout: 2000", Note, "has no effect"),
        ("127.0.0.1:5000", "0.0.0.0:5000", Warn, "it listens on all addresses"),
        (":1 spent-1", ":1", Note, "a server without a name"),
    ];
    for (from, to, severity, part) in cases {
        assert!(SHIPPED.contains(from), "{from}");
        expect(&SHIPPED.replace(from, to), Some(BOUND), severity, part);
    }
}

#[test]
fn a_bucket_may_be_parted_only_where_no_token_is_bound() {
    let parting = SHIPPED.replace("hash_tag", "# hash_tag");
    expect(
        &parting,
        Some(BOUND),
        Refuse,
        "when a server comes back empty, its spent tokens are admitted again. Write",
    );
    expect(&parting, None, Refuse, "unless `challenge.bind` is \"off\"");
    expect(&parting, Some(UNBOUND), Warn, "as soon as `challenge.bind` is");
    assert_eq!(worst(&judge_twemproxy(&parting, Some(UNBOUND))), Warn);
}

#[test]
fn the_router_gives_up_before_the_gateway() {
    let slow = Gateway { timeout: Duration::from_millis(500), ..BOUND };
    let text = SHIPPED.replace("timeout: 50", "timeout: 400");
    assert_eq!(worst(&judge_twemproxy(&text, Some(slow))), Note);
    expect(&text, Some(BOUND), Warn, "it waits 400 ms for a server that hangs, and the gateway 100 ms");
    assert_eq!(worst(&judge_twemproxy(&text, None)), Note);
    expect(&SHIPPED.replace("timeout: 50", "timeout: 2000"), None, Warn, "over a second");
}

#[test]
fn servers_are_counted() {
    let pool = |servers: usize| {
        let listed: String =
            (0..servers).map(|number| format!("\n    - 10.0.0.{number}:11211:1 spent-{number}")).collect();
        SHIPPED.split("  servers:").next().unwrap().to_owned() + "  servers:" + &listed
    };
    expect(&pool(0), None, Refuse, "it has no servers");
    expect(&pool(1), None, Warn, "all records are on one server");
    assert_eq!(worst(&judge_twemproxy(&pool(12), None)), Note);
    expect(&pool(13), None, Warn, "its 13 servers share the 64 epoch markers");
}

#[test]
fn pools_for_redis_beside_others_are_left_alone() {
    let text = format!("{SHIPPED}\nother:\n  redis: true\n  auto_eject_hosts: true\n");
    assert_eq!(worst(&judge_twemproxy(&text, Some(BOUND))), Note);
    expect(&text, None, Note, "other (pool): it speaks Redis");
}

#[test]
fn what_is_no_twemproxy_configuration_is_refused() {
    let cases = [
        ("", "it is not a mapping"),
        ("{}", "it has no pool"),
        ("- 1", "it is not a mapping"),
        ("spent: 5", "is not a pool"),
        ("1: {}", "is not a pool"),
        ("spent: {", "it is not the YAML"),
        ("spent: {}\nspent: {}", "it is not the YAML"),
    ];
    for (text, part) in cases {
        expect(text, None, Refuse, part);
    }
    expect(&"a".repeat(LONGEST_TEXT + 1), None, Refuse, "longer than 4 MiB");
}
