//! A real Prometheus with the rules that the project ships, its promtool, and their output.

use super::{PATIENCE, eventually};
use postern_testkit::ports;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The folder that holds both programs.
pub struct Programs(PathBuf);

impl Programs {
    /// In the folder that the environment names, or on PATH.
    pub fn find() -> Self {
        let both =
            |folder: &PathBuf| ["prometheus", "promtool"].iter().all(|name| folder.join(name).is_file());
        if let Some(named) = std::env::var_os("POSTERN_PROMETHEUS").map(PathBuf::from) {
            assert!(both(&named), "POSTERN_PROMETHEUS: no prometheus and promtool in {}", named.display());
            return Self(named);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).find(both);
        Self(found.expect("prometheus and promtool are on PATH, or in POSTERN_PROMETHEUS"))
    }

    /// The output of `promtool check metrics` for a page.
    pub fn check_metrics(&self, page: &str) -> Output {
        let mut command = Command::new(self.0.join("promtool"));
        command.args(["check", "metrics"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        // It reads to the end before it writes anything.
        child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// A Prometheus that scrapes one gateway every second; killed when it is dropped.
pub struct Prometheus {
    port: u16,
    child: Child,
    http: reqwest::Client,
    _home: TempDir,
}

impl Prometheus {
    /// One that answers queries. `gateway` is an admin listener.
    pub async fn start(programs: &Programs, gateway: SocketAddr) -> Self {
        let home = TempDir::new().unwrap();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/rules/*.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\nscrape_configs:\n\
             - job_name: postern-gateway\n  static_configs: [{{targets: [\"{gateway}\"]}}]\n"
        );
        let file = home.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let data = home.path().join("data");
        Self::with(
            programs,
            ["--config.file".as_ref(), file.as_os_str(), "--storage.tsdb.path".as_ref(), data.as_os_str()],
            home,
        )
        .await
    }

    /// One that answers queries, with these arguments and a port of its own. `home` goes with it.
    pub async fn with<'a>(
        programs: &Programs,
        arguments: impl IntoIterator<Item = &'a OsStr>,
        home: TempDir,
    ) -> Self {
        let port = ports::free();
        let mut command = Command::new(programs.0.join("prometheus"));
        command.args(arguments).arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // No proxy: a machine that has one in its environment would use it for 127.0.0.1.
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let prometheus = Self { port, child, http, _home: home };
        eventually("Prometheus is ready", || prometheus.fetch("/-/ready", &[])).await;
        prometheus
    }

    /// The body of a page; `None` when nothing answers, or it is not ready yet.
    async fn fetch(&self, path: &str, query: &[(&str, &str)]) -> Option<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        // A form: reqwest is built without queries here.
        let body: Vec<_> = query.iter().map(|(name, value)| format!("{name}={}", percent(value))).collect();
        let request = if body.is_empty() {
            self.http.get(&url)
        } else {
            let form = "application/x-www-form-urlencoded";
            self.http.post(&url).header("content-type", form).body(body.join("&"))
        };
        let answer = request.send().await.ok()?;
        let (status, body) = (answer.status(), answer.text().await.ok()?);
        if status.as_u16() == 503 {
            return None;
        }
        assert!(status.is_success(), "{url} {query:?}: {status}: {body}");
        Some(body)
    }

    async fn data(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let body = self.fetch(path, query).await.unwrap();
        let mut json: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(json["status"], "success", "{body}");
        json["data"].take()
    }

    /// The value of a query that has one.
    pub async fn value(&self, query: &str) -> Option<f64> {
        let data = self.data("/api/v1/query", &[("query", query)]).await;
        let [sample] = &data["result"].as_array().unwrap()[..] else {
            assert_eq!(data["result"], serde_json::json!([]), "{query}: more than one sample");
            return None;
        };
        Some(sample["value"][1].as_str().unwrap().parse().unwrap())
    }

    /// Waits until a query has this value.
    pub async fn value_is(&self, query: &str, expected: f64) {
        eventually(&format!("{query} is {expected}"), || async {
            (self.value(query).await? == expected).then_some(())
        })
        .await;
    }

    /// Each rule's name, health and error.
    pub async fn rules(&self) -> Vec<(String, String, String)> {
        let data = self.data("/api/v1/rules", &[]).await;
        let groups = data["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let text = |json: &Value| json.as_str().unwrap_or_default().to_owned();
        rules.map(|rule| (text(&rule["name"]), text(&rule["health"]), text(&rule["lastError"]))).collect()
    }

    /// The alerts that fire, or will when it goes on like this.
    pub async fn alerts(&self) -> Vec<String> {
        let data = self.data("/api/v1/alerts", &[]).await;
        let alerts = data["alerts"].as_array().unwrap().iter();
        alerts.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// SIGTERM, and its end.
    pub fn terminate(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "Prometheus ended with {status}");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// A value as it stands in a form.
fn percent(value: &str) -> String {
    value.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
