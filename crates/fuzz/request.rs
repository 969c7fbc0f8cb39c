//! `TokenRequest`, `TokenResponse` and both batches: what is read is written back the same.

use postern_token::*;

pub fn run(bytes: &[u8]) {
    match TokenRequest::parse(bytes) {
        Ok(request) => assert_eq!(request.serialize(), bytes),
        Err(_) => assert!(bytes.len() != REQUEST_LEN || bytes[..2] != [0, 2]),
    }
    for token_type in [TokenType::VoprfP384, TokenType::BlindRsa2048, TokenType::VoprfRistretto255] {
        if let Ok(response) = TokenResponse::parse(token_type, bytes) {
            assert_eq!(response.as_bytes(), bytes);
        }
        if let Ok(response) = AmortizedResponse::parse(token_type, bytes) {
            assert_eq!(response.serialize(), bytes);
        }
    }
    if let Ok(request) = AmortizedRequest::parse(bytes) {
        assert_eq!(request.serialize(), bytes);
        assert!(request.count() > 0);
    }
    if let Ok(requests) = parse_generic_request(bytes) {
        assert_eq!(serialize_generic_request(&requests), bytes);
    }
    if let Ok(responses) = parse_generic_response(bytes) {
        assert_eq!(serialize_generic_response(&responses), bytes);
    }
}
