//! Processes that `postern doctor` and `postern status` take for no daemon of a folder.

use super::broken::{Start, gateway, of_folder, start};
use crate::support::daemon::{Daemon, client_config, issuer_config, with_memcacheds};
use crate::support::doctor::doctor;
use crate::support::edit;
use crate::support::memcached::Memcached;
use crate::support::process::run;
use crate::support::up::{Ports, Up, up};
use postern_testkit::ports;
use std::path::Path;
use tempfile::TempDir;

/// A daemon that began before its admin address was changed, and another one that has its files by mistake, look alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_the_files_of_a_daemon_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway(home.path(), "gateway.toml", &issuer);
    let running = Daemon::ready("gateway", &file).await;
    edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"127.0.0.1:{}\"", ports::free()));
    let said = format!("process {} has {}", running.process.id(), home.path().display());
    of_folder(home.path(), &file).has("bad", "process", &said);
    let status = || run(["status".as_ref(), home.path().as_os_str()]);
    assert!(status().stdout.contains(&said), "{:?}", status());
    start("gateway", &file, Start::Refused(70, "in use")).await;
    running.process.terminate().assert_stopped(); // the remedy
    of_folder(home.path(), &file).has_nothing_bad();
    assert!(status().stdout.contains("start it: postern gateway"), "{:?}", status());
    start("gateway", &file, Start::Ready).await;
}

/// It has the files, and its kernel takes connections at the admin address that the file names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_hangs_is_reported_once() {
    let home = TempDir::new().unwrap();
    let file = issuer_config(home.path(), "");
    edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"127.0.0.1:{}\"", ports::free()));
    let issuer = Daemon::ready("issuer", &file).await;
    issuer.process.signal("STOP");
    let hanging = doctor(&file);
    issuer.process.signal("CONT");
    let said = format!("bad   process     http://{} takes connections, and does not answer", issuer.admin);
    let bad: Vec<&str> = hanging.stdout.lines().filter(|line| line.starts_with("bad   process")).collect();
    assert_eq!(bad, [said], "{hanging:?}");
    of_folder(home.path(), &file).has_nothing_bad();
}

/// A gateway with a shared store has no files of its own, and is known by its other address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_another_folder_that_has_no_files_is_named() {
    let (home, issuers, store) = (TempDir::new().unwrap(), TempDir::new().unwrap(), Memcached::start());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let file = gateway(home.path(), "gateway.toml", &issuer);
    with_memcacheds(&file, &[store.address()]);
    let address = format!("127.0.0.1:{}", ports::free());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("127.0.0.1:0", &address, 1)).unwrap();
    edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"127.0.0.1:{}\"", ports::free()));
    let running = Daemon::ready("gateway", &file).await;
    let status = || run(["status".as_ref(), home.path().as_os_str()]);
    of_folder(home.path(), &file).has_nothing_bad();
    status().assert_stopped();
    // As if it were the file of another one.
    let other = format!("127.0.0.1:{}", ports::free());
    edit(&file, &address, &other);
    let said = format!(
        "process {} answers at {} (listen.admin), and does not listen at {other} (listen.address)",
        running.process.id(),
        running.admin
    );
    of_folder(home.path(), &file).has("bad", "process", &said);
    assert!(status().code == Some(1) && status().stdout.contains(&said), "{:?}", status());
    running.process.terminate().assert_stopped();
    let _running = Daemon::ready("gateway", &file).await; // the remedy
    of_folder(home.path(), &file).has_nothing_bad();
    status().assert_stopped();
}

/// Two folders whose files name one admin address, as the default is: the daemon of the other folder is of the same kind, or all
/// of them in one process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_of_another_folder_at_the_admin_address_is_named() {
    let (home, issuers) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(issuers.path(), "")).await;
    let [one, other] = ["one", "other"].map(|name| {
        let folder = home.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let file = gateway(&folder, "gateway.toml", &issuer);
        edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"127.0.0.1:{}\"", ports::free()));
        file
    });
    let admin = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap();
        text.split("admin = \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let folder = one.parent().unwrap();
    let status = || run(["status".as_ref(), folder.as_os_str()]);
    let running = Daemon::ready("gateway", &one).await;
    of_folder(folder, &one).lacks_of("bad", "process");
    status().assert_stopped();
    running.process.terminate().assert_stopped();

    // Its records were kept, or it never started.
    for is_new in [false, true] {
        if is_new {
            std::fs::remove_dir_all(folder.join("spent")).unwrap();
        }
        edit(&other, &admin(&other), &admin(&one));
        let running = Daemon::ready("gateway", &other).await;
        let said = format!(
            "process {} answers at {} (listen.admin), and does not have {}/spent/lock (store.path): no process has it",
            running.process.id(),
            admin(&one),
            folder.display()
        );
        of_folder(folder, &one).has("bad", "process", &said);
        of_folder(folder, &one).has("bad", "process", "choose another listen.admin in this file");
        let asked = status();
        assert_eq!(asked.code, Some(1), "{asked:?}");
        assert!(asked.stdout.contains("not ready") && asked.stdout.contains(&said), "{asked:?}");
        start("gateway", &one, Start::Refused(70, &admin(&one))).await;
        let taken = admin(&one);
        edit(&one, &taken, &format!("127.0.0.1:{}", ports::free())); // the remedy
        of_folder(folder, &one).has_nothing_bad();
        let started = Daemon::ready("gateway", &one).await;
        status().assert_stopped();
        started.process.terminate().assert_stopped();
        running.process.terminate().assert_stopped();
    }

    let admin_of_all = admin(&one);
    let [agent, other_agent] = [folder, other.parent().unwrap()].map(|folder| {
        let file = client_config(folder, &issuer.http(), &issuer.http(), None);
        edit(&file, "admin = \"127.0.0.1:0\"", &format!("admin = \"{admin_of_all}\""));
        file
    });
    let running = Daemon::start("client", &other_agent);
    let of = |file: &Path| run(["client", "status", "--config", file.to_str().unwrap()]);
    let wallet = format!("does not have {}/wallet (wallet.path): no process has it", folder.display());
    of(&agent).assert_failed(1, &[&format!("process {} answers", running.process.id()), &wallet]);
    assert!(of(&other_agent).stdout.contains("  wallet "), "{:?}", of(&other_agent));
    running.process.terminate().assert_stopped();
    let ports = Ports { admin: admin_of_all.parse().unwrap(), ..Ports::any() };
    let all = Up::of(up(&home.path().join("data"), ports));
    for file in [&one, &agent] {
        of_folder(folder, file).has("bad", "process", "(listen.admin), and does not have ");
    }
    assert_eq!(status().stdout.matches("(listen.admin), and does not have ").count(), 2, "{:?}", status());
    all.terminate().assert_stopped();
}
