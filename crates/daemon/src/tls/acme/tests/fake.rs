//! An authority in memory that behaves as a test requires. It checks no signatures and validates no names.

use super::super::order::Authority;
use super::super::{AcmeConfig, CERTIFICATE};
use crate::files::DataDir;
use bytes::Bytes;
use http::header::{LOCATION, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

pub(super) const NAME: &str = "gateway.example";
const URL: &str = "https://authority.example";
const DAY: i64 = 86_400;

/// Behaviour of the authority. Tests change it while it runs.
pub(super) struct Script {
    pub(super) names: Vec<String>,
    /// Validity, in seconds from now.
    pub(super) valid: [i64; 2],
    /// Replacement for the chain.
    pub(super) chain: Option<String>,
    pub(super) has_wrong_key: bool,
    /// Suggested renewal window (ARI), in RFC 3339.
    pub(super) window: Option<[&'static str; 2]>,
    /// Prefix of the paths that fail, and the fault.
    pub(super) fault: Option<(&'static str, Fault)>,
}

#[derive(Clone)]
pub(super) enum Fault {
    Panic,
    NoAnswer,
    /// (last part of the type, text)
    Problem(&'static str, String),
}

#[derive(Clone)]
pub(super) struct Fake(Arc<State>);

struct State {
    script: Mutex<Script>,
    issuer: Issuer<'static, KeyPair>,
    /// Chain of the order that was finalized last.
    given: Mutex<Option<String>>,
    accounts: Mutex<Vec<String>>,
    /// (time, path) of each request.
    seen: Mutex<Vec<(Instant, String)>>,
}

/// Public key of a certificate request.
struct Requested(Vec<u8>);

impl PublicKeyData for Requested {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl Fake {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let script = Script {
            names: vec![NAME.to_owned()],
            valid: [-3_600, 90 * DAY],
            chain: None,
            has_wrong_key: false,
            window: None,
            fault: None,
        };
        Self(Arc::new(State {
            script: Mutex::new(script),
            issuer: Issuer::new(params, KeyPair::generate().unwrap()),
            given: Mutex::default(),
            accounts: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    /// Changes the behaviour from now on.
    pub(super) fn now(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.script.lock());
    }

    /// Returns the authority for a server with its state in `folder`.
    pub(super) fn reached_from(&self, folder: &Path) -> Authority {
        let config = AcmeConfig {
            names: vec![NAME.to_owned()],
            agree_to_terms: true,
            state: folder.to_owned(),
            directory: format!("{URL}/directory"),
            ca: None,
            contact: None,
        };
        let (folder, fake) = (Arc::new(DataDir::open(folder).unwrap()), self.clone());
        Authority::reached_by(Arc::new(config), folder, Arc::new(move |_| Ok(Box::new(fake.clone()))))
    }

    /// Writes a certificate of this period, in seconds from now, and its key to a file of `folder`.
    pub(super) fn write(&self, folder: &Path, valid: [i64; 2]) {
        std::fs::create_dir_all(folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let chain = self.sign(&key, &[NAME.to_owned()], valid);
        std::fs::write(folder.join(CERTIFICATE), key.serialize_pem() + &chain).unwrap();
    }

    /// Returns the times of requests to paths with this prefix.
    pub(super) fn requested(&self, path: &str) -> Vec<Instant> {
        let seen = self.0.seen.lock();
        seen.iter().filter(|(_, seen)| seen.starts_with(path)).map(|(at, _)| *at).collect()
    }

    pub(super) fn forget_accounts(&self) {
        self.0.accounts.lock().clear();
    }

    fn sign(&self, key: &impl PublicKeyData, names: &[String], valid: [i64; 2]) -> String {
        let mut params = CertificateParams::new(names).unwrap();
        let [from, until] = valid.map(|seconds| {
            let length = Duration::from_secs(seconds.unsigned_abs());
            let now = SystemTime::now();
            if seconds < 0 { now - length } else { now + length }
        });
        (params.not_before, params.not_after) = (from.into(), until.into());
        params.use_authority_key_identifier_extension = true; // ARI identifies a certificate by it
        params.signed_by(key, &self.0.issuer).unwrap().pem()
    }

    fn answer(&self, path: &str, body: &[u8]) -> Result<Response<Vec<u8>>, Error> {
        self.0.seen.lock().push((Instant::now(), path.to_owned()));
        let script = self.0.script.lock();
        match script.fault.clone().filter(|(at, _)| path.starts_with(at)) {
            Some((_, Fault::Panic)) => panic!("as a defect of the ACME crate does"),
            Some((_, Fault::NoAnswer)) => return Err(Error::Str("an answer")),
            Some((_, Fault::Problem(kind, detail))) => return Ok(problem(kind, &detail)),
            None => {}
        }
        let jws: Value = serde_json::from_slice(body).unwrap_or_default();
        let [head, payload] = ["protected", "payload"].map(|part| decoded(&jws[part]));
        if head["kid"].is_string() && !self.0.accounts.lock().iter().any(|known| head["kid"] == **known) {
            return Ok(problem("accountDoesNotExist", "no such account"));
        }
        let unseen = script.fault.as_ref().is_some_and(|(at, _)| *at == "/challenge");
        let answer = match path {
            "/directory" => json!({
                "newNonce": format!("{URL}/nonce"),
                "newAccount": format!("{URL}/new-account"),
                "newOrder": format!("{URL}/new-order"),
                "renewalInfo": format!("{URL}/renewal"),
            }),
            "/nonce" => Value::Null,
            "/new-account" => {
                let mut accounts = self.0.accounts.lock();
                let account = format!("{URL}/account/{:x}", rand::random::<u64>());
                accounts.push(account.clone());
                return Ok(response(StatusCode::CREATED, &account, b"{}".to_vec()));
            }
            "/new-order" => {
                *self.0.given.lock() = None;
                let order = order("pending", &payload["replaces"]);
                return Ok(response(StatusCode::CREATED, &format!("{URL}/order"), order.to_string().into()));
            }
            "/authorization" => json!({
                "identifier": { "type": "dns", "value": NAME },
                "status": if unseen { "pending" } else { "valid" },
                "challenges": [{
                    "type": "tls-alpn-01", "url": format!("{URL}/challenge"), "token": "t", "status": "pending",
                }],
            }),
            "/finalize" => {
                let request = bytes(&payload["csr"]);
                let (_, request) = X509CertificationRequest::from_der(&request).unwrap();
                let key = &request.certification_request_info.subject_pki.subject_public_key.data;
                let chain = match script.has_wrong_key {
                    true => self.sign(&KeyPair::generate().unwrap(), &script.names, script.valid),
                    false => self.sign(&Requested(key.to_vec()), &script.names, script.valid),
                };
                *self.0.given.lock() = Some(script.chain.clone().unwrap_or(chain));
                order("processing", &Value::Null)
            }
            "/order" if self.0.given.lock().is_some() => order("valid", &Value::Null),
            "/order" => order("ready", &Value::Null),
            "/certificate" => {
                let chain = self.0.given.lock().clone().unwrap_or_default();
                return Ok(response(StatusCode::OK, "", chain.into()));
            }
            path if path.starts_with("/renewal/") => match script.window {
                Some([start, end]) => json!({ "suggestedWindow": { "start": start, "end": end } }),
                None => return Ok(problem("malformed", "no advice")),
            },
            path => panic!("no such path: {path}"),
        };
        Ok(response(StatusCode::OK, "", answer.to_string().into()))
    }
}

impl HttpClient for Fake {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let fake = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let answer = fake.answer(head.uri.path(), &body)?;
            Ok(BytesResponse::from(answer.map(|body| Full::new(Bytes::from(body)))))
        })
    }
}

fn order(status: &str, replaces: &Value) -> Value {
    let mut order = json!({
        "status": status,
        "authorizations": [format!("{URL}/authorization")],
        "finalize": format!("{URL}/finalize"),
        "certificate": format!("{URL}/certificate"),
    });
    if replaces.is_string() {
        order["replaces"] = replaces.clone();
    }
    order
}

fn problem(kind: &str, detail: &str) -> Response<Vec<u8>> {
    let problem = json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail });
    response(StatusCode::BAD_REQUEST, "", problem.to_string().into())
}

fn response(status: StatusCode, location: &str, body: Vec<u8>) -> Response<Vec<u8>> {
    let response = Response::builder().status(status).header("Replay-Nonce", "n");
    response.header(LOCATION, location).header(RETRY_AFTER, "1").body(body).unwrap()
}

/// Decodes a base64url text, by way of PEM.
fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap_or_default().replace('-', "+").replace('_', "/");
    let padding = "=".repeat((4 - text.len() % 4) % 4);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}{padding}\n-----END CERTIFICATE-----\n");
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

fn decoded(text: &Value) -> Value {
    serde_json::from_slice(&bytes(text)).unwrap_or_default()
}
