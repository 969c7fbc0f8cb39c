//! A token from its challenge to its spent record, with client, issuer and gateway in one program:
//! `cargo run -p postern-token --example mint_and_verify`.

use postern_token::header::{Presentation, format_authorization, parse_authorization};
use postern_token::{
    ChallengeDigest, IssuerKey, SigningKey, TokenChallenge, TokenRequest, TokenType, VerifyingKey,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The gateway's challenge, and the issuer's key.
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example"])?;
    let issuer = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8()?)?;

    // The client blinds a token, the issuer signs it unseen, and the client makes the signature its own.
    let key = IssuerKey::from_spki(issuer.public_key())?;
    let (request, pending) = key.request(ChallengeDigest::of(&challenge.serialize()))?;
    let response = issuer.sign(&TokenRequest::parse(&request.serialize())?)?;
    let proxy_authorization = format_authorization(&pending.finalize(&response)?);

    // The gateway reads the header, verifies the signature, and has the key under which it records the token as spent.
    let Presentation::Token(token) = parse_authorization(proxy_authorization.as_bytes())? else {
        return Err("the header holds no token".into());
    };
    VerifyingKey::from_spki(issuer.public_key())?.verify(&token)?;
    println!("{:?}", token.spent_key());
    Ok(())
}
