//! Files for twemproxy. Those marked as not loading were tried with `nutcracker -t` of version 0.5.0.

use super::*;
use crate::routes::judge_twemproxy;

const SHIPPED: &str = include_str!("../../../../../deploy/twemproxy/nutcracker.yml");

#[test]
fn the_file_that_we_deploy_is_fit() {
    for patience in [None, PATIENCE] {
        expect(
            &judge_twemproxy(SHIPPED, patience),
            Note,
            &["pool spent: an `add` comes to one pool (3 servers)"],
        );
    }
    let defaults = SHIPPED.replace("  hash: fnv1a_64\n", "").replace("  distribution: ketama\n", "");
    expect(&judge_twemproxy(&defaults, PATIENCE), Note, &[]);
}

#[test]
fn what_is_done_wrong_to_the_file_that_we_deploy_is_found() {
    let cases = [
        ("auto_eject_hosts: false", "auto_eject_hosts: true", Refuse, "admitted by each"),
        ("auto_eject_hosts: false", "", Refuse, "admitted by each"),
        ("hash_tag: \"||\"", "hash_tag: \"{}\"", Refuse, "encloses the name of a bucket"),
        ("hash_tag: \"||\"", "", Refuse, "encloses the name of a bucket"),
        ("ketama", "random", Refuse, "have one server"),
        ("preconnect: true", "preconnect: true\n  redis: true", Refuse, "it speaks Redis"),
        ("preconnect: true", "preconnect: true\n  server_connections: 2", Refuse, "may overtake"),
        ("timeout: 50", "timeout: 100", Warn, "waits 100 ms"),
        ("timeout: 50", "", Warn, "without end"),
        ("timeout: 50", "timeout: 0", Warn, "without end"),
        ("preconnect: true", "", Warn, "Write `preconnect: true`"),
        ("127.0.0.1:5000", "0.0.0.0:5000", Warn, "it listens on all addresses"),
        (":1 spent-1", ":1", Note, "a server without a name"),
    ];
    for (from, to, severity, part) in cases {
        assert!(SHIPPED.contains(from), "{from}");
        expect(&judge_twemproxy(&SHIPPED.replace(from, to), PATIENCE), severity, &["pool spent: ", part]);
    }
}

#[test]
fn a_file_that_does_not_load_is_not_fit() {
    let cases = [
        ("auto_eject_hosts: false", "auto_eject_hosts: no"),
        ("preconnect: true", "preconnect: yes"),
        ("preconnect: true", "preconnect: True"),
        ("preconnect: true", "preconnect: true\n  reuseport: true"),
        ("preconnect: true", "preconnect: true\n  server_connections: 0"),
        ("preconnect: true", "preconnect: true\n  more: 1"),
        ("preconnect: true", "preconnect: true\n  preconnect: true"),
        ("timeout: 50", "timeout: -1"),
        ("timeout: 50", "timeout: 50ms"),
        ("timeout: 50", "timeout: 0x10"),
        ("timeout: 50", "timeout: +5"),
        ("ketama", "rendezvous"),
        ("fnv1a_64", "fnv"),
        ("hash_tag: \"||\"", "hash_tag: \"|\""),
        ("listen: 127.0.0.1:5000", ""),
        ("10.0.0.1:11211:1 spent-1", "10.0.0.1:11211 spent-1"),
        ("10.0.0.1:11211:1 spent-1", "10.0.0.1:11211:0 spent-1"),
        ("10.0.0.1:11211:1 spent-1", "10.0.0.1:11211:1  spent-1"),
        ("spent-1", "spent-2"),
    ];
    for (from, to) in cases {
        assert!(SHIPPED.contains(from), "{from}");
        let findings = judge_twemproxy(&SHIPPED.replace(from, to), PATIENCE);
        assert_eq!(worst(&findings), Refuse, "{to}: {findings:#?}");
    }
    for text in ["", "{}", "- 1", "spent: 5", "1: {}", "spent: {", "spent: {}"] {
        assert_eq!(worst(&judge_twemproxy(text, None)), Refuse, "{text:.20}");
    }
    let none = SHIPPED.split("  servers:").next().unwrap().to_owned() + "  servers: []\n";
    expect(&judge_twemproxy(&none, None), Refuse, &["it has no servers"]);
    let other = format!(
        "{SHIPPED}\nother:\n  listen: 127.0.0.1:5001\n  redis: true\n  servers: [\"10.0.0.1:6379:1\"]\n"
    );
    expect(&judge_twemproxy(&other, None), Refuse, &["pool other: it speaks Redis", "its own twemproxy"]);
}
