//! A real Prometheus with the rules that the project ships, its promtool, and their output.

use super::{PATIENCE, eventually, root};
use postern_testkit::ports;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
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

/// A sample's exemplar, as Prometheus has it.
#[derive(Debug)]
pub struct Exemplar {
    pub series: HashMap<String, String>,
    pub labels: HashMap<String, String>,
    pub value: f64,
}

/// A Prometheus that scrapes every second; killed when it is dropped.
pub struct Prometheus {
    port: u16,
    child: Child,
    http: reqwest::Client,
    _home: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus, and waits until it answers queries. `gateway` is an admin listener.
    pub async fn start(programs: &Programs, gateway: SocketAddr) -> Self {
        Self::scraping(programs, &[("postern-gateway", &[gateway])]).await
    }

    /// The same of several jobs, each with its admin listeners.
    pub async fn scraping(programs: &Programs, jobs: &[(&str, &[SocketAddr])]) -> Self {
        let home = TempDir::new().unwrap();
        let rules = root().join("deploy/prometheus/rules/*.yml");
        let mut config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\nscrape_configs:\n"
        );
        for (job, admins) in jobs {
            let targets: Vec<_> = admins.iter().map(ToString::to_string).collect();
            config += &format!("- job_name: {job}\n  static_configs: [{{targets: {targets:?}}}]\n");
        }
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

    /// Starts a Prometheus that answers queries, with these arguments, on its own port. `home` is removed with it.
    pub async fn with<'a>(
        programs: &Programs,
        arguments: impl IntoIterator<Item = &'a OsStr>,
        home: TempDir,
    ) -> Self {
        let port = ports::free();
        let mut command = Command::new(programs.0.join("prometheus"));
        command.args(arguments).arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.arg("--enable-feature=exemplar-storage");
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

    /// Every series of a query over the last `seconds`, with its labels and values.
    pub async fn range(&self, query: &str, seconds: u64) -> Vec<(HashMap<String, String>, Vec<f64>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (start, end) = ((now - seconds).to_string(), now.to_string());
        let range = [("query", query), ("start", &start), ("end", &end), ("step", "1")];
        let data = self.data("/api/v1/query_range", &range).await;
        let series = data["result"].as_array().unwrap().iter().map(|series| {
            let values = series["values"].as_array().unwrap().iter();
            let values = values.map(|value| value[1].as_str().unwrap().parse().unwrap()).collect();
            (serde_json::from_value(series["metric"].clone()).unwrap(), values)
        });
        series.collect()
    }

    /// Waits until a query has this value.
    pub async fn value_is(&self, query: &str, expected: f64) {
        eventually(&format!("{query} is {expected}"), || async {
            (self.value(query).await? == expected).then_some(())
        })
        .await;
    }

    /// Returns the exemplars of a query's series, since the start.
    pub async fn exemplars(&self, query: &str) -> Vec<Exemplar> {
        let range = [("query", query), ("start", "2000-01-01T00:00:00Z"), ("end", "2100-01-01T00:00:00Z")];
        let data = self.data("/api/v1/query_exemplars", &range).await;
        let all = data.as_array().unwrap().iter().flat_map(|one| {
            let labels = &one["seriesLabels"];
            one["exemplars"].as_array().unwrap().iter().map(|exemplar| Exemplar {
                series: serde_json::from_value(labels.clone()).unwrap(),
                labels: serde_json::from_value(exemplar["labels"].clone()).unwrap(),
                value: exemplar["value"].as_str().unwrap().parse().unwrap(),
            })
        });
        all.collect()
    }

    /// Each rule's name, health and error.
    pub async fn rules(&self) -> Vec<(String, String, String)> {
        let data = self.data("/api/v1/rules", &[]).await;
        let groups = data["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let text = |json: &Value| json.as_str().unwrap_or_default().to_owned();
        rules.map(|rule| (text(&rule["name"]), text(&rule["health"]), text(&rule["lastError"]))).collect()
    }

    /// Returns the alerts that fire, or will if their condition lasts.
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
