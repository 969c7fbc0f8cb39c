//! The document has every refusal, and says of the directory what is written.

use super::*;
use postern_token::{ChallengeDigest, DirectoryKey, IssuerKey, SigningKey, TokenType, UnixSeconds};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

fn described(uri: &str) -> Value {
    let mut config = Config::loopback(([127, 0, 0, 1], 0).into(), Path::new("keys"));
    config.directory.issuer_request_uri = uri.to_owned();
    serde_json::from_str(&openapi(&config).unwrap()).unwrap()
}

fn operations(document: &Value) -> impl Iterator<Item = &Value> {
    document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
}

/// Each is in the document with its status, its text and its field.
#[test]
fn every_refusal_is_described() {
    let document = described("/token-request");
    for example in examples() {
        assert!(refusals::is_of_its_row(&example), "{} is another refusal", example.name);
        let status = example.refusal.status().0.as_u16().to_string();
        let found = operations(&document).filter_map(|operation| {
            let response = &operation["responses"][&status];
            let shared = response["$ref"].as_str().and_then(|name| document.pointer(&name[1..]));
            let response = shared.unwrap_or(response);
            response["content"]["text/plain"]["examples"].get(example.name).map(|text| (text, response))
        });
        let found: Vec<_> = found.collect();
        assert!(!found.is_empty(), "{} ({status}) is in no operation", example.name);
        for (text, response) in found {
            assert_eq!(text["value"], json!(example.refusal.sentence() + "\n"));
            let names = response["headers"].as_object().into_iter().flat_map(|headers| headers.keys());
            let named: BTreeSet<_> = names.map(|name| name.to_ascii_lowercase()).collect();
            if let Some((name, _)) = example.refusal.field() {
                assert!(named.contains(name.as_str()), "{}: {name}", example.name);
            }
        }
    }
}

#[test]
fn no_two_examples_share_a_name() {
    let names: Vec<_> = examples().iter().map(|example| example.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

/// The schemas have the members that the types are written with.
#[test]
fn the_schemas_are_those_of_the_directory() {
    let time = Some(UnixSeconds(7));
    let key = |time| DirectoryKey::new(TokenType::BlindRsa2048, b"key", time, time);
    let directory = |key, batch_limit| postern_token::Directory {
        issuer_request_uri: "/token-request".to_owned(),
        token_keys: vec![key],
        batch_limit,
    };
    let members = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let written = |directory: &postern_token::Directory| {
        let written: Value = serde_json::from_slice(&directory.serialize()).unwrap();
        (members(&written), members(&written["token-keys"][0]))
    };
    let (all, all_of_key) = written(&directory(key(time), Some(7)));
    let (required, required_of_key) = written(&directory(key(None), None));
    let document = described("/token-request");
    for (schema, all, required) in
        [(DIRECTORY_SCHEMA, all, required), (TOKEN_KEY_SCHEMA, all_of_key, required_of_key)]
    {
        let schema = &document["components"]["schemas"][schema];
        assert_eq!(members(&schema["properties"]), all);
        let named = schema["required"].as_array().unwrap().iter();
        assert_eq!(named.map(|name| name.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), required);
    }
}

#[test]
fn the_path_of_token_requests_is_the_configured_one() {
    let document = described("/a/b");
    assert!(document["paths"]["/a/b"]["post"].is_object() && document["paths"]["/a/b"]["servers"].is_null());
    let document = described("https://tokens.example:8443/a/b");
    assert_eq!(document["paths"]["/a/b"]["servers"], json!([{ "url": "https://tokens.example:8443" }]));
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn no_request_is_shorter_than_the_description_says() {
    let lengths = TokenType::ISSUED.map(|token_type| {
        let secret = SigningKey::generate(token_type).unwrap();
        let key = SigningKey::from_secret(token_type, &secret).unwrap();
        let key = IssuerKey::from_public_key(token_type, key.public_key()).unwrap();
        key.request(ChallengeDigest::of(b"challenge")).unwrap().0.serialize().len()
    });
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&SHORTEST_REQUEST), Some(&REQUEST_LEN)));
}
