//! Faults of an HSM.

use super::setup::{Hsm, PIN, files, is_ready, says};
use crate::support::daemon::Daemon;
use crate::support::process::{Ended, Postern, run};
use crate::support::{admin, eventually};
use postern_token::{SigningKey, TokenKeyId, key_file::Reference};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Waits until the module has noted this so often.
async fn noted(hsm: &Hsm, what: &str, count: usize) {
    let is_noted = || async { (hsm.noted(what).len() >= count).then_some(()) };
    eventually(&format!("{count} {what}"), is_noted).await;
}

fn mint(issuer: &Daemon, count: &str) -> Ended {
    run(["token", "mint", "--issuer", &issuer.http(), "--count", count])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_wrong_pin_is_tried_once_until_the_file_has_another() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    hsm.ready(&config).await.process.terminate().assert_stopped();
    assert_eq!(hsm.noted("logins").len(), 1, "one login for all threads");

    hsm.set_pin("00000000");
    let issuer = hsm.start(&config);
    let said = says(&issuer, 503, "refused the PIN (PinIncorrect)").await;
    assert!(said.contains("pin_file") && said.contains("SIGHUP"), "{said}");
    for _ in 0..3 {
        mint(&issuer, "1").assert_failed(70, &["503"]);
    }
    issuer.process.signal("HUP");
    let log = |text: &'static str| {
        issuer.process.wait_for(text, |_, stderr| stderr.contains(text).then_some(()));
    };
    log("the PIN file still has the PIN that the HSM refused");
    let doctor = Postern::start(hsm.command(&["doctor", config.to_str().unwrap()])).ended();
    assert!(doctor.stdout.contains("a wrong PIN was tried"), "{doctor:?}");
    assert_eq!(hsm.noted("logins").len(), 2, "the wrong one once, and none by doctor");

    hsm.set_pin(PIN);
    issuer.process.signal("HUP");
    is_ready(&issuer).await;
    mint(&issuer, "1").assert_stopped();
    assert_eq!(hsm.noted("logins").len(), 3);
    let ended = issuer.process.terminate();
    assert!(!ended.stderr.contains("00000000"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn calls_that_do_not_return_cost_their_requests_alone() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[signing]\nthreads = 4\n")).unwrap();
    let issuer = hsm.ready(&config).await;
    mint(&issuer, "100").assert_stopped();
    let signers: HashSet<_> = hsm.noted("signers").into_iter().collect();
    assert!(signers.len() >= 4, "{signers:?}");

    hsm.fault("lose");
    mint(&issuer, "1").assert_stopped(); // in a new session
    assert!(!hsm.path("lose").exists());

    hsm.fault("hang");
    let begun = Instant::now();
    mint(&issuer, "1").assert_failed(70, &["503"]);
    assert!(begun.elapsed() >= Duration::from_secs(3));
    says(&issuer, 503, "has not returned for").await;
    mint(&issuer, "1").assert_failed(70, &["503"]);
    noted(&hsm, "hung", 2).await; // the client's signature, and the trial in another session
    hsm.right("hang");
    is_ready(&issuer).await;
    assert_eq!(hsm.noted("closed").len(), 1, "the session of the trial");
    mint(&issuer, "1").assert_stopped();

    hsm.fault("hang");
    let minting = || Postern::start(hsm.command(&["token", "mint", "--issuer", &issuer.http()]));
    let waiting = [minting(), minting()];
    says(&issuer, 503, "has not returned for").await;
    let begun = Instant::now();
    issuer.process.terminate().assert_stopped();
    assert!(begun.elapsed() < Duration::from_secs(10), "the deadline of the drain");
    for client in waiting {
        client.ended().assert_failed(70, &[]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_session_that_is_lost_while_a_call_does_not_return_stops_no_others() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[signing]\nthreads = 4\n")).unwrap();
    let issuer = hsm.ready(&config).await;

    hsm.fault("catch");
    let caught = Postern::start(hsm.command(&["token", "mint", "--issuer", &issuer.http()]));
    noted(&hsm, "caught", 1).await;
    hsm.fault("break");
    mint(&issuer, "1").assert_failed(70, &["503"]);
    says(&issuer, 503, "restart the issuer, because a call into a module cannot be ended").await;
    hsm.right("break");
    is_ready(&issuer).await;
    mint(&issuer, "1").assert_stopped();
    assert_eq!(hsm.noted("caught").len(), 1, "the call has not returned");
    hsm.right("caught");
    caught.ended().assert_failed(70, &["503"]);
    mint(&issuer, "1").assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_lack_of_sessions_is_reported_and_costs_no_more_than_it_must() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[signing]\nthreads = 4\n")).unwrap();
    let issuer = hsm.ready(&config).await;

    // With one session besides the login's, in which a key is made, signatures wait in vain. Yet no call hangs.
    hsm.limit(2);
    mint(&issuer, "1").assert_stopped();
    hsm.fault("slow");
    let arguments = ["issuer", "key", "rotate", "--in", "0s", "--config", config.to_str().unwrap()];
    let rotating = Postern::start(hsm.command(&arguments));
    noted(&hsm, "making", 1).await;
    mint(&issuer, "1").assert_failed(70, &["503"]);
    hsm.right("slow");
    rotating.ended().assert_stopped();
    mint(&issuer, "1").assert_stopped();

    hsm.limit(1);
    mint(&issuer, "100").assert_failed(70, &["503"]);
    let said = says(&issuer, 503, "accepts no session for signing").await;
    assert!(said.contains("SessionCount") && said.contains("close those of other programs"), "{said}");
    hsm.right("limit");
    is_ready(&issuer).await; // without a request
    let before = hsm.noted("signers").len();
    mint(&issuer, "100").assert_stopped();
    let signers: HashSet<_> = hsm.noted("signers").split_off(before).into_iter().collect();
    assert!(signers.len() >= 4, "{signers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_key_that_may_not_sign_is_reported_until_it_signs() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    hsm.fault("refuse");
    mint(&issuer, "1").assert_failed(70, &["503"]);
    says(&issuer, 503, "KeyFunctionNotPermitted; look at what it allows").await;
    noted(&hsm, "refused", 2).await; // the watch has found the key, and it does not sign
    let (status, _) = admin::get(issuer.admin, "/readyz").await.unwrap();
    assert_eq!(status, 503);
    hsm.right("refuse");
    is_ready(&issuer).await; // without a request
    mint(&issuer, "1").assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_key_that_breaks_each_session_is_reported_and_tried_by_the_watch_alone() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    hsm.fault("break");
    mint(&issuer, "1").assert_failed(70, &["503"]);
    says(&issuer, 503, "does not sign with the token key").await;
    let (before, begun) = (hsm.noted("logins").len(), Instant::now());
    for _ in 0..20 {
        mint(&issuer, "1").assert_failed(70, &["503"]);
    }
    let trials = 2 + usize::try_from(begun.elapsed().as_secs() / 5).unwrap();
    let logins = hsm.noted("logins").len() - before;
    assert!(logins <= trials, "{logins} logins");
    hsm.right("break");
    is_ready(&issuer).await; // without a request
    mint(&issuer, "1").assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn wrong_results_are_given_to_no_client() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    hsm.fault("err");
    for _ in 0..2 {
        mint(&issuer, "1").assert_failed(70, &["503"]);
    }
    says(&issuer, 503, "computed 2 wrong results").await;
    let made = |arguments: &[&str]| hsm.key(&config, arguments);
    made(&["rotate", "--in", "0s"]).assert_failed(70, &["a signature to try it failed"]);
    assert_eq!(files(home.path(), "pkcs11").len(), 1);
    hsm.right("err");
    says(&issuer, 200, "degraded: issuer: the HSM computed 2 wrong results").await; // without a request
    mint(&issuer, "1").assert_stopped();
    assert_eq!(
        admin::Metrics::of(issuer.admin)
            .await
            .value("postern_issuances_total{type=\"2\",outcome=\"key_unavailable\"}"),
        2
    );
    assert_eq!(hsm.private_keys().len(), 1, "what was tried in vain is destroyed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_missing_key_and_another_in_its_place_are_reported_apart_and_neither_stops_the_others() {
    let (hsm, home) = (Hsm::new(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    let id = hsm.private_keys().remove(0);
    mint(&issuer, "1").assert_stopped();
    // A session that has used this key does not take it for another one with its CKA_ID.
    let own = files(home.path(), "pkcs11").remove(0);
    let mut reference = Reference::parse(&std::fs::read(&own).unwrap()).unwrap();
    let ours = TokenKeyId::of(&reference.public_key);
    let other = loop {
        let other = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
        if other.id().truncated() != ours.truncated() {
            break other;
        }
    };
    reference.public_key = other.public_key().to_vec();
    let name = own.file_name().unwrap().to_str().unwrap().replace(&ours.short(), &other.id().short());
    let copy = home.path().join(name);
    std::fs::write(&copy, reference.write()).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    hsm.key(&config, &["import", copy.to_str().unwrap()])
        .assert_failed(70, &["another private key with this CKA_ID"]);

    let tool = |arguments: &str| {
        hsm.shell(&format!(
            "pkcs11-tool --module {} --token-label postern --login --pin {PIN} {arguments}",
            super::setup::MODULE
        ))
    };
    let delete = || tool(&format!("--delete-object --type privkey --id {id}"));
    delete();
    let said = says(&issuer, 503, "has no private key with the CKA_ID").await;
    assert!(said.contains(&id) && said.contains("postern issuer key retire"), "{said}");
    mint(&issuer, "1").assert_failed(70, &["503"]);
    for key in ["EC:prime256v1", "rsa:2048"] {
        tool(&format!("--keypairgen --key-type {key} --id {id} --usage-sign"));
        says(&issuer, 503, "is not the one of the token key").await;
        delete();
        says(&issuer, 503, "has no private key with the CKA_ID").await;
    }
    hsm.key(&config, &["rotate", "--in", "0s"]).assert_stopped();
    eventually("the new key signs", || async {
        let (status, _) = admin::get(issuer.admin, "/readyz").await?;
        (status == 200).then_some(())
    })
    .await;
    mint(&issuer, "1").assert_stopped();
}
