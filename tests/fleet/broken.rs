//! Stores that are broken on purpose: the checker must catch what the gateways cannot prevent.

use super::checker::Claim;
use super::driver::{Fleet, four};
use super::lying_store;
use super::minted::Turn;
use tempfile::TempDir;

const TOKENS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lies_once_in_fifty_is_caught() {
    let turn = Turn::take().await;
    let endpoint = lying_store::start(50);
    let routes = four(&[endpoint], "hint = \"off\"\nspent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, TOKENS).await;
    fleet.race(0..TOKENS).await;
    let violation = fleet.judged(0..TOKENS, Claim::OneWins).expect_err("a broken store passed the checker");
    assert!(violation.0.contains("was answered 200 more than once"), "{violation}");
}

/// The same store passes when it does not lie, so the checker catches the lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_store_without_lies_passes() {
    let turn = Turn::take().await;
    let endpoint = lying_store::start(usize::MAX);
    let routes = four(&[endpoint], "hint = \"off\"\nspent_cache = \"0B\"");
    let fleet = Fleet::ready(&turn, TempDir::new().unwrap(), &routes, TOKENS).await;
    fleet.race(0..TOKENS).await;
    assert_eq!(fleet.verdict(0..TOKENS, Claim::OneWins).opened, TOKENS);
}
