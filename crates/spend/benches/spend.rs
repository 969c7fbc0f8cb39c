//! `cargo bench -p postern-spend`: spends and hints a second, on one core, with the disk in the way as in earnest.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use postern_spend::{Embedded, Epoch, Fsync, Spend, SpendStore};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const EPOCH: Epoch = Epoch { key: TokenKeyId([1; 32]), expires: UnixSeconds(2_000_000_000), mark: None };
const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

fn open(fsync: Fsync) -> (TempDir, Arc<Embedded>) {
    // In the build's folder: the system's temporary directory may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let store = Embedded::open(directory.path(), fsync, NOW).expect("a new store");
    (directory, Arc::new(store))
}

fn fresh() -> SpentKey {
    SpentKey::from_bytes(rand::random())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// One caller after the other on one current_thread runtime, as on each core of the gateway.
fn interval(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("embedded, fsync every second");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(10));
    let (_directory, store) = open(Fsync::Interval(Duration::from_secs(1)));
    let runtime = runtime();
    let spend = |key: SpentKey| runtime.block_on(store.spend(&key, &EPOCH, NOW));
    group.bench_function("spend, fresh", |bencher| {
        bencher.iter_batched(fresh, |key| assert_eq!(spend(key), Ok(Spend::Admitted)), BatchSize::LargeInput);
    });
    let spent = fresh();
    assert_eq!(spend(spent), Ok(Spend::Admitted));
    group.bench_function("spend, replay", |bencher| bencher.iter(|| black_box(spend(spent))));
    group.bench_function("check, spent", |bencher| {
        bencher.iter(|| black_box(runtime.block_on(store.check(&spent, &EPOCH))));
    });
    group.bench_function("check, fresh", |bencher| {
        bencher.iter_batched(
            fresh,
            |key| black_box(runtime.block_on(store.check(&key, &EPOCH))),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Group commit: callers that wait share a sync.
fn always(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("embedded, fsync always");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    let (_directory, store) = open(Fsync::Always);
    let runtime = runtime();
    for callers in [1, 64] {
        group.bench_function(format!("spend, {callers} callers"), |bencher| {
            bencher.iter_custom(|spends| runtime.block_on(looping(&store, callers, spends)));
        });
    }
    group.finish();
}

/// The time `callers` tasks take for `spends` spends between them (each at least one).
async fn looping(store: &Arc<Embedded>, callers: u64, spends: u64) -> Duration {
    let each = spends.div_ceil(callers);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for _ in 0..each {
                assert_eq!(store.spend(&fresh(), &EPOCH, NOW).await, Ok(Spend::Admitted));
            }
        });
    }
    tasks.join_all().await;
    start.elapsed().mul_f64(spends as f64 / (each * callers) as f64)
}

criterion_group!(benches, interval, always);
criterion_main!(benches);
