//! Tokens of the private types: minted in amortized batches, verified with copies of the issuer's key files, spent once, through
//! rotations and with marks.

use crate::support::memcached::Memcached;
use crate::support::proxy::{connect, dial};
use crate::support::reload::{file, reloaded};
use crate::support::site::{AgentPlan, Plan, Site, write};
use crate::support::unit::Unit;
use crate::support::{target, tokens};
use postern_token::{Token, TokenType, encode_base64url};
use std::time::{Duration, Instant};

const AGENTS: [AgentPlan; 2] = [
    AgentPlan { name: "first", gateways: &[0, 1], low: 4, high: 20 },
    AgentPlan { name: "second", gateways: &[1, 0], low: 0, high: 8 },
];

/// A site whose issuer issues `types`, and whose gateways accept them with the issuer's own key files.
fn site(plan: Plan, types: &str) -> Site {
    let site = Site::new(plan);
    let keys = site.keys();
    write(&site.issuer, &file(&site.issuer).replace("[keys]\n", &format!("[keys]\ntypes = {types}\n")));
    for gateway in &site.gateways {
        let private = format!("[issuer]\ntypes = {types}\nsecrets = {keys:?}\n");
        write(gateway, &file(gateway).replace("[issuer]\n", &private));
    }
    site
}

fn http(unit: &Unit) -> String {
    format!("http://{}", unit.address)
}

async fn start(site: &Site) {
    for unit in site.units() {
        unit.start();
        unit.listening().await;
    }
    for gateway in &site.gateways {
        gateway.ready().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_private_type_open_tunnels_once() {
    let store = Memcached::start();
    let plan = Plan {
        store: vec![store.address()],
        gateways: 2,
        bind: "offer",
        agents: AGENTS.to_vec(),
        ..Plan::default()
    };
    let site = site(plan, "[5, 2]");
    start(&site).await;
    let echo = target::echo().await.to_string();
    for agent in &site.agents {
        for _ in 0..5 {
            let mut client = dial(agent.address).await.unwrap();
            assert_eq!(connect(&mut client, &echo, None).await.unwrap().status, 200);
        }
    }
    let wallet = tokens::in_wallet(&site.wallet("first"));
    assert!(!wallet.is_empty());
    assert!(wallet.iter().all(|token| token.token_type() == TokenType::VoprfRistretto255));

    let [one, two] = [0, 1].map(|index| &site.gateways[index]);
    let fresh = tokens::mint(&http(&site.issuer), &http(one), 3);
    for (index, authorization) in fresh.iter().enumerate() {
        let presented = tokens::token_of(authorization);
        assert_eq!(presented.token_type(), TokenType::VoprfRistretto255);
        let gateways = if index % 2 == 0 { [one, two, one] } else { [two, one, two] };
        let mut statuses = Vec::new();
        for gateway in gateways {
            let mut client = dial(gateway.address).await.unwrap();
            statuses.push(connect(&mut client, &echo, Some(authorization)).await.unwrap().status);
        }
        assert_eq!(statuses, [200, 407, 407]);

        let mut forged = presented.as_bytes().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        forged[10] ^= 1; // another nonce, so that it is not the one that was spent
        let value = format!("PrivateToken token=\"{}\"", encode_base64url(&forged));
        assert!(Token::parse(&forged).is_ok());
        let mut client = dial(one.address).await.unwrap();
        let refused = connect(&mut client, &echo, Some(&value)).await.unwrap();
        assert_eq!(refused.status, 407);
        assert!(refused.fields.contains("signature is not valid"), "{refused:?}");
    }

    // A gateway that takes type 2 alone says so, and challenges for that.
    reloaded(one, &file(one).replace("types = [5, 2]", "types = [2]"), "issuer.types").await;
    let [authorization] = &tokens::mint(&http(&site.issuer), &http(two), 1)[..] else { panic!("one token") };
    let mut client = dial(one.address).await.unwrap();
    let refused = connect(&mut client, &echo, Some(authorization)).await.unwrap();
    assert_eq!(refused.status, 407);
    assert!(refused.fields.contains("tokens of type 5"), "{refused:?}");
    site.terminate();
}

/// Each type's keys take turns by themselves, and a gateway takes up the file of the next one while it is published ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_private_type_rotate_under_load() {
    let agents = vec![AgentPlan { gateways: &[0], ..AGENTS[0] }];
    let plan = Plan { rotate_every: 4, publish_ahead: 2, redeem_for: 6, agents, ..Plan::default() };
    let site = site(plan, "[5, 2, 1]");
    start(&site).await;
    let echo = target::echo().await.to_string();
    let (until, mut opened) = (Instant::now() + Duration::from_secs(14), 0);
    while Instant::now() < until {
        let mut client = dial(site.agents[0].address).await.unwrap();
        let answer = connect(&mut client, &echo, None).await.unwrap();
        assert_eq!(answer.status, 200, "after {opened}: {answer:?}");
        opened += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let made = site.issuer.log().matches("of type 5").count();
    assert!(made >= 4 && opened > 100, "{made} keys, {opened} tunnels");
    site.terminate();
}
