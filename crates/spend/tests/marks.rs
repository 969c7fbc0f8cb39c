//! Tokens that a mark binds to the memory which records them: real memcacheds that come back empty, that are other ones,
//! that are away.

use crate::support::marked::Gateway;
use crate::support::{epoch, eventually, options, transports};
use postern_spend::Spend;
use postern_spend::memcached::{OnLoss, Options, Transport};
use postern_testkit::memcached::Server;
use postern_token::Mark;
use std::time::Duration;

fn refusing(server: &Server, transport: Transport) -> Options {
    Options { on_loss: OnLoss::Refuse, ..options(vec![server.address()], transport) }
}

#[tokio::test]
async fn a_marked_token_is_spent_once() {
    for (name, transport) in transports() {
        let server = Server::tcp(&[]);
        let gateway = Gateway::start(refusing(&server, transport), epoch(), true).await;
        let token = gateway.token(gateway.mark().await);
        assert_eq!(gateway.spend(&token).await, Ok(Spend::Admitted), "{name}");
        for _ in 0..3 {
            assert_eq!(gateway.spend(&token).await, Ok(Spend::AlreadySpent), "{name}");
        }
        let other = gateway.token(Mark::new([9; 16]));
        assert_eq!(gateway.spend(&other).await, Ok(Spend::Void), "{name}: a mark that no gateway planted");
        assert_eq!(gateway.store.totals().marks_planted, 1, "{name}");
    }
}

/// The first request after the loss, before any watch could look.
#[tokio::test]
async fn what_was_spent_before_a_loss_is_not_admitted_after_it() {
    for (name, transport) in transports() {
        let mut server = Server::tcp(&[]);
        let gateway = Gateway::start(refusing(&server, transport), epoch(), true).await;
        let mark = gateway.mark().await;
        let tokens: Vec<_> = (0..100).map(|_| gateway.token(mark)).collect();
        for token in &tokens {
            assert_eq!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        server.restart();
        for token in tokens.iter().cycle().take(300) {
            assert_ne!(gateway.spend(token).await, Ok(Spend::Admitted), "{name}");
        }
        let fresh = eventually("a verdict", async || gateway.spend(&gateway.token(mark)).await.ok()).await;
        assert_eq!(fresh, Spend::Void, "{name}: it could be one of those that were spent");
    }
}

#[tokio::test]
async fn a_loss_brings_a_new_mark_and_service() {
    let mut server = Server::tcp(&[]);
    let mut options = options(vec![server.address()], crate::support::pipelined());
    options.canary_interval = Duration::from_millis(100);
    let (epoch, mut planter) = (epoch(), options.clone());
    planter.on_loss = OnLoss::Warn;
    let gateways = [
        Gateway::start(planter, epoch, true).await,
        Gateway::start(options, epoch, false).await, // accepts what others plant
    ];
    let first = gateways[0].mark().await;
    assert_eq!(gateways[1].mark().await, first);
    let spent = gateways[0].token(first);
    assert_eq!(gateways[1].spend(&spent).await, Ok(Spend::Admitted));
    server.restart();
    let second = gateways[0].mark_after(first).await;
    assert_eq!(gateways[1].mark_after(first).await, second);
    for gateway in &gateways {
        assert_eq!(gateway.spend(&gateway.token(second)).await, Ok(Spend::Admitted));
        assert_ne!(gateway.spend(&spent).await, Ok(Spend::Admitted));
    }
}
