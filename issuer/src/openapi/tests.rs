//! Tests that the document has every refusal and no other, and describes the directory as it is written.

mod refusals;

use super::*;
use crate::config::{Directory, OPENAPI_PATH};
use postern_token::{
    AMORTIZED_REQUEST_MEDIA_TYPE, ChallengeDigest, DIRECTORY_PATH, DirectoryKey, GENERIC_REQUEST_MEDIA_TYPE,
    IssuerKey, REQUEST_LEN, REQUEST_MEDIA_TYPE, SigningKey, TokenType, UnixSeconds,
};
use refusals::{At, Example, examples, is_of_its_row};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn described(uri: &str) -> Value {
    let directory = Directory { issuer_request_uri: uri.to_owned(), ..Directory::default() };
    serde_json::from_str(&openapi(uri, &directory.path().unwrap())).unwrap()
}

/// Returns the refusals at `place`, by status.
fn refused(place: At) -> BTreeMap<String, Vec<Example>> {
    let mut by_status = BTreeMap::<String, Vec<Example>>::new();
    for example in examples().into_iter().filter(|example| example.at.includes(place)) {
        by_status.entry(example.refusal.status().0.as_str().to_owned()).or_default().push(example);
    }
    by_status
}

/// Returns the responses of an operation by status, with references resolved.
fn responses<'a>(document: &'a Value, operation: &'a Value) -> BTreeMap<&'a str, &'a Value> {
    let resolve = |response: &'a Value| match response["$ref"].as_str() {
        Some(name) => document.pointer(&name[1..]).unwrap(),
        None => response,
    };
    let all = operation["responses"].as_object().unwrap();
    all.iter().map(|(status, response)| (status.as_str(), resolve(response))).collect()
}

/// The document's refusals with one status: their texts by name, and for each header field, `true` if all of them have it.
type Refusals = (BTreeMap<String, String>, BTreeMap<String, bool>);

fn written(response: &Value) -> Refusals {
    let texts = response["content"]["text/plain"]["examples"].as_object().unwrap();
    let texts = texts.iter().map(|(name, text)| (name.clone(), text["value"].as_str().unwrap().to_owned()));
    let fields = response["headers"].as_object().into_iter().flatten();
    let fields = fields.map(|(name, field)| (name.to_ascii_lowercase(), field["required"] == true));
    (texts.collect(), fields.collect())
}

fn expected(refusals: &[Example]) -> Refusals {
    let texts = refusals.iter().map(|example| (example.name.to_owned(), example.refusal.sentence() + "\n"));
    let fields: Vec<_> = refusals.iter().filter_map(|example| example.refusal.field()).collect();
    let always = fields.len() == refusals.len();
    (texts.collect(), fields.iter().map(|(name, _)| (name.to_string(), always)).collect())
}

/// Each refusal is in the document with its status, its text and its field, at each operation that answers with it; and no other.
#[test]
fn every_refusal_is_described() {
    let document = described("/token-request");
    for (path, operation, place) in [
        (DIRECTORY_PATH, "get", At::Documents),
        (DIRECTORY_PATH, "head", At::Documents),
        (OPENAPI_PATH, "get", At::Documents),
        (OPENAPI_PATH, "head", At::Documents),
        ("/token-request", "post", At::Requests),
    ] {
        let responses = responses(&document, &document["paths"][path][operation]);
        let refused = refused(place);
        for (status, refusals) in &refused {
            let response = responses.get(status.as_str());
            let response =
                response.unwrap_or_else(|| panic!("{operation} {path}: issuer/openapi.json has no {status}"));
            assert_eq!(
                written(response),
                expected(refusals),
                "{operation} {path}, {status}: issuer/openapi.json on the left, the table of refusals on the right"
            );
        }
        // hyper answers a header that is too long with 431, before there is a request to refuse.
        for status in responses.keys().filter(|status| !status.starts_with(['2', '3']) && **status != "431") {
            assert!(refused.contains_key(*status), "{operation} {path}: nothing is refused with {status}");
        }
    }
}

#[test]
fn every_example_is_of_the_refusal_in_its_row() {
    for example in examples() {
        assert!(is_of_its_row(&example), "{} is another refusal", example.name);
    }
}

#[test]
fn no_two_examples_share_a_name() {
    let names: Vec<_> = examples().iter().map(|example| example.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

/// The schemas have the members that the types serialize.
#[test]
fn the_schemas_are_those_of_the_directory() {
    let time = Some(UnixSeconds(7));
    let key = |time| DirectoryKey::new(TokenType::BlindRsa2048, b"key", time, time);
    let directory = |key, batch_limit: Option<u32>| postern_token::Directory {
        issuer_request_uri: "/token-request".to_owned(),
        token_keys: vec![key],
        batch_limit,
        revoked: batch_limit.map(|_| "00".repeat(32)).into_iter().collect(),
    };
    let members = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let written = |directory: &postern_token::Directory| {
        let written: Value = serde_json::from_slice(&directory.serialize()).unwrap();
        (members(&written), members(&written["token-keys"][0]))
    };
    let (all, all_of_key) = written(&directory(key(time), Some(7)));
    let (required, required_of_key) = written(&directory(key(None), None));
    let document = described("/token-request");
    for (schema, all, required) in [("Directory", all, required), ("TokenKey", all_of_key, required_of_key)] {
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
    let document = described("/token-request");
    let bodies = &document["paths"]["/token-request"]["post"]["requestBody"]["content"];
    let media_types: Vec<_> = bodies.as_object().unwrap().keys().collect();
    assert_eq!(media_types, [AMORTIZED_REQUEST_MEDIA_TYPE, GENERIC_REQUEST_MEDIA_TYPE, REQUEST_MEDIA_TYPE]);
    let schema = &bodies[REQUEST_MEDIA_TYPE]["schema"];
    let written =
        (schema["minLength"].as_u64().unwrap() as usize, schema["maxLength"].as_u64().unwrap() as usize);
    assert_eq!(written, (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap()));
    assert_eq!(written.1, REQUEST_LEN);
}
