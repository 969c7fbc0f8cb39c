//! Accounts with the terms of a tier.

use super::super::control::TierTerm;
use super::*;
use crate::Burst;
use crate::check::check_tiers;
use crate::config::Tier;
use crate::health::Health;
use crate::recorder::Recorder;
use postern_daemon::readiness::Readiness;
use std::num::NonZeroU32;

fn tier(name: &str, quota: &str, pace: Option<(u32, u32)>) -> Tier {
    let [rate, burst] =
        [pace.map(|pace| pace.0), pace.map(|pace| pace.1)].map(|number| number.and_then(NonZeroU32::new));
    Tier { name: name.to_owned(), quota: quota.parse().unwrap(), rate, burst, turns: NonZeroU32::MIN }
}

fn with_tiers(accounts: &Accounts, tiers: &[Tier]) {
    let configured =
        Configured { tiers: super::super::configured::Tiers::of(tiers), ..Configured::default() };
    accounts.replace(configured.into());
}

fn of_tier(tier: &str) -> Terms {
    Terms { quota: None, burst: None, tier: Some(tier.to_owned()), expires_at: None }
}

fn add_to(accounts: &Accounts, name: &str, tier: &str) -> Result<String, Refused> {
    ask(
        accounts,
        AccountRequest::Add { name: name.to_owned(), terms: of_tier(tier), certificates: Vec::new() },
    )
    .map(|lines| key_of(&lines))
}

#[tokio::test]
async fn a_tier_of_another_reading_counts_for_all_of_its_accounts_and_for_what_they_have_used() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    with_tiers(&accounts, &[tier("gold", "2/1d", None), tier("silver", "1/1d", None)]);
    let keys = ["alice", "bob"].map(|name| add_to(&accounts, name, "gold").unwrap());
    for key in &keys {
        assert_eq!((charge(&accounts, key).await, charge(&accounts, key).await), (Some(true), Some(true)));
        assert_eq!(charge(&accounts, key).await, Some(false));
    }
    with_tiers(&accounts, &[tier("gold", "3/1d", Some((1, 1))), tier("silver", "1/1d", None)]);
    for key in &keys {
        assert_eq!((charge(&accounts, key).await, charge(&accounts, key).await), (Some(true), Some(false)));
    }
    let one = NonZeroU32::MIN;
    let view = show(&accounts, "alice");
    let burst = Some(Burst { tokens_per_second: one, burst_tokens: one });
    assert_eq!(view.terms, Some(Terms { burst, quota: "3/1d".parse().ok(), ..of_tier("gold") }));
    assert_eq!(view.of_tier, [TierTerm::Quota, TierTerm::Burst]);
    let quick = Tier { turns: NonZeroU32::new(7).unwrap(), ..tier("gold", "3/1d", None) };
    with_tiers(&accounts, &[quick]);
    assert_eq!(caller(&accounts, &keys[0]).await.unwrap().claim().turns.get(), 7);
    // The database has only the tier's name.
    drop(accounts);
    let accounts = open(&[], &directory);
    assert_eq!(show(&accounts, "alice").terms, Some(of_tier("gold")));
    with_tiers(&accounts, &[tier("gold", "4/1d", None)]);
    assert_eq!(
        (charge(&accounts, &keys[0]).await, charge(&accounts, &keys[0]).await),
        (Some(true), Some(false))
    );
}

#[tokio::test]
async fn an_account_with_its_own_quota_gets_nothing_of_its_tier() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    with_tiers(&accounts, &[tier("gold", "1/1d", Some((1, 1)))]);
    let own = Terms { quota: "3/1d".parse().ok(), ..of_tier("gold") };
    let key = key_of(
        &ask(
            &accounts,
            AccountRequest::Add { name: "alice".to_owned(), terms: own.clone(), certificates: Vec::new() },
        )
        .unwrap(),
    );
    assert_eq!((charge(&accounts, &key).await, charge(&accounts, &key).await), (Some(true), Some(true)));
    let view = show(&accounts, "alice");
    assert_eq!((view.terms, view.of_tier), (Some(own), Vec::new()));
    // The tier's quota applies now, and is exceeded already.
    let AccountRequest::Change { name, burst, tier, expires_at, .. } = change("alice") else {
        unreachable!()
    };
    ask(&accounts, AccountRequest::Change { name, quota: Edit::Clear, burst, tier, expires_at }).unwrap();
    assert_eq!(charge(&accounts, &key).await, Some(false));
    // Without its tier, the account would have no terms: the change is refused.
    let AccountRequest::Change { name, quota, burst, expires_at, .. } = change("alice") else {
        unreachable!()
    };
    let refused =
        ask(&accounts, AccountRequest::Change { name, quota, burst, tier: Edit::Clear, expires_at })
            .unwrap_err();
    assert!(refused.sentence.contains("neither a quota nor a tier"), "{refused}");
}

#[tokio::test]
async fn an_unknown_tier_is_refused_and_one_that_goes_refuses_its_accounts_until_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = Arc::new(open(&[], &directory));
    let refused = add_to(&accounts, "alice", "gold").unwrap_err();
    assert!(refused.sentence.contains("has no [[tiers]]"), "{refused}");
    let gold = tier("gold", "5/1d", None);
    with_tiers(&accounts, &[gold.clone(), tier("silver", "1/1d", None)]);
    let refused = add_to(&accounts, "alice", "glod").unwrap_err();
    assert!(refused.sentence.contains("choose one of \"gold\", \"silver\""), "{refused}");
    let keys = ["alice", "bob"].map(|name| add_to(&accounts, name, "gold").unwrap());
    let other = add(&accounts, "carol", "1/1d");

    let readiness = Readiness::new();
    let (health, recorder) = (Health::new(readiness.gate("issuer")), Recorder::new());
    health.started();
    let maintain = async || {
        let maintenance = Maintenance { due: Instant::now() + Duration::from_secs(60), seen: None };
        accounts.clone().maintain(&health, &recorder, maintenance).await;
        readiness.degraded()
    };
    assert_eq!(charge(&accounts, &keys[0]).await, Some(true));
    assert!(maintain().await.is_empty());
    with_tiers(&accounts, &[tier("silver", "1/1d", None)]);
    assert_eq!(refusal(&accounts, &keys[0]).await, Some(NoAccount::NoTier));
    assert_eq!(charge(&accounts, &other).await, Some(true), "no other account pays for it");
    let degraded = maintain().await;
    assert!(degraded[0].contains("\"gold\" (2 accounts)") && !degraded[0].contains("alice"), "{degraded:?}");
    let quota = Edit::Set("2/1d".parse().unwrap());
    for name in ["alice", "bob"] {
        let AccountRequest::Change { burst, tier, expires_at, .. } = change(name) else { unreachable!() };
        ask(
            &accounts,
            AccountRequest::Change { name: name.to_owned(), quota: quota.clone(), burst, tier, expires_at },
        )
        .unwrap();
    }
    assert!(maintain().await.is_empty(), "after a change by an operator, too");
    assert_eq!(
        (charge(&accounts, &keys[0]).await, charge(&accounts, &keys[0]).await),
        (Some(true), Some(false))
    );
}

#[test]
fn tiers_without_sense_are_refused_in_the_file() {
    let gold = tier("gold", "1/1d", None);
    for (tiers, said) in [
        (vec![gold.clone(), gold.clone()], "there twice"),
        (vec![Tier { name: "two words".to_owned(), ..gold.clone() }], "one word"),
        (vec![Tier { turns: NonZeroU32::new(101).unwrap(), ..gold.clone() }], "1 to 100"),
        (vec![Tier { rate: NonZeroU32::new(1), ..gold.clone() }], "need each other"),
    ] {
        let sentence = check_tiers(&tiers).unwrap_err().to_string();
        assert!(sentence.contains(said), "{sentence}");
    }
}

#[tokio::test]
async fn a_declared_account_of_a_tier_has_its_terms() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    with_tiers(&accounts, &[tier("gold", "1/1d", None)]);
    let of = |tier: &str| DeclaredAccount {
        quota: None,
        tier: Some(tier.to_owned()),
        ..account("one", "k1", "1/1d")
    };
    apply(&accounts, &[of("gold")]).unwrap();
    assert_eq!((charge(&accounts, "k1").await, charge(&accounts, "k1").await), (Some(true), Some(false)));
    let refused = apply(&accounts, &[of("glod")]).unwrap_err();
    assert!(
        refused.sentence.contains("\"one\"") && refused.sentence.contains("choose one of \"gold\""),
        "{refused}"
    );
}
