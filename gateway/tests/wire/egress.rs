//! `[egress]` over the wire: what a rule refuses, with which words, and whether it costs the token.

use crate::support::client::{Client, connect, connect_with};
use crate::support::proxies::egress;
use crate::support::target::{Echo, Held};
use crate::support::{ISSUER, Running, home_with_keys};
use postern_gateway::config::{Egress, Ports};
use std::net::SocketAddr;

/// Targets that [`rules_but_for`] refuse: error and words.
pub(crate) const DENIED: [(&str, &str, &str); 5] = [
    ("b.example:443", "http_request_denied", "to this target"),
    ("127.0.0.2:443", "http_request_denied", "to this target"),
    ("10.1.2.3:443", "destination_ip_prohibited", "to this address"),
    ("[::ffff:10.1.2.3]:443", "destination_ip_prohibited", "to this address"),
    ("[64:ff9b::a01:203]:443", "http_request_denied", "to this target"),
];

/// Rules that refuse everything but one target, and a network in other words.
pub(crate) fn rules_but_for(allowed: SocketAddr) -> String {
    format!(
        "private = true\n[[rules]]\ndeny = [\"10.0.0.0/8\"]\n[[rules]]\nallow = [\"{allowed}\"]\n[[rules]]\ndeny = [\"*\"]"
    )
}

#[tokio::test]
async fn what_a_rule_denies_is_refused_before_the_token_is_spent_and_tells_nothing_of_the_rules() {
    let echo = Echo::start().await;
    let gateway = Running::start_with(|config| config.egress = egress(&rules_but_for(echo.address))).await;
    let authorization = ISSUER.authorization();
    for (target, error, details) in DENIED {
        println!("{target}");
        let answer = Client::ask(gateway.address, connect_with(target, &[&authorization])).await;
        answer.assert_refused(403, error, details);
        let body = String::from_utf8(answer.body).unwrap();
        assert!(!body.contains("10.0.0.0") && !body.contains('*'), "{body}");
    }
    Client::ask(gateway.address, connect_with(echo.address, &[&authorization])).await.assert_opened();
}

#[tokio::test]
async fn a_name_reaches_private_addresses_only_where_its_rule_or_a_network_says_so() {
    let echo = Echo::start().await;
    let port = echo.address.port();
    let (name, address) = (format!("localhost:{port}"), echo.address);
    let by_name = format!("[[rules]]\nallow = [\"{name}\"]");
    for (rules, is_opened) in [
        (by_name.clone(), false),
        (format!("{by_name}\nprivate = true"), true),
        (format!("[[rules]]\nallow = [\"{address}\"]"), true),
        (format!("{by_name}\n[[rules]]\nallow = [\"127.0.0.0/8:*\"]\n[[rules]]\ndeny = [\"*\"]"), true),
        (format!("deny = [\"127.0.0.0/8\", \"::1/128\"]\n{by_name}\nprivate = true"), false),
    ] {
        println!("{rules}");
        let config = Egress { ports: Ports::List(vec![443]), ..egress(&rules) };
        let gateway = Running::start_with(|changed| changed.egress = config).await;
        let answer = Client::ask(gateway.address, connect(&name)).await;
        if is_opened {
            answer.assert_opened();
        } else {
            answer.assert_refused(403, "destination_ip_prohibited", "private, local or otherwise special");
        }
    }
}

/// The local address is seen at the target.
#[tokio::test]
async fn tunnels_go_out_from_the_listed_addresses_in_turn_and_from_a_rules_own() {
    let mut target = Held::start().await;
    let (port, address) = (target.address.port(), target.address);
    let rules = format!(
        "private = true\nports = \"any\"\nsource = [\"127.0.0.2\", \"127.0.0.3\"]\n\
         [[rules]]\nallow = [\"localhost:{port}\"]\nsource = [\"127.0.0.4\"]"
    );
    let gateway = Running::start_with(|config| config.egress = egress(&rules)).await;
    let mut seen = Vec::new();
    for asked in [address.to_string(), address.to_string(), format!("localhost:{port}"), address.to_string()]
    {
        Client::ask(gateway.address, connect(asked)).await.assert_opened();
        seen.push(target.next().await.peer_addr().unwrap().ip().to_string());
    }
    assert_eq!(seen[2], "127.0.0.4");
    assert!(
        [["127.0.0.2", "127.0.0.3"], ["127.0.0.3", "127.0.0.2"]]
            .contains(&[&seen[0], &seen[1]].map(String::as_str))
    );
    assert!(["127.0.0.2", "127.0.0.3"].contains(&seen[3].as_str()), "{seen:?}");

    let refused = Client::ask(gateway.address, connect("[::1]:9")).await;
    refused.assert_refused(502, "destination_ip_unroutable", "no address to reach the target from");
}

#[tokio::test]
async fn a_source_that_nothing_can_connect_from_is_refused_at_start_and_anothers_address_at_the_dial() {
    for text in ["source = [\"0.0.0.0\"]", "[[rules]]\nallow = [\"*\"]\nsource = [\"::ffff:198.51.100.7\"]"] {
        let refused =
            Running::start_in(home_with_keys(), |config| config.egress = egress(text)).err().unwrap();
        assert!(refused.to_string().contains("egress.source has "), "{refused}");
        assert_eq!(refused.exit_code(), 64);
    }
    let echo = Echo::start().await;
    let others = "private = true\nports = \"any\"\nsource = [\"192.0.2.1\"]";
    let gateway = Running::start_with(|config| config.egress = egress(others)).await;
    let answer = Client::ask(gateway.address, connect(echo.address)).await;
    answer.assert_refused(502, "destination_ip_unroutable", "no address to reach the target from");
}
