//! Power cuts of the embedded store: it runs on a disk that forgets what was not synced.
//!
//! A machine lives several times. In each life threads spend tokens of several keys until the power fails at some step of
//! the disk; then the store is opened again, and what it had answered is held against what it answers now.

use postern_spend::{Embedded, Epoch, Fsync, Spend, SpendStore, Unknown};
use postern_testkit::forgetful::{ForgetfulDisk, Survivors, Syncs};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const NOW: UnixSeconds = UnixSeconds(1_000);
/// The end of the epochs that are retired.
const END: UnixSeconds = UnixSeconds(2_000);
/// The end of the others, which moves up.
const FAR: u64 = 1_000_000;
const THREADS: u64 = 3;

/// The store's answers, in all lives.
#[derive(Default)]
struct Answered {
    admitted: Vec<(TokenKeyId, SpentKey)>,
    retired: HashSet<TokenKeyId>,
}

/// A machine whose power fails.
struct Machine {
    disk: ForgetfulDisk,
    /// Not made yet, and neither is the directory above it.
    place: PathBuf,
    random: StdRng,
    answered: Mutex<Answered>,
}

impl Machine {
    fn new(seed: u64, syncs: Syncs) -> Self {
        let disk = ForgetfulDisk::mount();
        disk.set_syncs(syncs);
        let place = disk.path().join("data/spent");
        Self { disk, place, random: StdRng::seed_from_u64(seed), answered: Mutex::default() }
    }

    fn open(&self, fsync: Fsync) -> Result<Embedded, String> {
        Embedded::open(&self.place, fsync, NOW).map_err(|error| format!("the store does not open: {error}"))
    }

    fn survivors(&mut self) -> Survivors {
        if self.random.random_bool(0.4) { Survivors::None } else { Survivors::Some(self.random.random()) }
    }

    /// Spends from several threads, and retires a key, until the power fails.
    fn spend_until_the_power_fails(&mut self, store: &Embedded, life: u8) {
        let seeds: Vec<u64> = (0..THREADS).map(|_| self.random.random()).collect();
        let machine = &*self;
        std::thread::scope(|scope| {
            for seed in seeds {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    while machine.disk.is_on() {
                        // The expiry moves up now and then, which rewrites a header.
                        let expires = UnixSeconds(FAR + u64::from(life) * 10 + random.random_range(0..3));
                        let lasting = Epoch { key: key(random.random_range(0..2)), expires, mark: None };
                        let ending = Epoch { key: key(100 + life), expires: END, mark: None };
                        machine.spend(store, if random.random_bool(0.2) { ending } else { lasting });
                    }
                });
            }
            scope.spawn(|| machine.retire(store));
        });
    }

    /// Presents a token, twice.
    fn spend(&self, store: &Embedded, epoch: Epoch) {
        let token = SpentKey::from_bytes(rand::random());
        if block_on(store.spend(&token, &epoch, NOW)) == Ok(Spend::Admitted) {
            self.answered.lock().unwrap().admitted.push((epoch.key, token));
            assert_ne!(block_on(store.spend(&token, &epoch, NOW)), Ok(Spend::Admitted));
        }
    }

    /// Drops the epochs that end at [`END`], as the gateway does when both clocks agree on it for an hour.
    fn retire(&self, store: &Embedded) {
        let (began, hour) = (Instant::now(), Duration::from_secs(3600));
        _ = store.drop_expired(END, began);
        let before: Vec<_> = (0..u8::MAX).map(key).filter(|key| store.has_retired(*key)).collect();
        if matches!(store.drop_expired(END.saturating_add(hour), began + hour), Ok(1..)) {
            let retired =
                (0..u8::MAX).map(key).filter(|key| store.has_retired(*key) && !before.contains(key));
            self.answered.lock().unwrap().retired.extend(retired);
        }
    }

    /// The store stands by everything it has answered before the power failed, or the reason why not.
    fn stands(&self) -> Result<(), String> {
        let store = self.open(Fsync::Always)?;
        let answered = self.answered.lock().unwrap();
        for key in &answered.retired {
            if !store.has_retired(*key) {
                return Err(format!("{key:?} had been retired and is not"));
            }
        }
        for (key, token) in &answered.admitted {
            let epoch = Epoch { key: *key, expires: UnixSeconds(FAR), mark: None };
            match block_on(store.spend(token, &epoch, NOW)) {
                Ok(Spend::AlreadySpent) => {}
                Err(Unknown::EpochRetired) if store.has_retired(*key) => {}
                other => {
                    return Err(format!("a token of {key:?} that had been admitted was answered {other:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Some lives of a machine with `Fsync::Always`; how many tokens were admitted in all.
fn lives(seed: u64, syncs: Syncs) -> Result<usize, String> {
    let mut machine = Machine::new(seed, syncs);
    for life in 0..6 {
        let steps = 1 << machine.random.random_range(0..8_u32);
        machine.disk.cut_after(machine.random.random_range(steps..2 * steps));
        if let Ok(store) = machine.open(Fsync::Always) {
            machine.spend_until_the_power_fails(&store, life);
        }
        assert!(!machine.disk.is_on());
        let survivors = machine.survivors();
        machine.disk.restart(survivors);
        machine.stands().map_err(|reason| format!("seed {seed}, life {life}, {survivors:?}: {reason}"))?;
    }
    Ok(machine.answered.lock().unwrap().admitted.len())
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn with_fsync_always_nothing_that_was_answered_is_lost() {
    let admitted: usize =
        (0..20).map(|seed| lives(seed, Syncs::Kept).unwrap_or_else(|reason| panic!("{reason}"))).sum();
    assert!(admitted > 200, "only {admitted} tokens were admitted: the test shows too little");
}

/// The tests fail on a disk that lies about its syncs, so they can fail.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_disk_that_ignores_syncs_is_found_out() {
    for syncs in [Syncs::Ignored, Syncs::OfFilesOnly] {
        let found = (0..20).find_map(|seed| lives(seed, syncs).err());
        assert!(found.is_some(), "{syncs:?}");
    }
}

/// One step after the other: the directory is made, an epoch is created, its expiry moves, it is retired.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn the_power_may_fail_at_every_step_of_an_epoch() {
    for survivors in [Survivors::None, Survivors::Some(1), Survivors::Some(2), Survivors::Some(3)] {
        for steps in 0.. {
            let machine = Machine::new(0, Syncs::Kept);
            machine.disk.cut_after(steps);
            if let Ok(store) = machine.open(Fsync::Always) {
                for expires in [UnixSeconds(END.0 - 2), UnixSeconds(END.0 - 1), END] {
                    machine.spend(&store, Epoch { key: key(1), expires, mark: None });
                }
                machine.spend(&store, Epoch { key: key(2), expires: UnixSeconds(FAR), mark: None });
                machine.spend(&store, Epoch { key: key(2), expires: UnixSeconds(FAR + 1), mark: None });
                machine.retire(&store);
            }
            let finished = machine.disk.is_on();
            machine.disk.restart(survivors);
            machine.stands().unwrap_or_else(|reason| panic!("after {steps} steps, {survivors:?}: {reason}"));
            if finished {
                assert!(steps > 15 && machine.answered.lock().unwrap().retired.len() == 1, "{steps} steps");
                break;
            }
        }
    }
}

/// Tokens admitted before the last sync stay spent; later ones may be spent once more, and not twice.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn with_an_interval_only_the_last_of_it_may_be_spent_once_more() {
    let epoch = Epoch { key: key(1), expires: UnixSeconds(FAR), mark: None };
    let mut lost = 0;
    for seed in 0..20 {
        let mut machine = Machine::new(seed, Syncs::Kept);
        let store = machine.open(Fsync::Interval(Duration::from_millis(5))).unwrap();
        (0..200).for_each(|_| machine.spend(&store, epoch));
        let waiting = Instant::now();
        while !machine.disk.has_all_synced() {
            assert!(waiting.elapsed() < Duration::from_secs(60), "nothing is synced");
            std::thread::sleep(Duration::from_millis(1));
        }
        let synced = std::mem::take(&mut machine.answered.lock().unwrap().admitted);
        machine.disk.cut_after(machine.random.random_range(1..300));
        while machine.disk.is_on() {
            machine.spend(&store, epoch);
        }
        drop(store);
        let survivors = machine.survivors();
        machine.disk.restart(survivors);

        let recent = std::mem::replace(&mut machine.answered.lock().unwrap().admitted, synced);
        machine.stands().unwrap_or_else(|reason| panic!("seed {seed}, {survivors:?}: {reason}"));
        let store = machine.open(Fsync::Always).unwrap();
        for (_, token) in recent {
            let again = block_on(store.spend(&token, &epoch, NOW));
            lost += usize::from(again == Ok(Spend::Admitted));
            assert_eq!(
                block_on(store.spend(&token, &epoch, NOW)),
                Ok(Spend::AlreadySpent),
                "seed {seed}: {again:?}"
            );
        }
    }
    assert!(lost > 0, "no power cut cost anything: the test shows nothing");
}

fn key(number: u8) -> TokenKeyId {
    TokenKeyId([number; 32])
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
