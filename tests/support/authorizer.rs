//! A service of an operator's that knows whose API keys are good, as `[authorizer]` asks one.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

type Rule = Box<dyn Fn(&str) -> (u16, String) + Send>;

/// The service; it ends with the test.
#[derive(Clone)]
pub struct Service {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    rule: Rule,
    delay: Duration,
    asked: Vec<String>,
    open: usize,
    most_open: usize,
}

impl Service {
    /// Answers by `rule`, from a key to a status and a body.
    pub async fn start(rule: impl Fn(&str) -> (u16, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let rule: Rule = Box::new(rule);
        let state = State { rule, delay: Duration::ZERO, asked: Vec::new(), open: 0, most_open: 0 };
        let service = Self { address, state: Arc::new(Mutex::new(state)) };
        let serving = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = serving.clone();
                let answer = service_fn(move |request| service.clone().answer(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        service
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/authorize"));
        assert_eq!(request.headers()["content-type"], "application/json");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let question: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(question["version"], 1);
        let key = question["api_key"].as_str().unwrap().to_owned();
        let ((status, text), delay) = {
            let state = &mut *self.state.lock().unwrap();
            state.open += 1;
            state.most_open = state.most_open.max(state.open);
            let answer = (state.rule)(&key);
            state.asked.push(key);
            (answer, state.delay)
        };
        tokio::time::sleep(delay).await;
        self.state.lock().unwrap().open -= 1;
        Ok(Response::builder().status(status).body(Full::from(text)).unwrap())
    }

    /// The keys that it was asked about since the last time.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// The most questions that it had at once.
    pub fn most_open(&self) -> usize {
        self.state.lock().unwrap().most_open
    }

    pub fn set(&self, delay: Duration, rule: impl Fn(&str) -> (u16, String) + Send + 'static) {
        let state = &mut *self.state.lock().unwrap();
        (state.delay, state.rule) = (delay, Box::new(rule));
    }

    /// The section `[authorizer]` of an issuer, with `more` in it.
    pub fn section(&self, more: &str) -> String {
        format!("[authorizer]\nurl = \"http://{}/authorize\"\n{more}", self.address)
    }
}
