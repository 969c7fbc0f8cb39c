//! Accounts that a file declares.

use super::*;

#[tokio::test]
async fn accounts_that_keep_their_name_keep_their_count_when_they_are_declared_again() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[account("one", "k1", "2/1d"), account("two", "k2", "2/1d")], &directory);
    let charge = async |key: &str| charge(&accounts, key).await;
    assert_eq!(
        (charge("k1").await, charge("k1").await, charge("k2").await),
        (Some(true), Some(true), Some(true))
    );
    apply(&accounts, &[account("one", "new key", "3/1d"), account("three", "k3", "1/1d")]).unwrap();
    assert_eq!((charge("k1").await, charge("k2").await), (None, None), "a key that is not listed any more");
    assert_eq!(
        (charge("new key").await, charge("new key").await),
        (Some(true), Some(false)),
        "two were used"
    );
    assert_eq!((charge("k3").await, charge("k3").await), (Some(true), Some(false)));
    assert!(!accounts.is_open());
    apply(&accounts, &[account("one", "k1", "3/1d"), account("two", "k2", "2/1d")]).unwrap();
    assert_eq!((charge("k2").await, charge("k2").await), (Some(true), Some(false)), "it had used one of two");
    let refused = apply(&accounts, &[]).unwrap_err();
    assert!(refused.sentence.contains("declares no account") && !accounts.is_open(), "{refused}");
}

#[test]
fn names_and_keys_are_each_of_one_account() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    for twin in [account("one", "k2", "1/1d"), account("two", "k1", "1/1d")] {
        let refused = apply(&accounts, &[account("one", "k1", "1/1d"), twin]).unwrap_err();
        assert!(refused.sentence.contains("its own"), "{refused}");
    }
    apply(&accounts, &[account("one", "k1", "1/1d")]).unwrap();
    let other = AccountRequest::Apply { accounts: vec![account("two", "k1", "1/1d")], prune: false };
    let refused = ask(&accounts, other).unwrap_err();
    assert!(refused.sentence.contains("as the account \"one\""), "{refused}");
}

fn applied(account: &str, change: AccountChange) -> Line {
    Line::Applied { account: account.to_owned(), change }
}

#[tokio::test]
async fn a_file_is_applied_once_and_operators_other_changes_stay() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let by_hand = add(&accounts, "by hand", "9/1d");
    let one = [account("one", "k1", "2/1d")];
    assert_eq!(apply(&accounts, &one).unwrap(), [applied("one", AccountChange::Added)]);
    assert_eq!(apply(&accounts, &one).unwrap(), []);
    assert_eq!(charge(&accounts, "k1").await, Some(true));
    // The operator retires the key and disables the account.
    let rotate = AccountRequest::RotateKey { name: "one".to_owned(), grace_seconds: Some(0) };
    let fresh = key_of(&ask(&accounts, rotate.clone()).unwrap());
    ask(&accounts, AccountRequest::SetEnabled { name: "one".to_owned(), enabled: false }).unwrap();
    assert_eq!(apply(&accounts, &one).unwrap(), []);
    assert_eq!(refusal(&accounts, "k1").await, Some(NoAccount::Retired));
    assert_eq!(refusal(&accounts, &fresh).await, Some(NoAccount::Disabled));
    ask(&accounts, AccountRequest::SetEnabled { name: "one".to_owned(), enabled: true }).unwrap();
    // The same once the database has dropped the key.
    (0..6).for_each(|_| drop(ask(&accounts, rotate.clone()).unwrap()));
    assert_eq!(apply(&accounts, &one).unwrap(), []);
    assert_eq!(refusal(&accounts, "k1").await, Some(NoAccount::Unknown));
    // Another key and quota, in addition to the tokens used before.
    let changed = ["quota", "key_sha256"].map(str::to_owned).into();
    let other = [account("one", "k2", "3/1d")];
    assert_eq!(apply(&accounts, &other).unwrap(), [applied("one", AccountChange::Changed(changed))]);
    assert_eq!((charge(&accounts, "k2").await, charge(&accounts, "k2").await), (Some(true), Some(true)));
    assert_eq!(charge(&accounts, "k2").await, Some(false));
    // The first key again: declaring it again makes it valid.
    apply(&accounts, &[account("one", "k1", "4/1d")]).unwrap();
    assert_eq!(refusal(&accounts, "k2").await, Some(NoAccount::Retired));
    assert_eq!(charge(&accounts, "k1").await, Some(true));
    // Without --prune, an account stays when it is no longer declared.
    let two = vec![account("two", "k3", "1/1d")];
    let request = AccountRequest::Apply { accounts: two.clone(), prune: false };
    assert_eq!(ask(&accounts, request).unwrap(), [applied("two", AccountChange::Added)]);
    assert_eq!(refusal(&accounts, "k1").await, None);
    assert_eq!(apply(&accounts, &two).unwrap(), [applied("one", AccountChange::Removed)]);
    assert_eq!(refusal(&accounts, "k1").await, Some(NoAccount::Unknown));
    assert_eq!(refusal(&accounts, &by_hand).await, None, "no file has declared it");
}

#[tokio::test]
async fn a_declared_key_moves_between_accounts_and_counts_as_one_of_the_new_owners() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[account("one", "k1", "1/1d"), account("two", "k2", "1/1d")], &directory);
    apply(&accounts, &[account("one", "k2", "1/1d"), account("two", "k1", "1/1d")]).unwrap();
    for (key, name) in [("k1", "two"), ("k2", "one")] {
        let Ok(Caller::Account(holder)) = caller(&accounts, key).await else { panic!("{key} is refused") };
        assert_eq!(&*holder.name, name);
    }
    // The first key is declared again once the account has as many others as there may be.
    apply(&accounts, &[account("one", "k3", "1/1d")]).unwrap();
    let rotate = AccountRequest::RotateKey { name: "one".to_owned(), grace_seconds: None };
    (0..7).for_each(|_| drop(ask(&accounts, rotate.clone()).unwrap()));
    let silent = DeclaredAccount { key_sha256: None, ..account("one", "", "1/1d") };
    apply(&accounts, &[silent]).unwrap();
    assert_eq!(refusal(&accounts, "k3").await, Some(NoAccount::Retired));
    ask(&accounts, rotate).unwrap();
    let refused = apply(&accounts, &[account("one", "k3", "1/1d")]).unwrap_err();
    assert!(refused.sentence.contains("8 keys"), "{refused}");
}

#[test]
fn a_file_with_one_bad_account_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let good = account("good", "k1", "1/1d");
    let bad = account("bad", "k2", "1/1d");
    let hash = |hash| Some(KeyHash(hash));
    let some = |number| std::num::NonZeroU32::new(number);
    for (bad, said) in [
        (DeclaredAccount { quota: None, ..bad.clone() }, "neither a quota nor a tier"),
        (DeclaredAccount { tier: Some("gold".to_owned()), ..bad.clone() }, "there is no tier \"gold\""),
        (DeclaredAccount { key_sha256: None, ..bad.clone() }, "neither a key_sha256 nor certificates"),
        (DeclaredAccount { key_sha256: hash([0x11; 32]), ..bad.clone() }, "a placeholder"),
        (DeclaredAccount { key_sha256: hash(sha256(b"")), ..bad.clone() }, "the hash of nothing"),
        (DeclaredAccount { rate: some(5), ..bad.clone() }, "need each other"),
        (DeclaredAccount { expires: Some("tomorrow".to_owned()), ..bad.clone() }, "\"2027-01-31\""),
        (DeclaredAccount { certificates: Some(vec!["ab".to_owned()]), ..bad.clone() }, "64 hex digits"),
        (DeclaredAccount { name: "=bad".to_owned(), ..bad.clone() }, "no name for an account"),
    ] {
        let refused = apply(&accounts, &[good.clone(), bad]).unwrap_err();
        assert!(refused.sentence.contains(said) && refused.sentence.contains("bad\""), "{refused}");
    }
    assert!(accounts.is_open(), "nor is any account made");
    let lasting =
        DeclaredAccount { rate: some(5), burst: some(9), expires: Some("2999-01-31".into()), ..good };
    apply(&accounts, &[lasting]).unwrap();
    let terms = show(&accounts, "good").terms.unwrap();
    assert_eq!((terms.burst.unwrap().burst_tokens.get(), terms.expires_at.is_some()), (9, true));
}
