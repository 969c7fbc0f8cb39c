//! An agent is given other gateways while it serves: none of its tokens is lost, and open tunnels stay open.

use crate::support::proxy::{connect, dial, echoes};
use crate::support::reload::{file, reload, reloaded};
use crate::support::site::{AgentPlan, Plan, Site, write};
use crate::support::target;
use crate::support::tls::Authority;
use crate::support::unit::Unit;
use crate::support::{eventually, memcached::Memcached};
use postern_testkit::ports;

/// It mints nothing by itself, so that every token is accounted for.
const AGENT: AgentPlan = AgentPlan { name: "moving", gateways: &[0], low: 0, high: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_gateways_change_without_a_restart() {
    let store = Memcached::start();
    let plan = Plan { store: vec![store.address()], gateways: 2, agents: vec![AGENT], ..Plan::default() };
    let site = Site::new(plan);
    let [one, two] = [0, 1].map(|index| &site.gateways[index]);
    let agent = &site.agents[0];
    // To this agent they are one fleet, whose tokens are good at each of them.
    let good = file(agent).replace("[gateway]\n", "[gateway]\norigin = \"proxy.example\"\n");
    write(agent, &good);
    for unit in [&site.issuer, one, two, agent] {
        unit.start();
        unit.listening().await;
    }
    let echo = target::echo().await.to_string();
    let mut held = dial(agent.address).await.unwrap();
    assert_eq!(connect(&mut held, &echo, None).await.unwrap().status, 200);
    assert_eq!([opened(one).await, opened(two).await], [1, 0]);

    let at = |unit: &Unit| format!("\"http://{}\"", unit.address);
    let other = good.replace(&at(one), &at(two));
    for (round, (text, url)) in [(&other, two), (&good, one)].into_iter().cycle().take(6).enumerate() {
        let before = opened(url).await;
        reloaded(agent, text, "gateway.url").await;
        pays(agent, &echo).await;
        assert_eq!(opened(url).await, before + 1, "round {round}");
        echoes(&mut held, b"through the first").await.unwrap();
    }

    // No token goes to a closed port, and the reason is the new gateway's.
    let nowhere = good.replace(&at(one), &format!("\"http://{}\"", ports::closed()));
    reloaded(agent, &nowhere, "gateway.url").await;
    let mut client = dial(agent.address).await.unwrap();
    assert_eq!(connect(&mut client, &echo, None).await.unwrap().status, 502);
    agent.readiness_when("it says so", |says| says.body.contains("cannot be reached")).await;

    // An unusable file changes nothing.
    let unreadable = good.replace(&at(one), "\"https://localhost:1\"\nca = \"/nowhere/ca.pem\"");
    let from = reload(agent, &unreadable);
    agent.logs(from, &["cannot be used", "/nowhere/ca.pem"]).await;
    reloaded(agent, &good, "gateway.url").await;
    pays(agent, &echo).await;

    // A gateway that wants a certificate, and a connection that tunnels share.
    let authority = Authority::for_server(site.home(), &two.address.ip().to_string());
    let [certificate, key] = &authority.client;
    let section = format!("{}client_ca = {:?}\n", authority.section(), authority.ca);
    reloaded(two, &(file(two) + &section), "tls.client_ca").await;
    let secure = other.replace(&at(two), &format!("\"https://{}\"", two.address)).replace(
        "[gateway]\n",
        &format!("[gateway]\nca = {:?}\ncertificate = {certificate:?}\nkey = {key:?}\n", authority.ca),
    );
    reloaded(agent, &secure, "gateway.certificate").await;
    pays(agent, &echo).await;
    assert!(shown_until(agent).await > 0);
    reloaded(agent, &good, "gateway.certificate is no longer set").await;
    pays(agent, &echo).await;
    assert_eq!(shown_until(agent).await, 0);
    agent.plainly_ready().await;

    let spent = opened(one).await + opened(two).await;
    eventually("each token opened a tunnel, or is in the wallet", || async {
        let metrics = agent.metrics().await?;
        let minted = metrics.sum("postern_agent_tokens_total", &["fate=\"minted\""]);
        (minted == spent + metrics.sum("postern_wallet_tokens", &[])).then_some(())
    })
    .await;
    site.terminate();
}

/// Opens a tunnel and closes it.
async fn pays(agent: &Unit, target: &str) {
    let mut client = dial(agent.address).await.unwrap();
    let head = connect(&mut client, target, None).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    echoes(&mut client, b"a tunnel").await.unwrap();
}

async fn opened(gateway: &Unit) -> u64 {
    gateway.metrics().await.unwrap().sum("postern_requests_total", &["outcome=\"opened\""])
}

/// Returns the end of the certificate that the agent shows.
async fn shown_until(agent: &Unit) -> u64 {
    agent.metrics().await.unwrap().sum("postern_agent_certificate_ends_timestamp_seconds", &[])
}
