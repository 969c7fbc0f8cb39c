use super::*;
use crate::recorder::{FailureKind, Fate, Recorder};
use crate::wallet::challenge::tests::named;
use crate::wallet::supply::{Failure, Supply, Wanted};
use postern_token::{MAX_TOKEN_LEN, Token, TokenInput, TokenType};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tempfile::TempDir;

const NOW: UnixSeconds = UnixSeconds(1_000);
const OURS: ChallengeDigest = ChallengeDigest([0xA1; 32]);
const OTHER: ChallengeDigest = ChallengeDigest([0xA2; 32]);
const KEY: TokenKeyId = TokenKeyId([0xA3; 32]);

fn token(number: u8, challenge: ChallengeDigest, key: TokenKeyId) -> Token {
    let input = TokenInput::new(TokenType::BlindRsa2048, Nonce([number; 32]), challenge, key);
    Token::assemble(&input, &[number; 256]).unwrap()
}

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wallet");
    (directory, path)
}

fn open(path: &Path) -> Wallet {
    Wallet::open(path, false, Position::Last).unwrap()
}

fn add(wallet: &Wallet, token: Token, not_after: Option<UnixSeconds>) {
    wallet.add(Unspent { token, not_after }).unwrap();
}

fn take(wallet: &Wallet, challenge: ChallengeDigest) -> Option<Token> {
    wallet.take(challenge, NOW, &BTreeSet::new()).unwrap().map(|unspent| unspent.token)
}

fn bytes_hold(path: &Path, token: &Token) -> bool {
    let nonce = token.nonce().0;
    std::fs::read(path).unwrap().windows(32).any(|window| window == nonce)
}

#[test]
fn tokens_survive_a_restart_and_are_given_out_once() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    for number in 1..=5 {
        add(&wallet, token(number, OURS, KEY), None);
    }
    let first = take(&wallet, OURS).unwrap();
    assert!(!bytes_hold(&path, &first), "a taken token's bytes must not stay on disk");
    drop(wallet);

    let wallet = open(&path);
    let mut seen = HashSet::from([first.nonce()]);
    while let Some(token) = take(&wallet, OURS) {
        assert!(seen.insert(token.nonce()));
    }
    assert_eq!(seen.len(), 5);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn slots_are_used_again() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    for number in 1..=100 {
        add(&wallet, token(number, OURS, KEY), None);
        take(&wallet, OURS).unwrap();
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * SECTOR as u64);
}

#[test]
fn the_file_belongs_to_one_wallet() {
    let (_directory, path) = directory();
    let first = open(&path);
    let refused = Wallet::open(&path, false, Position::Last).err().unwrap().to_string();
    assert!(refused.starts_with("another postern has the wallet"), "{refused}");
    drop(first);
    open(&path);
}

#[test]
fn challenges_are_kept_apart_and_retired_keys_are_passed_over() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    add(&wallet, token(1, OTHER, KEY), None);
    add(&wallet, token(2, OURS, KEY), Some(NOW));
    add(&wallet, token(3, OURS, KEY), None);
    add(&wallet, token(4, OURS, KEY), Some(UnixSeconds(NOW.0 + 1)));
    assert_eq!(wallet.level(OURS, NOW, &BTreeSet::new()), 2);
    let taken: Vec<_> = std::iter::from_fn(|| take(&wallet, OURS)).map(|t| t.nonce().0[0]).collect();
    assert_eq!(taken, [4, 3], "the token that spoils first goes first");
    assert_eq!(wallet.drop_retired(NOW).count, 1);
    assert_eq!(wallet.shown().get(), 1);
    assert_eq!(take(&wallet, OTHER).unwrap().nonce(), Nonce([1; 32]));
}

#[test]
fn the_level_shown_follows_every_change() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    assert_eq!(wallet.shown().get(), 0);
    for (number, challenge, not_after) in
        [(1, OURS, None), (2, OURS, Some(NOW)), (3, OTHER, None), (4, OTHER, None)]
    {
        add(&wallet, token(number, challenge, KEY), not_after);
        assert_eq!(wallet.shown().get(), i64::from(number));
    }
    drop(wallet);
    let wallet = open(&path);
    assert_eq!(wallet.shown().get(), 4, "what lay in the file");
    wallet.drop_retired(NOW);
    assert_eq!(wallet.shown().get(), 3);
    take(&wallet, OURS).unwrap();
    assert_eq!(wallet.shown().get(), 2);
    wallet.trim_others(&[OURS], 1);
    assert_eq!(wallet.shown().get(), 1);
    wallet.drop_keys(OTHER, &[KEY]);
    assert_eq!(wallet.shown().get(), 0);
}

#[test]
fn a_key_or_an_excess_of_parked_tokens_can_be_dropped() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    let newer = TokenKeyId([0xA4; 32]);
    for number in 1..=4 {
        add(&wallet, token(number, OURS, KEY), None);
        add(&wallet, token(number + 10, OTHER, KEY), None);
    }
    add(&wallet, token(5, OURS, newer), None);
    assert_eq!(wallet.drop_keys(OURS, &[KEY]).count, 4);
    assert_eq!(wallet.trim_others(&[OURS], 3).count, 1);
    drop(wallet);
    let wallet = open(&path);
    assert_eq!(
        (wallet.level(OURS, NOW, &BTreeSet::new()), wallet.level(OTHER, NOW, &BTreeSet::new())),
        (1, 3)
    );
}

#[test]
fn a_torn_slot_costs_its_token_and_nothing_else() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    for number in 1..=3 {
        add(&wallet, token(number, OURS, KEY), None);
    }
    drop(wallet);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2 * SECTOR + 100..2 * SECTOR + 300].fill(0); // in the middle of the second slot
    bytes.extend_from_slice(&[9; MAX_TOKEN_LEN]); // and an append that did not finish
    std::fs::write(&path, &bytes).unwrap();
    let wallet = open(&path);
    assert_eq!(wallet.level(OURS, NOW, &BTreeSet::new()), 2);
    add(&wallet, token(4, OURS, KEY), None);
    add(&wallet, token(5, OURS, KEY), None);
    drop(wallet);
    assert_eq!(open(&path).level(OURS, NOW, &BTreeSet::new()), 4);
}

#[test]
fn another_file_is_refused_and_left_alone() {
    let (_directory, path) = directory();
    for contents in [&b"notes"[..], &[b'x'; 2_000]] {
        std::fs::write(&path, contents).unwrap();
        let error = Wallet::open(&path, false, Position::Last).err().unwrap().to_string();
        assert!(error.contains("is not a postern wallet") && error.contains("move this one away"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), contents);
    }
}

#[tokio::test]
async fn a_failed_write_loses_its_tokens_and_counts_them_and_no_slot() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    for number in 1..=4 {
        add(&wallet, token(number, OURS, KEY), None);
    }
    take(&wallet, OURS).unwrap();
    wallet.contents.lock().file = Arc::new(File::open(&path).unwrap()); // cannot be written
    wallet.add(Unspent { token: token(5, OURS, KEY), not_after: None }).unwrap_err();
    assert_eq!(wallet.contents.lock().free.len(), 1);
    let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
    let supply = Supply::new(wallet, recorder.clone());
    supply.adopt(Arc::new(named(None, &[], 1)), vec![OURS], true);
    assert!(supply.take(Wanted::Any).await.is_err());
    supply.give_up(OURS);
    assert!(supply.add(Unspent { token: token(5, OURS, KEY), not_after: None }).is_err());
    let fates = |fate| recorder.fates(fate);
    assert_eq!((fates(Fate::Unwritten), fates(Fate::Superseded), recorder.wallet()), (2, 2, 0));
    let contents =
        Contents::read(File::open(&path).unwrap(), std::fs::metadata(&path).unwrap().len()).unwrap();
    assert_eq!((contents.held.len(), contents.free.len()), (3, 1));
}

/// On a slow disk, a request took a second token of the old key, and was answered 502.
#[test]
fn no_token_of_a_doubted_key_is_taken_while_the_disk_delays_its_removal() {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (_directory, path) = directory();
        let wallet = Wallet::open(&path, true, Position::Last).unwrap();
        let current = Arc::new(named(None, &[], 1));
        (1..=2).for_each(|number| add(&wallet, token(number, current.digest, KEY), None));
        let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
        let supply = Supply::new(wallet, recorder);
        supply.adopt(current.clone(), vec![], true);
        supply.doubt(&token(1, current.digest, KEY));
        let (release, disk) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || disk.recv());
        let mut settling = std::pin::pin!(supply.settle_doubts(&current, true, |_| false));
        tokio::select! {
            biased;
            () = &mut settling => panic!("the tokens are still there"),
            () = std::future::ready(()) => {}
        }
        let demand = supply.demand();
        assert_eq!((demand.level, demand.has_doubts), (0, true));
        release.send(()).unwrap();
        settling.await;
        let demand = supply.demand();
        assert_eq!((demand.level, demand.has_doubts), (0, false));
    });
}

#[tokio::test]
async fn doubts_are_settled_for_the_gateways_present_challenge_alone() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    let (old, new) = (Arc::new(named(None, &[], 1)), Arc::new(named(None, &[], 2)));
    add(&wallet, token(1, old.digest, KEY), None);
    let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
    let supply = Supply::new(wallet, recorder);
    supply.adopt(new, vec![old.digest], true);
    supply.doubt(&token(1, old.digest, KEY));
    supply.settle_doubts(&old, true, |_| true).await; // an attempt that began before the gateway's answer
    assert!(supply.demand().has_doubts);
    assert_eq!(supply.wallet.level(old.digest, NOW, &BTreeSet::new()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_comes_back_is_taken_by_a_request_that_waits() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    let current = Arc::new(named(None, &[], 1));
    add(&wallet, token(1, current.digest, KEY), None);
    let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
    let supply = Arc::new(Supply::new(wallet, recorder));
    supply.adopt(current, vec![], true);
    let taken = supply.take(Wanted::Any).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let supply = supply.clone();
        async move { supply.wait(Wanted::Any).await.map(|_| ()) }
    });
    while supply.demand().waiting == 0 {
        tokio::task::yield_now().await;
    }
    drop(taken);
    waiting.await.unwrap().unwrap();
}

/// The gateway may name a known challenge by now.
#[tokio::test(start_paused = true)]
async fn a_request_is_refused_by_an_attempt_that_began_after_it_came() {
    let (_directory, path) = directory();
    let wallet = open(&path);
    let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
    let supply = Arc::new(Supply::new(wallet, recorder));
    supply.adopt(Arc::new(named(None, &[], 1)), vec![], true);
    let failure = || Failure {
        sentence: "too many marks".to_owned(),
        kind: FailureKind::Mark,
        next_attempt: tokio::time::Instant::now() + Duration::from_secs(240),
    };
    supply.begin_attempt();
    let waiting = tokio::spawn({
        let supply = supply.clone();
        async move { supply.wait(Wanted::Any).await.map(|_| ()) }
    });
    while supply.demand().waiting == 0 {
        tokio::task::yield_now().await;
    }
    supply.end_attempt(Some(failure()));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished() && supply.demand().asked_again);
    supply.begin_attempt();
    supply.end_attempt(Some(failure()));
    assert!(waiting.await.unwrap().is_err());
}
