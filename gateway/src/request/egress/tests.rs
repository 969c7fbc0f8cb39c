//! Decisions of the policy, in tables.

use super::*;
use crate::config::{Ports, PortsWord};

fn strict() -> Policy {
    Policy::new(&Egress::default()).unwrap()
}

fn policy(text: &str) -> Policy {
    Policy::new(&postern_config::parse("egress.toml", text, []).unwrap()).unwrap()
}

fn target(text: &str) -> Target {
    Target::parse(text, None).unwrap()
}

/// Checks a literal address at a port that every policy here allows.
fn check(policy: &Policy, address: &str) -> Result<(), PolicyRefusal> {
    let address = address.parse().unwrap();
    let target = Target::new(Host::Address(address), 443).unwrap();
    let checked = policy.check_address(&target, address);
    assert_eq!(policy.check_address(&target.over(Transport::Udp), address), checked, "{address} over UDP");
    checked
}

/// Asserts that UDP is judged as TCP is where both may use every port, and refused where it may use none.
fn assert_same_over_udp(policy: &Policy, target: &Target, addresses: &[IpAddr]) {
    let with = |word: PortsWord| {
        let egress =
            Egress { ports: Ports::Word(PortsWord::Any), udp: Ports::Word(word), ..policy.egress.clone() };
        Policy::new(&egress).unwrap()
    };
    let over = |policy: &Policy, transport: Transport| {
        let target = target.clone().over(transport);
        let of_addresses = addresses.iter().map(|address| policy.check_address(&target, *address));
        [policy.check_target(&target)].into_iter().chain(of_addresses).collect::<Vec<_>>()
    };
    let (open, closed) = (with(PortsWord::Any), with(PortsWord::Off));
    assert_eq!(over(&open, Transport::Udp), over(&open, Transport::Tcp), "{target:?} over UDP");
    assert!(over(&closed, Transport::Udp).iter().all(Result::is_err), "{target:?} over UDP");
}

#[test]
fn ports_and_networks_follow_the_configuration() {
    assert_eq!(strict().check_target(&target("example.com:22")), Err(PolicyRefusal::Port(Lever::Operator)));
    assert_eq!(strict().check_target(&target("example.com:443")), Ok(()));
    assert_eq!(strict().check_target(&target("127.0.0.1:443")), Err(PolicyRefusal::Address(Lever::Operator)));
    assert_eq!(
        strict().check_target(&target("[64:ff9b::7f00:1]:443")),
        Err(PolicyRefusal::Address(Lever::Operator))
    );
    let deny = vec!["1.1.1.0/24".parse().unwrap()];
    let open =
        Policy::new(&Egress { private: true, ports: Ports::Word(PortsWord::Any), deny, ..Egress::default() })
            .unwrap();
    assert_eq!(open.check_target(&target("127.0.0.1:22")), Ok(()));
    for denied in ["1.1.1.1:443", "[64:ff9b::101:101]:443", "[2a00::5efe:101:101]:443"] {
        assert_eq!(open.check_target(&target(denied)), Err(PolicyRefusal::Address(Lever::Operator)));
    }
}

/// One datagram of a client would reach a whole network.
#[test]
fn nothing_allows_multicast() {
    let open =
        policy("private = true\nudp = \"any\"\n[[rules]]\nallow = [\"*\", \"224.0.0.0/4\"]\nprivate = true");
    for group in ["224.0.0.251", "239.255.255.250", "ff02::fb", "::ffff:224.0.0.251"] {
        assert_eq!(check(&open, group), Err(PolicyRefusal::Address(Lever::Operator)), "{group}");
    }
    assert_eq!(check(&open, "192.168.1.1"), Ok(()));
}

#[test]
fn the_machines_own_addresses_are_refused_unless_they_are_allowed() {
    let own = "1.2.3.4".parse().unwrap();
    let policy = Policy { own: Some(OwnAddresses::these(vec![own])), ..strict() };
    let refused = Err(PolicyRefusal::Address(Lever::Operator));
    for address in ["1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::102:304"] {
        assert_eq!(check(&policy, address), refused, "{address}");
    }
    assert_eq!(check(&policy, "1.2.3.5"), Ok(()));
    let allowing = Policy::new(&Egress { own: true, ..Egress::default() }).unwrap();
    assert!(allowing.own.is_none() && strict().own.is_some());
}

/// Returns the decisions about a target, without levers: before it is resolved, and for each of these addresses.
fn fate(policy: &Policy, text: &str, addresses: &[&str]) -> String {
    let target = target(text);
    let word = |checked: Result<(), PolicyRefusal>| match checked {
        Ok(()) => "allowed",
        Err(PolicyRefusal::Port(_)) => "port",
        Err(PolicyRefusal::Address(_)) => "address",
        Err(PolicyRefusal::Target(_)) => "target",
        Err(PolicyRefusal::Network(_)) => "network",
    };
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    assert_same_over_udp(policy, &target, &addresses);
    let mut words = vec![word(policy.check_target(&target))];
    words.extend(addresses.iter().map(|address| word(policy.check_address(&target, *address))));
    words.join(" ")
}

#[test]
fn a_first_hop_reaches_the_listed_second_hops_alone() {
    let policy = policy(
        "[[rules]]\nallow = [\"gateway-b.example:443\", \"198.41.0.4:8443\"]\n[[rules]]\ndeny = [\"*\"]",
    );
    for (target, addresses, expected) in [
        (
            "gateway-b.example:443",
            &["1.1.1.1", "10.0.0.1", "::ffff:127.0.0.1"][..],
            "allowed allowed address address",
        ),
        ("GATEWAY-B.example.:443", &["1.1.1.1"], "allowed allowed"),
        ("gateway-b.example:444", &[], "target"),
        ("a.gateway-b.example:443", &[], "target"),
        ("elsewhere.example:443", &[], "target"),
        ("1.1.1.1:443", &[], "target"),
        ("198.41.0.4:8443", &[], "allowed"),
        ("[::ffff:198.41.0.4]:8443", &[], "allowed"),
        // Its IPv6 form is not listed.
        ("[64:ff9b::c629:4]:8443", &[], "target"),
        ("198.41.0.4:443", &[], "target"),
    ] {
        assert_eq!(fate(&policy, target, addresses), expected, "{target}");
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(
        "ports = [443]\n\
         deny = [\"10.9.0.0/16\"]\n\
         [[rules]]\nallow = [\"good.bad.example\"]\n\
         [[rules]]\ndeny = [\"*.bad.example\", \"1.2.3.0/24\", \"*:25\"]\n\
         [[rules]]\nallow = [\"10.0.0.0/8:22\", \"[2001:db8::]/32\", \"*.example:8000-8999\", \"1.2.3.4:25\"]\n",
    );
    for (target, addresses, expected) in [
        // Allowed by its name; its addresses are judged by the networks of later rules, and by the keys.
        (
            "good.bad.example:443",
            &["1.1.1.1", "1.2.3.4", "10.0.0.1", "2001:db8::1"][..],
            "allowed allowed network address allowed",
        ),
        // Without ports, an allowed name has those of `ports`.
        ("good.bad.example:8443", &[], "target"),
        ("other.bad.example:443", &[], "target"),
        ("bad.example:443", &["1.1.1.1", "1.2.3.4"], "allowed allowed network"),
        ("bad.example:25", &[], "target"),
        ("a.example:8443", &["1.1.1.1", "10.0.0.1"], "allowed allowed address"),
        ("a.test:8443", &[], "port"),
        // No rule and no key allows the port for the name; a rule does for addresses.
        ("a.test:22", &["1.1.1.1", "10.0.0.1", "10.9.0.1"], "allowed port allowed address"),
        ("10.0.0.1:22", &[], "allowed"),
        ("10.9.0.1:22", &[], "address"),
        ("10.0.0.1:443", &[], "address"),
        ("1.2.3.4:443", &[], "network"),
        ("1.2.3.4:25", &[], "network"),
        // Both forms are judged.
        ("[64:ff9b::102:304]:443", &[], "network"),
        ("[64:ff9b::a00:1]:22", &[], "port"),
        ("[2001:db8::1]:443", &[], "allowed"),
    ] {
        assert_eq!(fate(&policy, target, addresses), expected, "{target}");
    }
}

#[test]
fn a_network_that_is_allowed_first_is_reached_by_name_although_other_names_are_denied() {
    let policy = policy("[[rules]]\nallow = [\"10.0.0.0/8:443\"]\n[[rules]]\ndeny = [\"*\"]");
    assert_eq!(fate(&policy, "a.example:443", &["10.0.0.1", "1.1.1.1"]), "allowed allowed target");
    assert_eq!(fate(&policy, "a.example:80", &[]), "target", "no address of it is allowed on this port");
}

#[test]
fn only_what_is_private_by_its_rule_reaches_private_addresses_by_name() {
    let policy = policy(
        "deny = [\"10.9.0.0/16\"]\n\
         [[rules]]\nallow = [\"db.example:5432\"]\nprivate = true\n\
         [[rules]]\nallow = [\"*\"]\n\
         [[rules]]\ndeny = [\"10.0.0.0/8\"]\n",
    );
    assert_eq!(
        fate(&policy, "db.example:5432", &["10.0.0.1", "127.0.0.1", "10.9.0.1"]),
        "allowed allowed allowed address"
    );
    assert_eq!(
        fate(&policy, "db.example:443", &["10.0.0.1", "127.0.0.1", "1.1.1.1"]),
        "allowed network address allowed"
    );
    assert_eq!(fate(&policy, "127.0.0.1:443", &[]), "address", "a star lists no address");
    assert_eq!(fate(&policy, "1.1.1.1:443", &[]), "allowed");
}

#[test]
fn a_target_is_reached_through_the_next_hop_of_the_rule_that_decides() {
    let policy = policy(
        "[[rules]]\nallow = [\"9.0.0.0/8:443\"]\nvia = \"net\"\n\
         [[rules]]\ndeny = [\"blocked.example\"]\n\
         [[rules]]\nallow = [\"*.example:443\", \"*:22\"]\nvia = \"names\"\n\
         [[next_hops]]\nname = \"net\"\nurls = [\"socks5://192.0.2.1:1080\"]\n\
         [[next_hops]]\nname = \"names\"\nurls = [\"http://proxy.test:3128\"]\n",
    );
    let of_name = |name: &str, port: u16| {
        let target = target(&format!("{name}:{port}"));
        policy.via_of_name(name, &target).map(|via| via.hop.config.name.as_str())
    };
    assert_eq!(of_name("a.example", 443), Some("names"));
    assert_eq!(of_name("a.test", 22), Some("names"));
    for (name, port) in [("a.test", 443), ("a.example", 80), ("blocked.example", 443), ("a.invalid", 22)] {
        assert_eq!(of_name(name, port), None, "{name}:{port} is resolved here, or refused");
    }
    let of_addresses = |text: &str, addresses: &[&str]| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let first = policy.via_of_first(&target(text), &addresses);
        first.map(|(via, address)| format!("{} {address}", via.hop.config.name))
    };
    assert_eq!(of_addresses("9.1.1.1:443", &["9.1.1.1"]).as_deref(), Some("net 9.1.1.1"));
    assert_eq!(of_addresses("1.1.1.1:22", &["1.1.1.1"]).as_deref(), Some("names 1.1.1.1"));
    // No rule has the name, but a rule may have its addresses: the resolver's first one decides about the route.
    assert_eq!(of_addresses("a.test:443", &["9.1.1.1", "1.1.1.1"]).as_deref(), Some("net 9.1.1.1"));
    assert_eq!(of_addresses("a.test:443", &["1.1.1.1", "9.1.1.1"]), None);
}

#[test]
fn what_no_rule_sends_elsewhere_goes_through_the_next_hop_of_all() {
    let text = "via = \"all\"\n\
         [[rules]]\nallow = [\"near.example:443\", \"9.0.0.0/8:443\"]\nvia = \"direct\"\n\
         [[rules]]\nallow = [\"*.onion:443\"]\nvia = \"tor\"\n\
         [[rules]]\nallow = [\"*.example:443\"]\n\
         [[next_hops]]\nname = \"all\"\nurls = [\"http://192.0.2.1:3128\"]\n\
         [[next_hops]]\nname = \"tor\"\nurls = [\"socks5://127.0.0.1:9050\"]\n";
    let before = policy(text);
    for (text, expected) in [
        ("a.test:443", Some("all")),
        ("a.example:443", Some("all")),
        ("a.onion:443", Some("tor")),
        ("near.example:443", None),
        ("a.test:22", None), // refused
        ("a.invalid:443", None),
        ("1.1.1.1:443", Some("all")),
        ("9.1.1.1:443", None),
    ] {
        let target = target(text);
        let via = match target.host() {
            Host::Name(name) => before.via_of_name(name, &target),
            Host::Address(address) => {
                before.via(&target, *address).filter(|_| before.check_target(&target).is_ok())
            }
        };
        assert_eq!(via.map(|via| via.hop.config.name.as_str()), expected, "{text}");
        // Clients probe the gateway with a name below "invalid".
        let of_all = expected == Some("all") || text.starts_with("a.invalid");
        assert_eq!(before.goes_through_that_of_all(&target), of_all, "{text}");
    }
    // A reload keeps next hops that it does not change.
    let egress = postern_config::parse(
        "egress.toml",
        &text
            .replace("near.example", "far.example")
            .replace("socks5://127.0.0.1:9050", "socks5://127.0.0.1:9051"),
        [],
    );
    let after = Policy::after(&before.next_hops, &egress.unwrap()).unwrap();
    let kept = |name: &str| {
        let [before, after] = [&before, &after].map(|policy| policy.next_hops.named(name).unwrap());
        Arc::ptr_eq(before, after)
    };
    assert_eq!([kept("all"), kept("tor")], [true, false]);
}

#[test]
fn a_table_that_is_no_rule_is_refused_with_what_to_write() {
    for (text, part) in [
        ("[[rules]]\nallow = [\"a.example\"]\ndeny = [\"*\"]", "make two rules of it"),
        ("[[rules]]\nprivate = true", "write allow = "),
        ("[[rules]]\ndeny = []", "remove the rule"),
        ("[[rules]]\ndeny = [\"*\"]\nprivate = true", "this one denies"),
        ("[[rules]]\ndeny = [\"*\"]\nvia = \"a\"", "this one denies"),
        ("[[rules]]\ndeny = [\"*\"]\nsource = [\"198.51.100.7\"]", "this one denies"),
        (
            "[[rules]]\ndeny = [\"*\"]\n[[rules]]\ndeny = [\"10.0.0.1/8\"]",
            "write \"10.0.0.0/8\" for the network",
        ),
        ("[[rules]]\nalow = [\"*\"]", "did you mean"),
    ] {
        let error = postern_config::parse::<Egress>("egress.toml", text, []).err().unwrap().to_string();
        assert!(error.contains(part) && error.starts_with("egress.toml, line "), "{error}");
        println!("{error}");
    }
}
