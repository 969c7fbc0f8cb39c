//! Accounts identified by client certificates.

use super::*;
use postern_daemon::tls::PublicKeyDigest;

async fn by(accounts: &Accounts, certificate: u8, key: Option<&str>) -> Result<Arc<str>, NoAccount> {
    let headers = key.map_or_else(HeaderMap::new, |key| headers(&[&format!("Bearer {key}")]));
    let certificate = Some(PublicKeyDigest([certificate; 32]));
    match accounts.authorize(&headers, None, certificate, UnixSeconds::now()).await? {
        Caller::Account(holder) => Ok(holder.name.clone()),
        Caller::Anyone => panic!("the issuer is open"),
    }
}

fn add_certificate(accounts: &Accounts, name: &str, certificate: u8) -> Result<Vec<Line>, Refused> {
    let public_key_sha256 = hex::encode([certificate; 32]);
    ask(accounts, AccountRequest::AddCertificate { name: name.to_owned(), public_key_sha256 })
}

#[tokio::test]
async fn a_certificate_and_a_key_are_of_one_account_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let [alice, bob] = ["alice", "bob"].map(|name| add(&accounts, name, "9/1d"));
    assert_eq!(by(&accounts, 1, None).await, Err(NoAccount::StrangeCertificate));
    assert_eq!(by(&accounts, 1, Some(&alice)).await.as_deref(), Ok("alice"), "none is known at all");
    add_certificate(&accounts, "alice", 1).unwrap();
    add_certificate(&accounts, "alice", 1).unwrap(); // no effect
    assert_eq!(show(&accounts, "alice").certificates.len(), 1);
    assert_eq!(by(&accounts, 1, None).await.as_deref(), Ok("alice"));
    assert_eq!(by(&accounts, 1, Some(&alice)).await.as_deref(), Ok("alice"));
    assert_eq!(by(&accounts, 1, Some(&bob)).await, Err(NoAccount::Contradiction));
    assert_eq!(by(&accounts, 2, Some(&bob)).await.as_deref(), Ok("bob"), "it says nothing");
    assert_eq!(
        by(&accounts, 1, Some("wrong")).await,
        Err(NoAccount::Unknown),
        "a wrong key is not made good"
    );
    assert!(add_certificate(&accounts, "bob", 1).is_err());
    for certificate in 2..=8 {
        add_certificate(&accounts, "alice", certificate).unwrap();
    }
    let refused = add_certificate(&accounts, "alice", 9).unwrap_err();
    assert!(refused.sentence.contains("\"alice\" has 8 certificates"), "{refused}");
}

/// Public keys are public: one that is sent as an API key proves nothing.
#[tokio::test]
async fn a_public_key_is_no_api_key() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    add(&accounts, "bob", "9/1d");
    let public_key = "a public key that could be written into a header";
    let certificates = vec![hex::encode(sha256(public_key.as_bytes()))];
    let request = AccountRequest::Add { name: "alice".to_owned(), terms: terms("9/1d"), certificates };
    let lines = ask(&accounts, request).unwrap();
    assert!(!lines.iter().any(|line| matches!(line, Line::ApiKey(_))), "{lines:?}");
    let shown = Some(PublicKeyDigest(sha256(public_key.as_bytes())));
    assert!(accounts.authorize(&HeaderMap::new(), None, shown, UnixSeconds::now()).await.is_ok());
    assert_eq!(refusal(&accounts, public_key).await, Some(NoAccount::Unknown));
}

#[tokio::test]
async fn a_certificate_goes_with_its_account_and_stays_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    add(&accounts, "alice", "9/1d");
    add_certificate(&accounts, "alice", 1).unwrap();
    drop(accounts);
    let accounts = open(&[], &directory);
    assert_eq!(by(&accounts, 1, None).await.as_deref(), Ok("alice"));
    ask(&accounts, AccountRequest::Remove { name: "alice".to_owned() }).unwrap();
    assert_eq!(by(&accounts, 1, None).await, Err(NoAccount::StrangeCertificate));
    add(&accounts, "bob", "9/1d");
    add_certificate(&accounts, "bob", 1).unwrap();
    assert_eq!(by(&accounts, 1, None).await.as_deref(), Ok("bob"));
}

#[test]
fn a_file_declares_all_certificates_of_an_account_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let hex = |byte: u8| hex::encode([byte; 32]);
    let with = |certificates: &[String]| DeclaredAccount {
        key_sha256: None,
        certificates: Some(certificates.to_vec()),
        ..account("one", "", "1/1d")
    };
    let shown = || {
        let certificates = show(&accounts, "one").certificates;
        certificates.into_iter().map(|view| view.public_key_sha256).collect::<Vec<_>>()
    };
    apply(&accounts, &[with(&[hex(1), hex(2)])]).unwrap();
    let said = apply(&accounts, &[with(&[hex(2), hex(3)])]).unwrap();
    let changed = AccountChange::Changed(vec!["certificates".to_owned()]);
    assert_eq!(said, [Line::Applied { account: "one".to_owned(), change: changed }]);
    assert_eq!(shown(), [hex(2), hex(3)]);
    let silent = DeclaredAccount { certificates: None, ..with(&[]) };
    assert_eq!(apply(&accounts, &[silent]).unwrap(), []);
    assert_eq!(shown(), [hex(2), hex(3)], "a file that says nothing of them leaves them");
    // A certificate moves to an account that the file names first.
    let other = |certificates: &[String]| DeclaredAccount { name: "a".to_owned(), ..with(certificates) };
    apply(&accounts, &[other(&[hex(2)]), with(&[hex(3)])]).unwrap();
    assert_eq!((shown(), show(&accounts, "a").certificates.len()), (vec![hex(3)], 1));
}
