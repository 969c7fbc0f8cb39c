//! Tokens of the private types: minted in amortized batches, verified with copies of the issuer's key files, and spent once.

use crate::support::memcached::Memcached;
use crate::support::proxy::{connect, dial, dial_from};
use crate::support::reload::{file, reloaded};
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::unit::Unit;
use crate::support::{target, tokens};
use postern_token::{Token, TokenType, encode_base64url};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const AGENTS: [AgentPlan; 2] = [
    AgentPlan { name: "first", gateways: &[0, 1], low: 4, high: 20 },
    AgentPlan { name: "second", gateways: &[1, 0], low: 0, high: 8 },
];

/// A site whose tokens are bound to this store.
fn plan(store: &Memcached) -> Plan {
    Plan { store: vec![store.address()], ..Plan::default() }
}

fn http(unit: &Unit) -> String {
    format!("http://{}", unit.address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_private_type_open_tunnels_once() {
    let store = Memcached::start();
    let plan = Plan { types: &[5, 2], gateways: 2, agents: AGENTS.to_vec(), ..plan(&store) };
    let site = Site::started(plan).await;
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

    // A gateway that takes type 2 alone reports it, and challenges for that.
    reloaded(one, &file(one).replace("types = [5, 2]", "types = [2]"), "issuer.types").await;
    let [authorization] = &tokens::mint(&http(&site.issuer), &http(two), 1)[..] else { panic!("one token") };
    let mut client = dial(one.address).await.unwrap();
    let refused = connect(&mut client, &echo, Some(authorization)).await.unwrap();
    assert_eq!(refused.status, 407);
    assert!(refused.fields.contains("tokens of type 5"), "{refused:?}");
    site.terminate();
}

/// A forged token of type 1 costs thirty times as much as one of type 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_token_of_type_1_counts_as_the_many_refusals_that_it_costs() {
    let store = Memcached::start();
    let plan = Plan { types: &[1, 2], gateways: 1, agents: Vec::new(), ..plan(&store) };
    let site = Site::started(plan).await;
    let gateway = &site.gateways[0];
    let echo = target::echo().await.to_string();
    let authorization = &tokens::mint(&http(&site.issuer), &http(gateway), 1)[0];
    let presented = tokens::token_of(authorization);
    assert_eq!(presented.token_type(), TokenType::VoprfP384);
    let limits = "[limits.source]\nexempt = []\nrefusals = 1\nrefusals_burst = 100\n";
    reloaded(gateway, &(file(gateway) + limits), "limits").await;
    let mut statuses = Vec::new();
    for number in 0..10 {
        let mut forged = presented.as_bytes().to_vec();
        forged[10] ^= number + 1;
        let value = format!("PrivateToken token=\"{}\"", encode_base64url(&forged));
        let mut client = dial(gateway.address).await.unwrap();
        statuses.push(connect(&mut client, &echo, Some(&value)).await.unwrap().status);
    }
    assert!(statuses.starts_with(&[407; 4]) && statuses.ends_with(&[429; 2]), "{statuses:?}");
    site.terminate();
}

/// Forty addresses within their limits, each by eight connections, and one user who presents one good token after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_of_type_1_from_many_addresses_leave_a_user_its_turns() {
    const ADDRESSES: u8 = 40;
    const LASTS: Duration = Duration::from_secs(11);
    let store = Memcached::start();
    let plan = Plan { types: &[1, 2], gateways: 1, agents: Vec::new(), ..plan(&store) };
    let site = Site::started(plan).await;
    let gateway = &site.gateways[0];
    let echo = target::echo().await.to_string();
    let good = tokens::mint(&http(&site.issuer), &http(gateway), 400);
    reloaded(gateway, &(file(gateway) + "[limits.source]\nexempt = []\n"), "limits").await;
    let (address, template) = (gateway.address, tokens::token_of(&good[0]).as_bytes().to_vec());
    let mut flood = JoinSet::new();
    let refused = Arc::new(AtomicU64::new(0));
    for (host, line) in (1..=ADDRESSES).flat_map(|host| (1..=8_u8).map(move |line| (host, line))) {
        let (mut forged, echo, refused) = (template.clone(), echo.clone(), Arc::clone(&refused));
        flood.spawn(async move {
            for number in 0_u32.. {
                forged[8..14].copy_from_slice(&[&[host, line], &number.to_be_bytes()[..]].concat());
                let value = format!("PrivateToken token=\"{}\"", encode_base64url(&forged));
                let Ok(mut client) = dial_from(Ipv4Addr::new(127, 0, 1, host), address).await else {
                    continue;
                };
                let answer = connect(&mut client, &echo, Some(&value)).await; // 429 and 503, too
                refused.fetch_add(u64::from(answer.is_ok_and(|head| head.status == 407)), Relaxed);
            }
        });
    }
    let (began, mut served) = (Instant::now(), 0);
    for value in &good {
        if began.elapsed() >= LASTS {
            break;
        }
        let mut client = dial_from(Ipv4Addr::new(127, 0, 2, 1), address).await.unwrap();
        served += u64::from(connect(&mut client, &echo, Some(value)).await.unwrap().status == 200);
    }
    let each = refused.load(Relaxed) / u64::from(ADDRESSES);
    println!("{served} good tokens in {:?}, and {each} forged ones of each address", began.elapsed());
    // By turns of sources each is served alike; by connections it would have a three hundredth of all.
    assert!(4 * served >= each, "{served} good tokens, and {each} forged ones of each address");
    site.terminate();
}
