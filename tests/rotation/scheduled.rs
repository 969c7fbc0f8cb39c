//! Scheduled rotations, one after another, while agents are used: of the public token type, and of the private ones, whose key
//! files are copied to the gateways while a key is published ahead.

use super::keys::Keys;
use crate::support::memcached::Memcached;
use crate::support::site::{AgentPlan, Plan, Secrets, Site};
use crate::support::unit::Readiness;
use crate::support::users::Users;
use crate::support::{target, tokens};
use postern_token::TokenType;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

/// A key's life in seconds. Whole seconds are what the wire has; with a second's error at each change, shorter times
/// would leave nothing of `PUBLISH_AHEAD` and `REDEEM_FOR`.
const ROTATE_EVERY: u64 = 5;
/// As long as the life allows: a busy machine takes seconds for a key of RSA, and the gateways get its file after that.
const PUBLISH_AHEAD: u64 = 4;
const REDEEM_FOR: u64 = 4;
/// The operator's interval of looking for a new key file to copy.
const COPY_EVERY: Duration = Duration::from_millis(500);

/// One is never without work and has a full wallet; one mints only on demand; one is idle with a low wallet, and has to
/// notice each rotation by itself; one is away for longer than a key lives, again and again.
const AGENTS: [AgentPlan; 4] = [
    AgentPlan { name: "busy", gateways: &[0], low: 32, high: 64 },
    AgentPlan { name: "empty", gateways: &[1], low: 0, high: 1 },
    AgentPlan { name: "idle", gateways: &[1], low: 2, high: 6 },
    AgentPlan { name: "away", gateways: &[0], low: 8, high: 16 },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_rotations_refuse_no_user() {
    rotations_refuse_no_user(&[2]).await;
}

/// Type 5 with type 2, which must not stand in for it; and type 1 alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_rotations_of_private_types_refuse_no_user() {
    tokio::join!(rotations_refuse_no_user(&[5, 2]), rotations_refuse_no_user(&[1]));
}

/// With an issuer and gateways of these token types.
async fn rotations_refuse_no_user(types: &'static [u16]) {
    let rotations = std::env::var("POSTERN_ROTATIONS").map_or(20, |text| text.parse().unwrap());
    let store = Memcached::start();
    let site = Site::started(Plan {
        rotate_every: ROTATE_EVERY,
        publish_ahead: PUBLISH_AHEAD,
        redeem_for: REDEEM_FOR,
        types,
        store: vec![store.address()],
        gateways: 2,
        agents: AGENTS.to_vec(),
        ..Plan::default()
    })
    .await;
    let users = Users::of(target::echo().await);
    let busy = [40, 90].map(|pause| users.program(site.agent("busy"), Duration::from_millis(pause)));
    let empty = users.program(site.agent("empty"), Duration::from_millis(150));

    let used = async {
        tokio::join!(
            now_and_then(&site, &users, rotations),
            away_again_and_again(&site, &users, rotations),
            watched(&site, rotations)
        )
    };
    let (idle, away, keys) = tokio::select! {
        used = used => used,
        never = copied(site.secrets()) => match never {},
    };
    for program in busy.into_iter().chain([empty]) {
        program.stop().await;
    }
    println!(
        "types {types:?}: {} rotations in {:.0?}: {} requests, {idle} of them of the idle agent, {away} after an absence",
        keys.rotations(),
        users.now(),
        users.attempts().len()
    );
    users.assert_all_served(&format!("over {} rotations of types {types:?}", keys.rotations()));
    for gateway in &site.gateways {
        let metrics = gateway.metrics().await.unwrap();
        let spent_twice = metrics.sum("postern_requests_total", &["outcome=\"already_spent\""]);
        assert_eq!(spent_twice, 0, "{}: a token was presented twice", gateway.name);
    }
    site.terminate();
}

/// Copies the files of new keys to the gateways.
async fn copied(secrets: Secrets) -> Infallible {
    loop {
        secrets.copy();
        tokio::time::sleep(COPY_EVERY).await;
    }
}

/// Long enough for `rotations`, counted from the first key, whose life begins with the issuer's.
fn length(rotations: u64) -> Duration {
    Duration::from_secs(rotations * ROTATE_EVERY)
}

/// A user with one request in two and a half rotations.
async fn now_and_then(site: &Site, users: &Users, rotations: u64) -> usize {
    let mut asked = 0;
    while users.now() < length(rotations) {
        users.request(site.agent("idle")).await;
        asked += 1;
        tokio::time::sleep(Duration::from_millis(ROTATE_EVERY * 2_500)).await;
    }
    asked
}

/// A machine that is shut down, or suspended, for longer than a key and its tokens live. Its user sends a request as
/// soon as the agent answers at all.
async fn away_again_and_again(site: &Site, users: &Users, rotations: u64) -> usize {
    let absence = Duration::from_secs(ROTATE_EVERY + REDEEM_FOR + 2);
    let agent = site.agent("away");
    let mut absences = 0;
    while users.now() + absence < length(rotations) {
        if absences % 2 == 0 {
            agent.signal("STOP");
            tokio::time::sleep(absence).await;
            agent.signal("CONT");
        } else {
            agent.terminate();
            tokio::time::sleep(absence).await;
            agent.start();
            agent.listening().await;
        }
        users.request(agent).await;
        absences += 1;
        tokio::time::sleep(Duration::from_secs(3)).await;
        users.request(agent).await;
    }
    absences
}

/// Looks at directory, wallets and readiness until the last rotation.
async fn watched(site: &Site, rotations: u64) -> Keys {
    let preferred = TokenType::from_code(site.plan.types[0]);
    let (mut keys, mut before) = (Keys::of(preferred), BTreeMap::new());
    while keys.rotations() < usize::try_from(rotations).unwrap() {
        keys.look(&site.issuer).await;
        for agent in AGENTS {
            let wallet = tokens::in_wallet(&site.wallet(agent.name));
            let others = wallet.iter().filter(|token| token.token_type() != preferred).count();
            assert_eq!(others, 0, "the agent {} minted tokens of another type than {preferred}", agent.name);
            let early = keys.too_early_in(&wallet);
            assert_eq!(early, 0, "the agent {} minted for a key before its time", agent.name);
        }
        let not_ready = not_ready(site).await;
        let lasting: Vec<_> = not_ready.iter().filter(|(name, _)| before.contains_key(*name)).collect();
        assert!(
            lasting.is_empty(),
            "not ready at two looks in a row, while users are served: {lasting:?}\n{}",
            site.units().map(|unit| format!("{}:\n{}", unit.name, unit.log())).collect::<String>()
        );
        before = not_ready;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    keys
}

/// Returns the daemons that are not ready, and why. The agent that is away does not count; nor does one that replaces tokens
/// which all retired at once: a busy machine takes long for that, and each request asserts that users are served.
async fn not_ready(site: &Site) -> BTreeMap<&str, Readiness> {
    let mut found = BTreeMap::new();
    for unit in site.units().filter(|unit| unit.name != "agent away") {
        let readiness = unit.readiness().await;
        if !readiness.is_ready() && !readiness.body.contains("tokens are being minted") {
            found.insert(unit.name.as_str(), readiness);
        }
    }
    found
}
