//! A real Jaeger, on its own ports, and its answers.

use super::{PATIENCE, eventually, root};
use postern_testkit::ports;
use postern_testkit::signal::signal;
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A Jaeger by the configuration that the project ships; killed when it is dropped.
pub struct Jaeger {
    binary: PathBuf,
    ports: Ports,
    child: Option<Child>,
    http: reqwest::Client,
}

#[derive(Clone, Copy)]
struct Ports {
    otlp: u16,
    query: u16,
    query_grpc: u16,
}

impl Jaeger {
    /// Starts a Jaeger, and waits until it answers queries.
    pub async fn start() -> Self {
        let binary = std::env::var_os("POSTERN_JAEGER").map(PathBuf::from);
        let binary = binary.expect("POSTERN_JAEGER names a Jaeger binary");
        let [otlp, query, query_grpc] = [(); 3].map(|()| ports::free());
        let ports = Ports { otlp, query, query_grpc };
        // No proxy: a machine that has one in its environment would use it for 127.0.0.1.
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let mut jaeger = Self { binary, ports, child: None, http };
        jaeger.launch().await;
        jaeger
    }

    /// Starts it, empty, on the ports it had before.
    pub async fn launch(&mut self) {
        let config = root().join("deploy/jaeger/jaeger.yaml");
        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(config);
        for (name, port) in [
            ("POSTERN_JAEGER_OTLP_HTTP", self.ports.otlp),
            ("POSTERN_JAEGER_QUERY", self.ports.query),
            ("POSTERN_JAEGER_QUERY_GRPC", self.ports.query_grpc),
        ] {
            command.env(name, format!("127.0.0.1:{port}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        self.child = Some(child);
        // It opens its listeners one after the other, and takes spans before all of them are open.
        eventually("Jaeger answers queries and takes spans", || async {
            std::net::TcpStream::connect(("127.0.0.1", self.ports.otlp)).ok()?;
            self.fetch("/api/services").await
        })
        .await;
    }

    /// Returns the URL to which a gateway sends its spans.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.otlp)
    }

    /// SIGTERM, and its end.
    pub fn terminate(mut self) {
        self.signal("TERM");
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "Jaeger ended with {status}");
    }

    /// SIGKILL, which loses all its traces.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }

    /// Freezes Jaeger: the kernel still accepts connections for it.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    fn signal(&self, name: &str) {
        signal(self.child.as_ref().expect("it runs").id(), name);
    }

    /// The body of a page; `None` when nothing answers.
    async fn fetch(&self, path: &str) -> Option<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports.query);
        let answer = self.http.get(&url).send().await.ok()?;
        let (status, body) = (answer.status(), answer.text().await.ok()?);
        assert!(status.is_success(), "{url}: {status}: {body}");
        Some(body)
    }

    /// Everything that it has of a service, as it returns it.
    async fn traces_json(&self, service: &str) -> String {
        self.fetch(&format!("/api/traces?service={service}&limit=10000")).await.unwrap()
    }

    /// Everything that it has of all services.
    pub async fn everything(&self) -> String {
        let services = self.fetch("/api/services").await.unwrap();
        let known: Value = serde_json::from_str(&services).unwrap();
        let mut all = services;
        // Without any it answers null.
        for service in known["data"].as_array().into_iter().flatten() {
            all += &self.traces_json(service.as_str().unwrap()).await;
        }
        all
    }

    /// The gateway's traces so far.
    pub async fn traces(&self) -> Vec<Trace> {
        let json: Value = serde_json::from_str(&self.traces_json("postern-gateway").await).unwrap();
        json["data"].as_array().unwrap().iter().map(Trace::of).collect()
    }

    /// The gateway's traces, as soon as `wanted` holds for them.
    pub async fn traces_when(&self, what: &str, wanted: impl Fn(&[Trace]) -> bool) -> Vec<Trace> {
        eventually(what, || async {
            let traces = self.traces().await;
            wanted(&traces).then_some(traces)
        })
        .await
    }

    /// Gives it a span of a service of the test's own, by OTLP over HTTP, with `text` as an attribute.
    pub async fn plant(&self, text: &str) {
        let span = serde_json::json!({
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "planted",
            "kind": 1, "startTimeUnixNano": now_nanos(), "endTimeUnixNano": now_nanos(),
            "attributes": [{"key": "planted", "value": {"stringValue": text}}],
        });
        let service = serde_json::json!({"key": "service.name", "value": {"stringValue": "planter"}});
        let resource = serde_json::json!({
            "resource": {"attributes": [service]}, "scopeSpans": [{"spans": [span]}],
        });
        let body = serde_json::json!({"resourceSpans": [resource]}).to_string();
        let url = format!("http://127.0.0.1:{}/v1/traces", self.ports.otlp);
        let post = self.http.post(&url).header("content-type", "application/json").body(body);
        let answer = post.send().await.unwrap();
        let (status, body) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{url}: {status}: {body}");
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        self.kill();
    }
}

/// As OTLP's JSON has it: a number of 64 bits, as text.
fn now_nanos() -> String {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos().to_string()
}

/// A trace as Jaeger has it.
#[derive(Debug)]
pub struct Trace {
    pub id: String,
    pub spans: Vec<Span>,
}

/// One of its spans. Times are in microseconds, cut off from nanoseconds: a border may be one off.
#[derive(Debug)]
pub struct Span {
    pub id: String,
    pub name: String,
    /// The id of the trace and of the span whose child it is.
    pub parent: Option<(String, String)>,
    pub start: u64,
    pub duration: u64,
    pub attributes: HashMap<String, Value>,
}

impl Trace {
    fn of(json: &Value) -> Self {
        let spans = json["spans"].as_array().unwrap();
        Self { id: text(&json["traceID"]), spans: spans.iter().map(Span::of).collect() }
    }

    /// The only span of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Span> {
        let mut found = self.spans.iter().filter(|span| span.name == name);
        let first = found.next();
        assert!(found.next().is_none(), "more than one {name}: {self:#?}");
        first
    }

    /// The only span of this name.
    pub fn span(&self, name: &str) -> &Span {
        self.find(name).unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// Returns the reason why the trace was kept.
    pub fn kept(&self) -> Option<&str> {
        self.find("request")?.word("postern.kept")
    }
}

impl Span {
    fn of(json: &Value) -> Self {
        let [parent] = &json["references"].as_array().unwrap()[..] else {
            assert_eq!(json["references"], serde_json::json!([]), "one parent or none");
            return Self::with_parent(json, None);
        };
        assert_eq!(parent["refType"], "CHILD_OF");
        Self::with_parent(json, Some((text(&parent["traceID"]), text(&parent["spanID"]))))
    }

    fn with_parent(json: &Value, parent: Option<(String, String)>) -> Self {
        let tags = json["tags"].as_array().unwrap().iter();
        Self {
            id: text(&json["spanID"]),
            name: text(&json["operationName"]),
            parent,
            start: json["startTime"].as_u64().unwrap(),
            duration: json["duration"].as_u64().unwrap(),
            attributes: tags.map(|tag| (text(&tag["key"]), tag["value"].clone())).collect(),
        }
    }

    pub fn end(&self) -> u64 {
        self.start + self.duration
    }

    pub fn word(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute)?.as_str()
    }

    pub fn number(&self, attribute: &str) -> Option<i64> {
        self.attributes.get(attribute)?.as_i64()
    }
}

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_else(|| panic!("{json} is no text")).to_owned()
}
