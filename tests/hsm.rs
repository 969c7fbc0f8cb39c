//! Token keys in an HSM: SoftHSM, by the commands of `docs/operate/install.md`, and a module that fails as SoftHSM cannot.

mod faults;
mod setup;

use crate::support::daemon::{Daemon, gateway_config};
use crate::support::process::{Postern, run};
use crate::support::{admin, eventually, proxy, target, tokens};
use postern_token::{DIRECTORY_PATH, key_file::Reference};
use setup::{Hsm, PIN, files, guide, says};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

async fn gateway(home: &Path, issuer: &Daemon) -> Daemon {
    let config = gateway_config(home, &issuer.http(), "poll = \"1s\"", "1s", "");
    Daemon::ready("gateway", &config).await
}

async fn are_accepted(gateway: &Daemon, tokens: &[String]) {
    let echo = target::echo().await.to_string();
    for token in tokens {
        let mut stream = proxy::dial(gateway.address).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &echo, Some(token)).await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_key_in_the_hsm_signs_cannot_leave_and_serves_two_issuers() {
    let (hsm, home, there) = (Hsm::new(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let mut traced = hsm.command(&["issuer", "--config", config.to_str().unwrap()]);
    traced.env("RUST_LOG", "trace");
    let issuer = Daemon::of("issuer", traced);
    setup::is_ready(&issuer).await;
    let gateway = gateway(home.path(), &issuer).await;
    are_accepted(&gateway, &tokens::mint(&issuer.http(), &gateway.http(), 3)).await;

    let [file] = files(home.path(), "pkcs11").try_into().unwrap();
    let reference = Reference::parse(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(hsm.private_keys(), [reference.id_hex()]);
    let listed = hsm.shell(&guide("pkcs11-tool"));
    assert!(listed.contains("Usage:      sign\n"), "{listed}");
    assert!(
        listed.contains("Access:     sensitive, always sensitive, never extractable, local\n"),
        "{listed}"
    );
    // DER has the object identifier of RSA keys in each PKCS#8 file; the published form has another.
    let rsa = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    for entry in std::fs::read_dir(home.path().join("issuer")).unwrap() {
        let content = std::fs::read(entry.unwrap().path()).unwrap_or_default(); // a socket cannot be read
        assert!(!content.windows(rsa.len()).any(|bytes| bytes == rsa));
    }
    assert!(files(home.path(), "p8").is_empty() && files(home.path(), "pkcs11-begun").is_empty());

    let (keys, remarks) = hsm.list(&config);
    assert_eq!((keys.len(), remarks.len()), (1, 0));
    let id = keys[0]["id"].as_str().unwrap();
    let export = ["export", id, home.path().to_str().unwrap()];
    hsm.key(&config, &export).assert_failed(70, &["cannot leave it", "which holds no secret"]);

    // It begins with a key in a file. One in 256 shares the last byte of its id, by which requests name a key, with the other.
    loop {
        let other = hsm.config(there.path(), "", false);
        Daemon::ready("issuer", &other).await.process.terminate().assert_stopped();
        let other = hsm.config(there.path(), "", true);
        let imported = hsm.key(&other, &["import", file.to_str().unwrap()]);
        if !imported.stderr.contains("share the last byte of their key ids") {
            imported.assert_stopped();
            break;
        }
        std::fs::remove_dir_all(there.path().join("issuer")).unwrap();
    }
    let other = hsm.config(there.path(), "", true);
    let second = hsm.ready(&other).await;
    assert_eq!(files(there.path(), "pkcs11").len(), 1);
    for own in hsm.list(&other).0.iter().map(|key| key["id"].as_str().unwrap()).filter(|own| *own != id) {
        hsm.key(&other, &["retire", own, "--yes"]).assert_stopped();
    }
    let minted = tokens::mint(&second.http(), &gateway.http(), 1);
    let ours: HashSet<_> =
        hsm.list(&other).0.iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect();
    assert!(ours.contains(&tokens::token_of(&minted[0]).token_key_id().short()));

    let ended = issuer.process.terminate();
    ended.assert_stopped();
    assert!(!ended.stderr.contains(PIN) && !ended.stdout.contains(PIN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_rotation_moves_to_the_hsm_and_another_back_and_every_token_stays_good() {
    let (mut hsm, home) = (Hsm::new(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", false);
    Daemon::ready("issuer", &config).await.process.terminate().assert_stopped();
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    let gateway = gateway(home.path(), &issuer).await;
    let mut minted = tokens::mint(&issuer.http(), &gateway.http(), 2);
    hsm.key(&config, &["rotate", "--in", "4s"]).assert_stopped();
    let newest = |config: &Path| {
        let (keys, _) = hsm.list(config);
        keys.iter().find(|key| key["phase"] == "newest").unwrap()["file"].as_str().unwrap().to_owned()
    };
    eventually("the key in the HSM is in use", || async {
        newest(&config).ends_with(".pkcs11").then_some(())
    })
    .await;
    minted.extend(tokens::mint(&issuer.http(), &gateway.http(), 2));
    let ids: HashSet<_> = minted.iter().map(|token| tokens::token_of(token).token_key_id()).collect();
    assert_eq!(ids.len(), 2, "of both keys");
    are_accepted(&gateway, &minted).await;
    issuer.process.terminate().assert_stopped();

    hsm.more = "new_keys = false\n".to_owned();
    let config = hsm.config(home.path(), "", true);
    hsm.key(&config, &["rotate", "--in", "0s"]).assert_stopped();
    assert!(hsm.list(&config).0[0]["file"].as_str().unwrap().ends_with(".p8"));
    assert_eq!((files(home.path(), "p8").len(), files(home.path(), "pkcs11").len()), (2, 1));
    let without = hsm.config(home.path(), "", false);
    let refused = ["[keys.pkcs11] is not set", "new_keys = false"];
    run(["issuer", "--config", without.to_str().unwrap()]).assert_failed(64, &refused);
    run(["doctor", without.to_str().unwrap()]).assert_would_not_start(64, &refused);
}

/// At another moment each time. The issuer has logged in by then: SoftHSM writes its token's file at each login, and a kill would tear
/// that, as no HSM does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn a_kill_while_a_key_is_made_leaves_no_orphan() {
    let (hsm, home) = (Hsm::faulty(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let mint = |issuer: &Daemon| run(["token", "mint", "--issuer", &issuer.http()]).assert_stopped();
    let mut issuer = hsm.ready(&config).await;
    let rotating = || {
        let arguments = ["issuer", "key", "rotate", "--in", "0s", "--config", config.to_str().unwrap()];
        Postern::start(hsm.command(&arguments))
    };
    // Surely between the key and its file: the signature to try it does not return.
    mint(&issuer);
    hsm.fault("hang");
    let command = rotating();
    // Noted by the module: a second process that looks into SoftHSM's files while they are written makes it lose sight of the key.
    let tries = || async { (!hsm.noted("hung").is_empty()).then_some(()) };
    eventually("the new key is tried", tries).await;
    assert_eq!(hsm.private_keys().len(), 2);
    issuer.kill();
    command.ended();
    assert_eq!(files(home.path(), "pkcs11").len(), 1);
    hsm.right("hang");
    issuer = hsm.ready(&config).await;
    for kill in 0..8_u64 {
        mint(&issuer);
        hsm.fault("slow");
        let before = hsm.noted("making").len();
        let command = rotating();
        let begun = || async { (hsm.noted("making").len() > before).then_some(()) };
        eventually("a key is being made", begun).await;
        assert_eq!(files(home.path(), "pkcs11-begun").len(), 1);
        hsm.right("slow");
        tokio::time::sleep(Duration::from_millis(kill * 100)).await;
        issuer.kill();
        command.ended();
        issuer = hsm.ready(&config).await;
    }
    mint(&issuer);
    hsm.key(&config, &["rotate", "--in", "0s"]).assert_stopped();
    let referred = files(home.path(), "pkcs11").into_iter().map(|file| std::fs::read(file).unwrap());
    let mut referred: Vec<_> = referred.map(|text| Reference::parse(&text).unwrap().id_hex()).collect();
    referred.sort();
    assert_eq!(hsm.private_keys(), referred);
    assert!(files(home.path(), "pkcs11-begun").is_empty());
    assert_eq!(hsm.list(&config).1, [""; 0]);

    let first = files(home.path(), "pkcs11").remove(0);
    let orphan = Reference::parse(&std::fs::read(&first).unwrap()).unwrap().id_hex();
    issuer.process.terminate().assert_stopped();
    std::fs::remove_file(first).unwrap();
    let (_, remarks) = hsm.list(&config);
    assert!(remarks.len() == 1 && remarks[0].contains(&orphan), "{remarks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs SoftHSM and pkcs11-tool: apt-get install softhsm2 opensc"]
async fn without_its_hsm_an_issuer_publishes_its_keys_and_signs_again_when_it_is_back() {
    let (hsm, home) = (Hsm::new(), TempDir::new().unwrap());
    let config = hsm.config(home.path(), "", true);
    let issuer = hsm.ready(&config).await;
    let mint = |issuer: &Daemon| run(["token", "mint", "--issuer", &issuer.http()]);
    mint(&issuer).assert_stopped();
    hsm.take_away();
    mint(&issuer).assert_failed(70, &["503", "private key cannot be used"]);
    // A session that is still open finds a token without keys first.
    let said = says(&issuer, 503, "no restart is needed").await;
    assert!(
        said.contains("requests for tokens are answered 503") && said.contains("token = \"postern\""),
        "{said}"
    );
    assert_eq!(
        admin::Metrics::of(issuer.admin)
            .await
            .value("postern_issuances_total{type=\"2\",outcome=\"key_unavailable\"}"),
        1
    );
    hsm.bring_back();
    setup::is_ready(&issuer).await;
    mint(&issuer).assert_stopped();
    issuer.process.terminate().assert_stopped();

    // After a power cut it may come later than the issuer.
    hsm.take_away();
    let issuer = hsm.start(&config);
    says(&issuer, 503, "requests for tokens are answered 503").await;
    let (status, directory) = admin::get(issuer.address, DIRECTORY_PATH).await.unwrap();
    assert!(status == 200 && directory.contains("\"token-type\":2"), "{directory}");
    mint(&issuer).assert_failed(70, &["503"]);
    let doctor = Postern::start(hsm.command(&["doctor", config.to_str().unwrap()])).ended();
    assert!(doctor.stdout.contains(": [keys.pkcs11]: C_Initialize gave"), "{doctor:?}");
    hsm.bring_back();
    setup::is_ready(&issuer).await;
    mint(&issuer).assert_stopped();
    let doctor = Postern::start(hsm.command(&["doctor", config.to_str().unwrap()])).ended();
    doctor.assert_can_start();
}
