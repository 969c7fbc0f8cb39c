//! Processes that die or run out of room, and what the next one finds.
//!
//! The tests run this binary again as a child that spends random keys and prints each one *after* its answer.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use postern_spend::{Embedded, Epoch, Fsync, Hint, Spend, SpendStore, Unknown};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const EPOCH: Epoch = Epoch { key: TokenKeyId([3; 32]), expires: UnixSeconds(2000), mark: None };
const NOW: UnixSeconds = UnixSeconds(1000);
const DIRECTORY: &str = "SPEND_TEST_DIRECTORY";
const ALWAYS: &str = "SPEND_TEST_ALWAYS";
const SPENDS: &str = "SPEND_TEST_SPENDS";

/// Not a test but the child that the tests below start.
#[test]
#[ignore = "run by another test"]
fn child() {
    let directory = std::env::var(DIRECTORY).expect("the tests below set it");
    let fsync = match std::env::var(ALWAYS) {
        Ok(_) => Fsync::Always,
        Err(_) => Fsync::Interval(Duration::from_millis(5)),
    };
    let spends = std::env::var(SPENDS).map_or(usize::MAX, |spends| spends.parse().unwrap());
    let store = Embedded::open(Path::new(&directory), fsync, NOW).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| block_on(spend_and_print(&store, spends)));
        }
    });
}

async fn spend_and_print(store: &Embedded, spends: usize) {
    for _ in 0..spends {
        let key = SpentKey::from_bytes(rand::random());
        let answer = store.spend(&key, &EPOCH, NOW).await;
        let word = match answer {
            Ok(Spend::Admitted) => "admitted",
            Err(Unknown::DiskFull) => "full",
            other => panic!("a fresh key was answered {other:?}"),
        };
        // A whole line in one write, so that a kill cannot leave half of one that looks whole.
        std::io::stdout().lock().write_all(format!("\n{word} {}\n", hex(&key)).as_bytes()).unwrap();
        let again = store.spend(&key, &EPOCH, NOW).await;
        assert_eq!(again, Ok(Spend::AlreadySpent), "right after {answer:?}");
    }
}

#[test]
fn kill_9_makes_nothing_respendable_with_interval_fsync() {
    kill_rounds(20, false);
}

#[test]
fn kill_9_makes_nothing_respendable_with_fsync_always() {
    kill_rounds(10, true);
}

fn kill_rounds(rounds: usize, always: bool) {
    let directory = tempfile::tempdir().unwrap();
    let mut admitted = HashSet::new();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--ignored", "--exact", "crash::child", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory.path());
        if always {
            child.env(ALWAYS, "1");
        }
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let before = admitted.len();
        let kill_after = rand::random_range(1..if always { 200 } else { 5000 });
        let mut killed = false;
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            if let Some(key) = line.strip_prefix("admitted ").and_then(|key| key.strip_suffix('\n')) {
                assert!(admitted.insert(unhex(key)));
            }
            if !killed && admitted.len() >= before + kill_after {
                child.kill().unwrap(); // SIGKILL, while it still spends
                killed = true;
            }
            line.clear();
        }
        assert!(killed, "the child ended by itself");
        child.wait().unwrap();

        let store = Embedded::open(directory.path(), Fsync::default(), NOW).unwrap();
        let stats = store.stats();
        // Two threads died in the middle of a spend, at most.
        assert!(stats.damaged + stats.holes <= 2 * (round as u64 + 1), "{stats:?}");
        block_on(async {
            for key in &admitted {
                let key = SpentKey::from_bytes(*key);
                assert_eq!(store.check(&key, &EPOCH).await, Ok(Hint::Spent), "round {round}");
                assert_eq!(store.spend(&key, &EPOCH, NOW).await, Ok(Spend::AlreadySpent), "round {round}");
            }
        });
    }
}

#[test]
fn a_full_disk_refuses_and_forgets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // A file size limit of 48 KiB (in blocks of 512 bytes) stands for the disk: room for about 2,000 records.
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -f 96 && trap '' XFSZ && exec \"$0\" --ignored --exact crash::child --nocapture --test-threads=1",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(DIRECTORY, directory.path())
        .env(SPENDS, "2000")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let keys_after = |word| text.lines().filter_map(move |line| line.strip_prefix(word)).map(unhex);
    let admitted: Vec<_> = keys_after("admitted ").collect();
    let full: Vec<_> = keys_after("full ").collect();
    assert!(admitted.len() > 1500 && full.len() > 1500, "{} admitted, {} full", admitted.len(), full.len());

    let store = Embedded::open(directory.path(), Fsync::default(), NOW).unwrap();
    block_on(async {
        for key in admitted {
            let again = store.spend(&SpentKey::from_bytes(key), &EPOCH, NOW).await;
            assert_eq!(again, Ok(Spend::AlreadySpent));
        }
        // Those refused for want of room were never admitted; with room again each is admitted once, or not at all.
        for key in full {
            let key = SpentKey::from_bytes(key);
            _ = store.spend(&key, &EPOCH, NOW).await.unwrap();
            assert_eq!(store.spend(&key, &EPOCH, NOW).await, Ok(Spend::AlreadySpent));
        }
    });
}

#[test]
fn a_directory_has_one_process_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Embedded::open(directory.path(), Fsync::default(), NOW);
    let first = open().unwrap();
    let second = open().unwrap_err();
    assert!(second.to_string().contains("another process"), "{second}");
    assert!(second.to_string().contains("another process has the double-spend store"), "{second}");
    drop(first);
    open().unwrap();
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn hex(key: &SpentKey) -> String {
    TokenKeyId(*key.as_bytes()).to_hex()
}

fn unhex(text: &str) -> [u8; 32] {
    assert_eq!(text.len(), 64, "{text:?}");
    std::array::from_fn(|byte| u8::from_str_radix(&text[2 * byte..2 * byte + 2], 16).unwrap())
}
