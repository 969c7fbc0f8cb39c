//! The VOPRF of types 1 and 5 (RFC 9578, section 5; RFC 9497, mode VOPRF): P-384 with SHA-384, ristretto255 with SHA-512.
//!
//! The `privacypass` crate provides the arithmetic. A key's secret is a scalar, which `DeriveKeyPair(seed, "PrivacyPass")`
//! derives from a random seed. Verification requires the same secret as issuance.

use crate::ids::TokenType;
use crate::token::TokenInput;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use p384::NistP384;
use privacypass::private_tokens::{
    BlindedElement, CipherSuite, EvaluationElement, Group, Proof, Ristretto255, VoprfClient, VoprfServer,
};
use rand::rngs::SysRng;

/// `info` of `DeriveKeyPair` (RFC 9578, section 5.5).
const INFO: &[u8] = b"PrivacyPass";

type Element<S> = <<S as CipherSuite>::Group as Group>::Elem;

pub(crate) enum Evaluator {
    P384(Box<VoprfServer<NistP384>>),
    Ristretto255(Box<VoprfServer<Ristretto255>>),
}

#[derive(Clone, Copy)]
pub(crate) enum PublicKey {
    P384(Element<NistP384>),
    Ristretto255(Element<Ristretto255>),
}

/// Client secrets that unblind the response to one request, one per element, and the issuer's public key.
pub(crate) enum Blinds {
    P384(Vec<VoprfClient<NistP384>>, Element<NistP384>),
    Ristretto255(Vec<VoprfClient<Ristretto255>>, Element<Ristretto255>),
}

/// Concatenated evaluated elements, and one proof for all of them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Evaluated {
    pub(crate) elements: Vec<u8>,
    pub(crate) proof: Vec<u8>,
}

/// Sizes of a suite's messages in bytes (RFC 9497, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Ne: an element.
    pub(crate) element: usize,
    /// Ns + Ns: a proof.
    pub(crate) proof: usize,
    /// Ns: a scalar, and so a secret and the seed from which a secret is derived.
    pub(crate) scalar: usize,
}

/// Returns the sizes of a private type; `None` for any other type.
pub(crate) const fn lengths(token_type: TokenType) -> Option<Lengths> {
    match token_type {
        TokenType::VoprfP384 => Some(Lengths { element: 49, proof: 96, scalar: 48 }),
        TokenType::VoprfRistretto255 => Some(Lengths { element: 32, proof: 64, scalar: 32 }),
        _ => None,
    }
}

/// Bytes that are not an element of the group, or are its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAnElement;

impl Evaluator {
    /// Derives a secret from `seed`, a scalar in its wire form; `None` if the type is not private or the derivation fails.
    pub(crate) fn derive(token_type: TokenType, seed: &[u8]) -> Option<Vec<u8>> {
        // The serialized secret precedes the public key.
        let mut keys = match token_type {
            TokenType::VoprfP384 => derive::<NistP384>(seed)?.serialize().to_vec(),
            TokenType::VoprfRistretto255 => derive::<Ristretto255>(seed)?.serialize().to_vec(),
            _ => return None,
        };
        keys.truncate(lengths(token_type)?.scalar);
        Some(keys)
    }

    /// Parses a secret; `None` if it is not a non-zero scalar of this type's group, or the type is not private.
    pub(crate) fn parse(token_type: TokenType, secret: &[u8]) -> Option<Self> {
        if lengths(token_type)?.scalar != secret.len() {
            return None;
        }
        match token_type {
            TokenType::VoprfP384 => {
                VoprfServer::new_with_key(secret).ok().map(|server| Self::P384(Box::new(server)))
            }
            TokenType::VoprfRistretto255 => {
                VoprfServer::new_with_key(secret).ok().map(|server| Self::Ristretto255(Box::new(server)))
            }
            _ => None,
        }
    }

    pub(crate) fn public_key(&self) -> Vec<u8> {
        match self {
            Self::P384(server) => serialized::<NistP384>(server.get_public_key()),
            Self::Ristretto255(server) => serialized::<Ristretto255>(server.get_public_key()),
        }
    }

    /// Evaluates concatenated blinded elements.
    pub(crate) fn evaluate(&self, blinded: &[u8]) -> Result<Evaluated, NotAnElement> {
        match self {
            Self::P384(server) => evaluate(server, blinded),
            Self::Ristretto255(server) => evaluate(server, blinded),
        }
    }

    /// Returns `true` if `authenticator` is this key's output for `input`. Compares in constant time.
    pub(crate) fn is_output(&self, input: &[u8], authenticator: &[u8]) -> bool {
        let output = match self {
            Self::P384(server) => server.evaluate(input).map(|output| output.to_vec()),
            Self::Ristretto255(server) => server.evaluate(input).map(|output| output.to_vec()),
        };
        output.is_ok_and(|output| verify_slices_are_equal(&output, authenticator).is_ok())
    }
}

impl PublicKey {
    /// Parses a published key; `None` if it is invalid, or the type is not private.
    pub(crate) fn parse(token_type: TokenType, bytes: &[u8]) -> Option<Self> {
        if lengths(token_type)?.element != bytes.len() {
            return None;
        }
        match token_type {
            TokenType::VoprfP384 => element::<NistP384>(bytes).map(Self::P384),
            TokenType::VoprfRistretto255 => element::<Ristretto255>(bytes).map(Self::Ristretto255),
            _ => None,
        }
    }

    /// Blinds every input and returns the concatenated elements to send; `None` without randomness.
    pub(crate) fn blind(&self, inputs: &[TokenInput]) -> Option<(Vec<u8>, Blinds)> {
        match *self {
            Self::P384(key) => {
                blind(inputs).map(|(elements, clients)| (elements, Blinds::P384(clients, key)))
            }
            Self::Ristretto255(key) => {
                blind(inputs).map(|(elements, clients)| (elements, Blinds::Ristretto255(clients, key)))
            }
        }
    }
}

impl Blinds {
    /// Returns the authenticators of `inputs`; `None` unless the proof shows that the issuer evaluated each element with its
    /// published key.
    pub(crate) fn finalize(&self, inputs: &[TokenInput], evaluated: &Evaluated) -> Option<Vec<Vec<u8>>> {
        match self {
            Self::P384(clients, key) => finalize(clients, *key, inputs, evaluated),
            Self::Ristretto255(clients, key) => finalize(clients, *key, inputs, evaluated),
        }
    }
}

fn derive<S: CipherSuite>(seed: &[u8]) -> Option<VoprfServer<S>> {
    VoprfServer::new_from_seed(seed, INFO).ok()
}

fn element<S: CipherSuite>(bytes: &[u8]) -> Option<Element<S>> {
    S::Group::deserialize_elem(bytes).ok()
}

fn serialized<S: CipherSuite>(element: Element<S>) -> Vec<u8> {
    S::Group::serialize_elem(element).to_vec()
}

fn element_len<S: CipherSuite>() -> usize {
    S::Group::serialize_elem(S::Group::base_elem()).len()
}

fn evaluate<S: CipherSuite>(server: &VoprfServer<S>, blinded: &[u8]) -> Result<Evaluated, NotAnElement> {
    let elements = blinded.chunks(element_len::<S>()).map(BlindedElement::<S>::deserialize);
    let elements: Vec<_> = elements.collect::<Result<_, _>>().map_err(|_| NotAnElement)?;
    let prepared: Vec<_> = server.batch_blind_evaluate_prepare(elements.iter()).collect();
    let finished = server
        .batch_blind_evaluate_finish(&mut SysRng, elements.iter(), &prepared)
        .map_err(|_| NotAnElement)?;
    let proof = finished.proof.serialize().to_vec();
    Ok(Evaluated { elements: finished.messages.flat_map(|message| message.serialize()).collect(), proof })
}

fn blind<S: CipherSuite>(inputs: &[TokenInput]) -> Option<(Vec<u8>, Vec<VoprfClient<S>>)> {
    let (mut elements, mut clients) = (Vec::new(), Vec::with_capacity(inputs.len()));
    for input in inputs {
        let blinded = VoprfClient::<S>::blind(input.as_bytes(), &mut SysRng).ok()?;
        elements.extend_from_slice(&blinded.message.serialize());
        clients.push(blinded.state);
    }
    Some((elements, clients))
}

fn finalize<S: CipherSuite>(
    clients: &Vec<VoprfClient<S>>,
    key: Element<S>,
    inputs: &[TokenInput],
    evaluated: &Evaluated,
) -> Option<Vec<Vec<u8>>> {
    let elements = evaluated.elements.chunks(element_len::<S>()).map(EvaluationElement::<S>::deserialize);
    let elements: Vec<_> = elements.collect::<Result<_, _>>().ok()?;
    let proof = Proof::deserialize(&evaluated.proof).ok()?;
    let inputs: Vec<_> = inputs.iter().map(|input| input.as_bytes().as_slice()).collect();
    let outputs = VoprfClient::batch_finalize(&inputs, clients, &elements, &proof, key).ok()?;
    outputs.map(|output| output.ok().map(|output| output.to_vec())).collect()
}
