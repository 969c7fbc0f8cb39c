//! The cost of a power cut: a wallet on a disk that forgets unsynced writes.

use super::*;
use postern_testkit::forgetful::{ForgetfulDisk, Survivors, Syncs};
use postern_token::{Token, TokenInput, TokenType};

const NOW: UnixSeconds = UnixSeconds(1_000);
const OURS: ChallengeDigest = ChallengeDigest([0xA1; 32]);
const KEYS: [TokenKeyId; 2] = [TokenKeyId([0xB1; 32]), TokenKeyId([0xB2; 32])];

/// Runs 40 lives of one wallet, each ended by a power cut after 0 to 39 steps of the disk, and fails if a token comes back that
/// was given out or dropped before. `seed` selects which unsynced writes survive.
fn lives(fsync: bool, syncs: Syncs, seed: u64) -> Result<(), String> {
    let disk = ForgetfulDisk::mount();
    disk.set_syncs(syncs);
    let path = disk.path().join("wallet");
    let (mut number, mut gone) = (0, HashSet::new());
    for steps in 0..40 {
        disk.cut_after(steps);
        _ = use_until_the_power_fails(&path, fsync, &mut number, &mut gone);
        let survivors = if seed == 0 { Survivors::None } else { Survivors::Some(seed * 1_000 + steps) };
        disk.restart(survivors);
        let wallet = Wallet::open(&path, fsync, Position::Last)
            .map_err(|error| format!("after {steps} steps: {error}"))?;
        let held: Vec<_> =
            wallet.contents.lock().held.iter().map(|held| held.unspent.token.nonce()).collect();
        if held.iter().any(|nonce| gone.contains(nonce)) {
            return Err(format!("after {steps} steps, {survivors:?}: a token that was gone is back"));
        }
    }
    assert!(gone.len() > 100, "only {} tokens were given out: the test shows too little", gone.len());
    Ok(())
}

/// Adds and removes tokens in every way until an error; `gone` collects the nonces of those that may have been sent.
fn use_until_the_power_fails(
    path: &Path,
    fsync: bool,
    number: &mut u32,
    gone: &mut HashSet<Nonce>,
) -> Result<(), WalletError> {
    let wallet = Wallet::open(path, fsync, Position::Last)?;
    loop {
        wallet.reserve(3)?;
        for key in [KEYS[0], KEYS[0], KEYS[1], KEYS[1]] {
            *number += 1;
            let mut nonce = [0; 32];
            nonce[..4].copy_from_slice(&number.to_be_bytes());
            let input = TokenInput::new(TokenType::BlindRsa2048, Nonce(nonce), OURS, key);
            let token = Token::assemble(&input, &[7; 256]).unwrap();
            wallet.add(Unspent { token, not_after: None })?;
        }
        let of = |key| {
            let contents = wallet.contents.lock();
            let of_key = contents.held.iter().filter(|held| held.unspent.token.token_key_id() == key);
            of_key.map(|held| held.unspent.token.nonce()).collect::<Vec<_>>()
        };
        let dropped = of(KEYS[1]);
        wallet.drop_keys(OURS, &[KEYS[1]]).written?;
        gone.extend(dropped);
        while let Some(taken) = wallet.take(OURS, NOW, &BTreeSet::new())? {
            gone.insert(taken.token.nonce());
        }
    }
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn with_fsync_no_token_that_was_given_out_comes_back() {
    for seed in 0..10 {
        lives(true, Syncs::Kept, seed).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

/// Shows the purpose of the setting, and that the test detects a disk that ignores it.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn without_fsync_or_on_a_disk_that_ignores_it_tokens_come_back() {
    for (fsync, syncs) in [(false, Syncs::Kept), (true, Syncs::Ignored)] {
        let found = (0..10).find_map(|seed| lives(fsync, syncs, seed).err());
        assert!(found.is_some_and(|reason| reason.contains("is back")), "{fsync} {syncs:?}");
    }
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_wallet_that_was_being_made_opens() {
    for (steps, seed) in (1..4).flat_map(|steps| (0..60).map(move |seed| (steps, seed))) {
        let disk = ForgetfulDisk::mount();
        let path = disk.path().join("wallet");
        disk.cut_after(steps);
        _ = Wallet::open(&path, true, Position::Last);
        disk.restart(Survivors::Some(seed));
        Wallet::open(&path, true, Position::Last)
            .unwrap_or_else(|error| panic!("{steps} steps, seed {seed}: {error}"));
    }
}

/// A wallet that was made survives a power cut, because its tokens have been paid for.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_wallet_that_was_made_stays() {
    let disk = ForgetfulDisk::mount();
    let path = disk.path().join("wallet");
    drop(Wallet::open(&path, true, Position::Last).unwrap());
    disk.restart(Survivors::None);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SECTOR as u64);
}
