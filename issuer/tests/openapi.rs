//! The API description: it is served as it is committed, and every answer of these tests is in it.

use crate::support::{Answer, Running, config, request};
use serde_json::Value;
use std::sync::LazyLock;

const COMMITTED: &str = include_str!("../openapi.json");
static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(COMMITTED).unwrap());

/// Asserts that the description has the answer to this request, if it has its path.
pub fn check(request: &[u8], answer: &Answer) {
    let line = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap()).into_owned();
    let [method, path, _] = line.split(' ').collect::<Vec<_>>()[..] else { return };
    let Some(operations) = DESCRIPTION["paths"].get(path) else { return };
    let Some(operation) = operations.get(method.to_ascii_lowercase()) else {
        assert!([400, 405].contains(&answer.status), "{line}: {}", answer.head);
        return;
    };
    let response = &operation["responses"][answer.status.to_string()];
    let shared = response["$ref"].as_str().and_then(|name| DESCRIPTION.pointer(&name[1..]));
    let response = shared.unwrap_or(response);
    assert!(response.is_object(), "{line}: {} is not in issuer/openapi.json", answer.status);
    if let Some(described) = response["content"].as_object().filter(|_| !answer.body.is_empty()) {
        let sent = answer.field("content-type").unwrap_or_default();
        let essence = sent.split(';').next().unwrap();
        assert!(described.contains_key(essence), "{line}: {} with {sent}", answer.status);
    }
    let described = response["headers"].as_object();
    for (name, header) in described.into_iter().flatten() {
        let is_there = answer.field(name).is_some();
        assert!(is_there || header["required"] != true, "{line}: {} without {name}", answer.status);
    }
    for name in ["retry-after", "allow", "www-authenticate", "etag", "cache-control"] {
        let is_described = described.is_some_and(|all| all.keys().any(|key| key.eq_ignore_ascii_case(name)));
        assert!(is_described || answer.field(name).is_none(), "{line}: {} with {name}", answer.status);
    }
}

async fn get(issuer: &Running, fields: &str) -> Answer {
    issuer.exchange(&request("GET", "/openapi.json", fields, b"")).await
}

#[tokio::test]
async fn the_description_is_served_as_it_is_committed_and_is_cacheable() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let answer = get(&issuer, "").await;
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/json")));
    assert!(answer.text() == COMMITTED, "issuer/openapi.json is not what is served");
    assert_eq!(answer.field("cache-control"), Some("public, max-age=3600"));
    let etag = answer.field("etag").unwrap();
    let known = get(&issuer, &format!("if-none-match: {etag}\r\n")).await;
    assert_eq!((known.status, known.body.len(), known.field("etag")), (304, 0, Some(etag)));

    let head = issuer.exchange(&request("HEAD", "/openapi.json", "", b"")).await;
    assert_eq!((head.status, head.body.len(), head.field("etag")), (200, 0, Some(etag)));
    assert_eq!(head.field("content-length"), answer.field("content-length"));
    let post = issuer.exchange(&request("POST", "/openapi.json", "", b"")).await;
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD")));
}

#[tokio::test]
async fn the_description_that_is_served_has_the_configured_path() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.directory.issuer_request_uri = "https://tokens.example/elsewhere".to_owned();
    let issuer = Running::start(config).await;
    let served: Value = serde_json::from_slice(&get(&issuer, "").await.body).unwrap();
    let requests = &served["paths"]["/elsewhere"];
    assert_eq!(requests["servers"][0]["url"], "https://tokens.example");
    assert!(requests["post"] == DESCRIPTION["paths"]["/token-request"]["post"], "only the path is another");
    assert!(served["paths"].get("/token-request").is_none());
}
