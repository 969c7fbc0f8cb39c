//! `TokenRequest` and `TokenResponse`: what is read is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use postern_token::{BLINDED_LEN, REQUEST_LEN, TokenRequest, TokenResponse};

fuzz_target!(|bytes: &[u8]| {
    match TokenRequest::parse(bytes) {
        Ok(request) => assert_eq!(request.serialize().as_slice(), bytes),
        Err(_) => assert!(bytes.len() != REQUEST_LEN || bytes[..2] != [0, 2]),
    }
    match TokenResponse::parse(bytes) {
        Ok(response) => assert_eq!(response.0.as_slice(), bytes),
        Err(_) => assert_ne!(bytes.len(), BLINDED_LEN),
    }
});
