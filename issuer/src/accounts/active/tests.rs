use super::*;
use crate::accounts::configured::Tiers;

fn found(name: &str, quota: &str) -> Found {
    let terms = Terms { quota: quota.parse().ok(), burst: None, tier: None, expires_at: None };
    Found { name: name.to_owned(), terms, standing: Standing::GOOD }
}

fn key(byte: u8) -> Credential {
    Credential::ApiKey([byte; 32])
}

fn insert(active: &Active, generation: u64, key: Credential, found: Found) -> Option<Arc<Holder>> {
    let allowance = Tiers::default().allowance(&found.terms).unwrap();
    active.insert(generation, key, found, &allowance)
}

#[test]
fn what_was_read_before_a_change_is_not_taken() {
    let active = Active::default();
    let before = active.generation();
    active.forget("another");
    assert!(insert(&active, before, key(1), found("one", "1/1d")).is_none());
    assert!(active.get(&key(1)).is_none());
    assert!(insert(&active, active.generation(), key(1), found("one", "1/1d")).is_some());
    assert!(active.get(&key(1)).is_some());
}

#[test]
fn all_keys_of_an_account_share_one_meter_through_every_change() {
    let active = Active::default();
    let insert = |byte: u8| insert(&active, active.generation(), key(byte), found("one", "1/1d")).unwrap();
    let (first, second) = (insert(1), insert(2));
    assert!(Arc::ptr_eq(&first, &second));
    active.forget("one");
    assert!(active.get(&key(1)).is_none() && active.get(&key(2)).is_none());
    assert!(Arc::ptr_eq(&first, &insert(3)));
    active.forget_all();
    assert!(active.get(&key(3)).is_none());
    assert!(Arc::ptr_eq(&first, &insert(1)));
}

#[test]
fn a_key_is_judged_at_the_moment_of_the_request() {
    let standing = Standing {
        expires_at: Some(UnixSeconds(10)),
        key_retires_at: Some(UnixSeconds(5)),
        ..Standing::GOOD
    };
    assert_eq!(standing.admit(UnixSeconds(4)), Ok(()));
    assert_eq!(standing.admit(UnixSeconds(5)), Err(NoAccount::Retired));
    let standing = Standing { key_retires_at: None, ..standing };
    assert_eq!(standing.admit(UnixSeconds(9)), Ok(()));
    assert_eq!(standing.admit(UnixSeconds(10)), Err(NoAccount::Expired));
    assert_eq!(Standing { enabled: false, ..standing }.admit(UnixSeconds(4)), Err(NoAccount::Disabled));
}

#[test]
fn a_key_that_the_authorizer_moves_goes_with_its_new_account() {
    let active = Active::default();
    for name in ["one", "other"] {
        insert(&active, active.generation(), key(1), found(name, "1/1d")).unwrap();
    }
    active.forget("one");
    assert_eq!(&*active.get(&key(1)).unwrap().0.name, "other");
    active.forget("other");
    assert!(active.get(&key(1)).is_none());
}

/// An authorizer may assign any number of keys to one account.
#[test]
fn an_account_has_a_bounded_number_of_credentials_in_memory() {
    let active = Active::default();
    for byte in 0..=u8::MAX {
        insert(&active, active.generation(), key(byte), found("one", "1/1d")).unwrap();
    }
    assert!(active.get(&key(0)).is_none() && active.get(&key(u8::MAX)).is_some());
    assert_eq!(active.state.lock().by_credential.len(), MOST_CREDENTIALS);
    active.forget_credential(&key(u8::MAX));
    active.forget_credential(&key(0));
    assert!(active.get(&key(u8::MAX)).is_none());
    active.forget("one");
    assert!(active.state.lock().by_credential.is_empty());
}
