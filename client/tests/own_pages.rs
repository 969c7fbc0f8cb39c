//! The script by which a browser is configured, and who may not read it.

use crate::support::{World, field, send};

async fn get(world: &World, target: &str, more: &str) -> crate::support::Answer {
    send(world.agent.address, format!("GET {target} HTTP/1.1\r\n{more}\r\n").as_bytes()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_is_configured_by_one_url_and_nothing_of_it_goes_to_the_gateway() {
    let world = World::new().await;
    world.stocked(8).await;
    let (agent, before) = (world.agent.address, world.gateway.heads().len());
    let host = format!("Host: {agent}\r\n");
    let pac = get(&world, "/proxy.pac", &host).await;
    assert_eq!(
        (pac.status, field(&pac.head, "content-type").as_deref()),
        (200, Some("application/x-ns-proxy-autoconfig"))
    );
    assert!(pac.body.contains(&format!("return \"PROXY {agent}\";")), "{}", pac.body);
    assert_eq!(field(&pac.head, "cross-origin-resource-policy").as_deref(), Some("same-origin"));
    assert_eq!(field(&pac.head, "x-content-type-options").as_deref(), Some("nosniff"));
    assert_eq!(field(&pac.head, "access-control-allow-origin"), None);
    // A client that uses the agent as a proxy for the agent itself.
    let absolute = get(&world, &format!("http://{agent}/proxy.pac"), &host).await;
    assert_eq!((absolute.status, absolute.body), (200, pac.body));
    assert_eq!(world.gateway.heads().len(), before, "a request to the agent is no request for a tunnel");
    assert!(world.gateway.tokens().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_made_to_lead_to_the_agent_reads_nothing_of_it() {
    let world = World::new().await;
    for path in ["/", "/proxy.pac"] {
        let answer = get(&world, path, "Host: rebound.example\r\n").await;
        assert_eq!(answer.status, 421, "{path}");
        let port = world.agent.address.port().to_string();
        assert!(!answer.body.contains(&port) && answer.body.contains("localhost"), "{}", answer.body);
    }
    assert!(world.gateway.tokens().is_empty());
}
