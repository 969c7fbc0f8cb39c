use super::*;

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_is_open() {
    let shutdown = Shutdown::new();
    let tunnel = shutdown.tracker().spawn(tokio::time::sleep(Duration::from_secs(5)));
    let waiting = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { shutdown.wait(LONG).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "no drain was requested yet");
    shutdown.drain();
    assert_eq!(waiting.await.unwrap(), Drained::Finished);
    assert!(tunnel.is_finished());
    shutdown.stopped().await; // the admin listener, which serves during the drain, ends on this
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_off_and_tells_who_is_left() {
    let shutdown = Shutdown::new();
    let tunnel = {
        let stop = shutdown.clone();
        shutdown.tracker().spawn(async move { stop.until_stopped(std::future::pending::<()>()).await })
    };
    shutdown.drain();
    let begun = tokio::time::Instant::now();
    assert_eq!(shutdown.wait(Duration::from_secs(30)).await, Drained::CutOff(1));
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
    assert_eq!(tunnel.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_was_set_overrides_the_callers() {
    let shutdown = Shutdown::new();
    let _open = shutdown.tracker().token();
    shutdown.set_deadline(Duration::from_secs(7));
    shutdown.drain();
    let begun = tokio::time::Instant::now();
    assert_eq!(shutdown.wait(LONG).await, Drained::CutOff(1));
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn stopping_does_not_wait_for_the_deadline() {
    let shutdown = Shutdown::new();
    let _open = shutdown.tracker().token();
    shutdown.stop();
    assert!(shutdown.is_draining());
    assert_eq!(shutdown.wait(LONG).await, Drained::CutOff(1));
}

/// Its tunnels may be gone before the wait sees the signal: workers have threads of their own.
#[tokio::test]
async fn a_second_signal_reports_what_was_open_when_it_came() {
    let (shutdown, mut reported) = (Shutdown::new(), Vec::new());
    let (tunnel, tracker) = (shutdown.tracker().token(), shutdown.tracker().clone());
    shutdown.count_tunnels(move || tracker.len());
    shutdown.drain();
    shutdown.stop();
    drop(tunnel);
    let report = |level, text: &str| reported.push((level, text.to_owned()));
    assert_eq!(shutdown.wait_reporting(LONG, report).await, Drained::CutOff(1));
    let said = "stopped: 1 open tunnel was cut off by the second signal".to_owned();
    assert_eq!(reported, [(Level::WARN, said)]);
}

#[test]
fn tasks_of_other_runtimes_are_waited_for_too() {
    let shutdown = Shutdown::new();
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (spawned, ready) = std::sync::mpsc::channel();
    let worker = std::thread::spawn({
        let shutdown = shutdown.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let task = shutdown.tracker().spawn(released);
                spawned.send(()).unwrap();
                task.await.unwrap().unwrap();
            });
        }
    });
    ready.recv().unwrap();
    shutdown.drain();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ended = runtime.block_on(async {
        let mut waiting = Box::pin(shutdown.wait(LONG));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
        assert!(early.is_err(), "the task of the other runtime is still open");
        release.send(()).unwrap();
        waiting.await
    });
    assert_eq!(ended, Drained::Finished);
    worker.join().unwrap();
}

/// Returns the reports of a drain of `deadline` seconds with a tunnel that ends after `open` seconds, each with its second.
async fn reported(deadline: u64, open: u64) -> Vec<(u64, tracing::Level, String)> {
    let shutdown = Shutdown::new();
    let tunnel = tokio::time::sleep(Duration::from_secs(open));
    let tunnel = shutdown.tracker().spawn(tunnel);
    shutdown.count_tunnels(|| 0);
    shutdown.count_tunnels(move || usize::from(!tunnel.is_finished()));
    shutdown.drain();
    let (begun, mut reported) = (tokio::time::Instant::now(), Vec::new());
    let report = |level, text: &str| reported.push((begun.elapsed().as_secs(), level, text.to_owned()));
    shutdown.wait_reporting(Duration::from_secs(deadline), report).await;
    reported
}

#[tokio::test(start_paused = true)]
async fn a_drain_logs_at_once_what_it_waits_for_and_repeats_it() {
    let all = reported(10, 5).await;
    let texts: Vec<_> = all.iter().map(|(at, level, text)| (*at, *level, text.as_str())).collect();
    let info = tracing::Level::INFO;
    let begin = "stopping: waiting for 1 open tunnel to end, for 10 s at most; a second Ctrl-C or SIGTERM \
        stops at once";
    let end = "stopped: everything that was open has ended by itself";
    let still = "still waiting for 1 open tunnel, for 7 s at most";
    assert_eq!(texts, [(0, info, begin), (3, info, still), (5, info, end)]);

    let last = reported(4, 5).await.pop().unwrap();
    assert_eq!(last, (4, tracing::Level::WARN, "stopped: 1 open tunnel was cut off after 4 s".to_owned()));
    assert_eq!(reported(10, 0).await, [], "there was nothing to wait for");
}

#[tokio::test]
async fn each_listener_hears_of_a_reload_once() {
    let shutdown = Shutdown::new();
    let (mut first, mut second) = (shutdown.reloads(), shutdown.reloads());
    shutdown.reload();
    shutdown.reload();
    first.next().await;
    second.next().await;
    let again = tokio::time::timeout(Duration::from_millis(50), first.next()).await;
    assert!(again.is_err(), "two requests before the first was handled are one");
}
