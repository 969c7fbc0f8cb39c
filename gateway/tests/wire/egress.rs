//! `[egress]` over the wire: what a rule refuses, with which words, and whether it costs the token.

use crate::support::client::{Client, connect, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Running};
use postern_gateway::config::{Egress, Ports};

/// `[egress]` from its text.
fn egress(text: &str) -> Egress {
    postern_config::parse("egress.toml", text, []).unwrap()
}

#[tokio::test]
async fn what_a_rule_denies_is_refused_before_the_token_is_spent_and_tells_nothing_of_the_rules() {
    let echo = Echo::start().await;
    let rules = format!(
        "private = true\n[[rules]]\ndeny = [\"10.0.0.0/8\"]\n[[rules]]\nallow = [\"{}\"]\n[[rules]]\ndeny = [\"*\"]",
        echo.address
    );
    let gateway = Running::start_with(|config| config.egress = egress(&rules)).await;
    let authorization = ISSUER.authorization();
    for (target, error, details) in [
        ("b.example:443", "http_request_denied", "to this target"),
        ("127.0.0.2:443", "http_request_denied", "to this target"),
        ("10.1.2.3:443", "destination_ip_prohibited", "to this address"),
        ("[::ffff:10.1.2.3]:443", "destination_ip_prohibited", "to this address"),
        ("[64:ff9b::a01:203]:443", "http_request_denied", "to this target"),
    ] {
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
