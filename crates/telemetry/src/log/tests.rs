use super::*;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// Returns the lines written while `work` logs.
fn written(limit: &Limit, work: impl FnOnce()) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = std::sync::Mutex::new(file.reopen().unwrap());
    let subscriber = fmt().with_writer(writer).with_ansi(false).finish().with(limit.clone());
    tracing::subscriber::with_default(subscriber, work);
    std::fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned).collect()
}

fn storm(lines: u32) {
    for number in 0..lines {
        tracing::error!(number, "the disk is full");
    }
}

#[test]
fn a_storm_is_some_lines_and_a_number() {
    let limit = Limit::default();
    let lines = written(&limit, || storm(1_200));
    assert_eq!(lines.len(), BURST as usize, "{lines:?}");
    let told = written(&limit, || limit.log_omitted());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("ERROR"), "{told:?}");
    assert!(
        told[0].contains("more lines like this one were left out: the disk is full number=5"),
        "{told:?}"
    );
    assert!(told[0].contains("left_out=1195"), "{told:?}");
    assert_eq!(written(&limit, || limit.log_omitted()).len(), 0, "it is told once");
}

#[test]
fn each_place_has_its_own_budget_and_other_levels_have_none() {
    let limit = Limit::default();
    let lines = written(&limit, || {
        storm(100);
        tracing::error!("another place");
        (0..100).for_each(|_| tracing::warn!("a warning"));
        (0..100).for_each(|_| tracing::info!("what happens"));
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let counts = ["the disk is full", "another place", "a warning", "what happens"].map(count);
    assert_eq!(counts, [5, 1, 5, 100]);
    assert_eq!(limit.0.places.lock().len(), 3);
}

#[test]
fn a_budget_comes_back_a_line_at_a_time() {
    let start = Instant::now();
    let mut budget = Budget::full(start, Level::ERROR);
    let mut taken = |now| (0..10).filter(|_| budget.take(now)).count();
    assert_eq!(taken(start), 5);
    assert_eq!(taken(start + INTERVAL - Duration::from_millis(1)), 0);
    assert_eq!(taken(start + INTERVAL), 1);
    assert_eq!(taken(start + INTERVAL * 3), 2);
    assert_eq!(taken(start + INTERVAL * 3 + INTERVAL * 3 / 2), 1);
    assert_eq!(taken(start + INTERVAL * 5), 1, "the half before counts");
    assert_eq!(taken(start + INTERVAL * 1_000), 5, "no more than a burst is saved up");
}

#[test]
fn a_long_line_is_cut_when_it_is_repeated() {
    let limit = Limit::default();
    let long = "ä".repeat(10_000);
    written(&limit, || (0..6).for_each(|_| tracing::warn!("{long}")));
    let told = written(&limit, || limit.log_omitted());
    assert!(told[0].chars().count() < SHOWN + 200 && told[0].contains('…'), "{}", told[0]);
}

#[test]
fn the_default_covers_every_crate_of_ours_and_quiets_the_rest() {
    assert_eq!(
        filter(None, DEFAULT_FILTER).unwrap().to_string(),
        "postern::access=info,tokio_postgres=off,postern=info,hickory=off,warn"
    );
    assert_eq!(
        filter(Some(""), DEFAULT_FILTER).unwrap().to_string(),
        "postern::access=info,tokio_postgres=off,postern=info,hickory=off,warn"
    );
    assert_eq!(
        filter(Some("debug"), QUIET_FILTER).unwrap().to_string(),
        "postern::access=info,tokio_postgres=off,hickory=off,debug"
    );
}

/// Returns the log of a warning of the resolver and one of another crate.
fn logged(rust_log: Option<&str>) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = std::sync::Mutex::new(file.reopen().unwrap());
    let filter = filter(rust_log, DEFAULT_FILTER).unwrap();
    let subscriber = fmt().with_max_level(LevelFilter::TRACE).with_writer(writer).finish().with(filter);
    tracing::subscriber::with_default(subscriber, || {
        tracing::warn!(target: "hickory_net::udp", "an answer to another question: secret.example");
        tracing::warn!(target: "hyper", "something else");
    });
    std::fs::read_to_string(file.path()).unwrap()
}

#[test]
fn the_resolver_is_silent_unless_it_is_named() {
    for rust_log in [None, Some("trace"), Some("debug,postern_gateway=trace,")] {
        let text = logged(rust_log);
        assert!(text.contains("something else") && !text.contains("secret.example"), "{rust_log:?}: {text}");
    }
    assert!(logged(Some("hickory_net=warn")).contains("secret.example"));
}

#[test]
fn a_bad_filter_is_said_in_a_sentence() {
    let error = filter(Some("postern=loud"), QUIET_FILTER).unwrap_err().to_string();
    assert!(error.starts_with("the environment variable RUST_LOG = \"postern=loud\" is not a log filter: "));
}
