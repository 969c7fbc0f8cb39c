use super::*;
use crate::catalogue::Position;
use crate::config::GatewayConfig;
use crate::recorder::Recorder;
use crate::wallet::challenge::tests::named;
use crate::wallet::file::Wallet;
use postern_daemon::readiness::Readiness;
use postern_token::Mark;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::timeout;

const ORIGIN: &str = "proxy.example";

/// Gateways of one fleet.
fn fleet(urls: &[String]) -> Vec<Arc<Gateway>> {
    let config =
        GatewayConfig { origin: Some(ORIGIN.to_owned()), ..GatewayConfig::at("http://unused.example") };
    urls.iter().map(|url| Arc::new(Gateway::new(url, &config).unwrap())).collect()
}

fn gateways(home: &TempDir, urls: &[String]) -> Arc<Gateways> {
    let path = home.path().join("wallet");
    let wallet = Wallet::open(&path, false, Position::Last).unwrap();
    let recorder = Arc::new(Recorder::new(Position::Last, wallet.shown().clone()));
    let supply = Arc::new(Supply::new(wallet, recorder));
    let (saved, gate) = (SavedChallenges::read(&path), Readiness::new().gate("gateway"));
    Arc::new(Gateways::new(fleet(urls), &saved, Ledger::new(), supply, gate))
}

#[tokio::test]
async fn a_caller_that_shares_a_probe_probes_itself_if_that_one_is_dropped() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap(); // accepts, and never answers
    let gateways = gateways(&home, &[format!("http://{}", listener.local_addr().unwrap())]);
    let [first, second] = [(); 2].map(|()| {
        let gateways = gateways.clone();
        tokio::spawn(async move {
            let endpoint = gateways.list.load()[0].clone();
            gateways.probe(&endpoint).await
        })
    });
    let _one = listener.accept().await.unwrap();
    first.abort();
    let other = timeout(Duration::from_secs(5), listener.accept()).await;
    assert!(other.is_ok() && !second.is_finished());
}

#[tokio::test]
async fn a_reload_is_no_change_of_a_fleets_marks() {
    let home = tempfile::tempdir().unwrap();
    let urls = [1, 2].map(|port| format!("http://127.0.0.1:{port}"));
    let gateways = gateways(&home, &urls);
    for (endpoint, number) in gateways.list.load().iter().zip([1, 2]) {
        let mark = Mark::new([number; 16]).second_name(ORIGIN);
        let current = named(None, &[ORIGIN, &mark], 1);
        let (key, digest) = (current.key.unwrap(), current.digest);
        gateways.take_in(endpoint, current.into()).unwrap();
        gateways
            .with_marks(endpoint, |marks| marks.sign(ORIGIN, digest, key, postern_token::UnixSeconds::now()))
            .unwrap();
    }
    let (marks, challenges) = (gateways.marks(), gateways.challenges().len());
    for _ in 0..9 {
        gateways.replace(fleet(&urls));
    }
    assert!(gateways.marks() == marks && challenges == 2);
    assert_eq!(gateways.challenges().len(), 2);
}
