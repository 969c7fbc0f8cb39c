//! Measures the cost of records: `cargo bench --profile release -p postern-spend --bench footprint -- 1000000`.
//!
//! Spends that many fresh keys, then opens the store again, and prints bytes and times. The directory is made in
//! the build's folder and removed.

use postern_spend::{Embedded, Epoch, Fsync, Spend, SpendStore};
use postern_token::{SpentKey, TokenKeyId, UnixSeconds};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const EPOCH: Epoch = Epoch { key: TokenKeyId([1; 32]), expires: UnixSeconds(2_000_000_000), mark: None };
const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let records: u64 = std::env::args().find_map(|count| count.parse().ok()).unwrap_or(1_000_000);
    let directory = tempfile::tempdir_in("target").or_else(|_| tempfile::tempdir())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let open = || Embedded::open(directory.path(), Fsync::Interval(Duration::from_secs(1)), UnixSeconds(1));

    let store = open()?;
    let before = resident()?;
    let mut times = Vec::with_capacity(usize::try_from(records)?);
    let (start, cpu) = (Instant::now(), on_cpu()?);
    runtime.block_on(async {
        for _ in 0..records {
            let key = SpentKey::from_bytes(rand::random());
            let start = Instant::now();
            let answer = store.spend(&key, &EPOCH, NOW).await;
            times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
            assert_eq!(answer, Ok(Spend::Admitted));
        }
    });
    let (took, busy) = (start.elapsed(), on_cpu()? - cpu);
    let grown = resident()?.saturating_sub(before).saturating_sub(4 * records); // `times` is not the store's
    times.sort_unstable();
    let at = |share: f64| f64::from(times[((times.len() - 1) as f64 * share) as usize]) / 1000.0;
    let rate = |time: Duration| records as f64 / time.as_secs_f64();
    println!("{records} spends in {took:.2?}: {:.0} a second, {:.0} a second of CPU", rate(took), rate(busy));
    println!(
        "  each: p50 {:.2} µs, p99 {:.2} µs, p99.99 {:.1} µs, max {:.0} µs",
        at(0.5),
        at(0.99),
        at(0.9999),
        at(1.0)
    );
    println!(
        "  memory: {:.1} bytes a record by the allocator's count, {:.1} by resident size",
        store.stats().memory_bytes as f64 / records as f64,
        grown as f64 / records as f64
    );
    drop(store);

    let mut blocks = 0;
    for entry in fs::read_dir(directory.path())? {
        blocks += entry?.metadata()?.blocks() * 512;
    }
    println!("  disk: {:.1} bytes a record, in blocks", blocks as f64 / records as f64);
    let (start, cpu) = (Instant::now(), on_cpu()?);
    let store = open()?;
    println!("  opened again in {:.0?}, {:.0?} of it on the CPU", start.elapsed(), on_cpu()? - cpu);
    assert_eq!(store.stats().records, records);
    Ok(())
}

/// The time this thread has run, which other work on the machine does not stretch.
fn on_cpu() -> Result<Duration, Box<dyn std::error::Error>> {
    let schedule = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = schedule.split_whitespace().next().ok_or("an empty schedstat")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

/// Resident bytes of this process.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
