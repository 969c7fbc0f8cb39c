//! Endpoints of stores that share some of their servers: routers with two versions of a configuration. Most keys lie in
//! one place for both, and good tokens of the others would be void, through the endpoint that finds no witness for them.

use crate::support::fake::Fake;
use crate::support::{begun, epoch, eventually, fresh, options, transports};
use postern_spend::memcached::Memcached;
use postern_spend::{Spend, SpendStore, Unknown};
use postern_token::UnixSeconds;

/// Three quarters of all keys.
fn shared(key: &str) -> bool {
    key.bytes().map(u32::from).sum::<u32>() % 4 != 0
}

#[tokio::test]
async fn endpoints_that_share_a_part_are_refused() {
    for (name, transport) in transports() {
        let first = Fake::start();
        let second = first.sharing(shared);
        for addresses in [[first.address(), second.address()], [second.address(), first.address()]] {
            let store = Memcached::open(options(addresses.to_vec(), transport.clone())).unwrap();
            let client = store.client();
            let refused = || async { (client.serving() == Err(Unknown::Astray)).then_some(()) };
            eventually("the endpoints are found out", refused).await;
            let epoch = epoch();
            let verdict = client.spend(&fresh(&epoch), &epoch, UnixSeconds::now()).await;
            assert_eq!(verdict, Err(Unknown::Astray), "{name}");
            // And they stay so.
            for _ in 0..5 {
                tokio::time::sleep(std::time::Duration::from_millis(150)).await; // longer than a round of the watch
                assert_eq!(client.serving(), Err(Unknown::Astray), "{name}");
            }
        }
    }
}

/// Several addresses are meant for two endpoints of one store.
#[tokio::test]
async fn endpoints_to_one_memory_are_not_refused() {
    for (name, transport) in transports() {
        let first = Fake::start();
        let second = first.sharing(|_| true);
        let store = Memcached::open(options(vec![first.address(), second.address()], transport)).unwrap();
        let (client, epoch) = begun(&store).await;
        for _ in 0..20 {
            let key = fresh(&epoch);
            assert_eq!(client.spend(&key, &epoch, UnixSeconds::now()).await, Ok(Spend::Admitted), "{name}");
            assert_eq!(
                client.spend(&key, &epoch, UnixSeconds::now()).await,
                Ok(Spend::AlreadySpent),
                "{name}"
            );
        }
    }
}
