//! The admin listener, and single values of `/metrics`.

use super::proxy::read_response;
use super::{PATIENCE, eventually};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Status and body of a GET; `None` when nothing answers.
pub async fn get(admin: SocketAddr, path: &str) -> Option<(u16, String)> {
    get_with(admin, path, "").await
}

/// The same with more fields, each with a line break behind it.
async fn get_with(admin: SocketAddr, path: &str, fields: &str) -> Option<(u16, String)> {
    let asking = async {
        let mut stream = BufReader::new(TcpStream::connect(admin).await.ok()?);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n{fields}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let response = read_response(&mut stream).await.ok()?;
        Some((response.status, response.body))
    };
    timeout(PATIENCE, asking).await.unwrap()
}

/// The body of a page that answers 200.
pub async fn page(admin: SocketAddr, path: &str) -> String {
    let (status, body) = get(admin, path).await.unwrap();
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// `/metrics` as Prometheus requests it.
pub async fn open_metrics(admin: SocketAddr) -> String {
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (status, body) = get_with(admin, "/metrics", accept).await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The first `snapshots` snapshots of the live page's stream, with what comes before them.
pub async fn events(admin: SocketAddr, snapshots: usize) -> String {
    let listening = async {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        let request = format!("GET /events HTTP/1.1\r\nHost: {admin}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut output, mut bytes) = (String::new(), vec![0; 1 << 16]);
        while output.matches("event: snapshot\n").count() <= snapshots {
            let read = stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "the stream ended: {output}");
            output.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        output
    };
    timeout(PATIENCE, listening).await.unwrap()
}

/// `/metrics` at one moment.
pub struct Metrics(String);

impl Metrics {
    pub async fn of(admin: SocketAddr) -> Self {
        Self(page(admin, "/metrics").await)
    }

    /// The sample `series`, such as `postern_requests_total{outcome="opened"}`; 0 when there is none.
    pub fn value(&self, series: &str) -> u64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    pub fn requests(&self, outcome: &str) -> u64 {
        self.value(&format!("postern_requests_total{{outcome=\"{outcome}\"}}"))
    }

    pub fn agent_requests(&self, outcome: &str) -> u64 {
        self.value(&format!("postern_agent_requests_total{{outcome=\"{outcome}\"}}"))
    }

    pub fn issued(&self) -> u64 {
        self.value("postern_tokens_issued_total{type=\"2\"}")
    }

    pub fn wallet(&self) -> u64 {
        self.value("postern_wallet_tokens{hop=\"last\"}")
    }
}

/// Returns the metrics as soon as `wanted` holds for them.
pub async fn metrics_when(admin: SocketAddr, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
    eventually(what, || async {
        let metrics = Metrics::of(admin).await;
        wanted(&metrics).then_some(metrics)
    })
    .await
}
