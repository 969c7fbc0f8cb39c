//! Private keys of type 2 that are not in this process: in an HSM, or behind a service that has the raw RSA operation.
//!
//! What such a place computes is checked under the public key before it leaves. An RSA result with a fault in it can give the
//! private key away (Boneh, DeMillo and Lipton, 1997), and a token of it is void.

use postern_raw_rsa::MODULUS_LEN;
use std::fmt;

/// `message^d mod n` with a private key that is elsewhere.
///
/// It has to be the operation without any padding (RFC 8017, section 5.1.2; `CKM_RSA_X_509` of PKCS#11), because a blinded message
/// is padded already (RFC 9474, section 4.3). Network HSMs have it by PKCS#11, those of cloud providers included. Key management
/// services with an interface of their own mostly have not: they pad, or undo a padding.
pub trait PrivateOperation: fmt::Debug + Send + Sync {
    /// Computes it, on the signing pool's thread, which waits: so an implementation gives up after a time of its own. `message` is
    /// a number from 2 to n - 2, big-endian.
    ///
    /// # Errors
    /// [`Unavailable`]. The implementation reports the reason; clients do not see it.
    fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable>;

    /// Whether a result was right. A wrong one is discarded; the implementation reports it.
    fn judged(&self, is_right: bool);
}

/// The place where the key is does not answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not in this process, and where it is does not answer")]
pub struct Unavailable;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spki;
    use crate::{SignError, SigningKey, TokenRequest};
    use postern_raw_rsa::PrivateKey;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    /// A place that may be away, or wrong in one bit.
    #[derive(Debug)]
    struct Place {
        key: PrivateKey,
        is_away: AtomicBool,
        flips: AtomicBool,
        calls: AtomicUsize,
        verdicts: Mutex<Vec<bool>>,
    }

    impl PrivateOperation for Place {
        fn apply(&self, message: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Unavailable> {
            self.calls.fetch_add(1, SeqCst);
            if self.is_away.load(SeqCst) {
                return Err(Unavailable);
            }
            let mut result = self.key.apply(message).unwrap();
            result[17] ^= u8::from(self.flips.load(SeqCst));
            Ok(result)
        }

        fn judged(&self, is_right: bool) {
            self.verdicts.lock().unwrap().push(is_right);
        }
    }

    fn key() -> (Arc<Place>, SigningKey, SigningKey) {
        let pkcs8 = SigningKey::generate_pkcs8().unwrap();
        let place = Arc::new(Place {
            key: PrivateKey::from_pkcs8(&pkcs8).unwrap(),
            is_away: AtomicBool::new(false),
            flips: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            verdicts: Mutex::default(),
        });
        let here = SigningKey::from_pkcs8(&pkcs8).unwrap();
        let there = SigningKey::elsewhere(here.public_key(), place.clone()).unwrap();
        (place, here, there)
    }

    #[test]
    fn it_signs_as_the_key_in_a_file_does_and_refuses_the_same_numbers() {
        let (place, here, there) = key();
        assert_eq!((here.id(), here.public_key()), (there.id(), there.public_key()));
        assert!(there.is_elsewhere() && !here.is_elsewhere());
        let modulus = spki::modulus(here.public_key()).unwrap();
        let number = |last: u8| {
            let mut number = [0; MODULUS_LEN];
            number[MODULUS_LEN - 1] = last;
            number
        };
        let less = |by: u8| {
            let mut number = modulus;
            let mut place = MODULUS_LEN - 1;
            let mut borrowed;
            (number[place], borrowed) = number[place].overflowing_sub(by);
            while borrowed {
                place -= 1;
                (number[place], borrowed) = number[place].overflowing_sub(1);
            }
            number
        };
        for message in [number(0), number(1), number(2), number(3), less(3), less(2), [7; MODULUS_LEN]] {
            let request = TokenRequest::new(here.id(), message);
            assert_eq!(here.sign(&request), there.sign(&request));
        }
        let calls = place.calls.load(SeqCst);
        for message in [number(0), number(1), less(1), modulus, [0xff; MODULUS_LEN]] {
            let request = TokenRequest::new(here.id(), message);
            assert_eq!(here.sign(&request), Err(SignError::OutOfRange));
            assert_eq!(there.sign(&request), Err(SignError::OutOfRange));
        }
        assert_eq!(place.calls.load(SeqCst), calls, "these do not reach the place");
    }

    #[test]
    fn a_wrong_result_is_discarded_and_reported() {
        let (place, here, there) = key();
        let request = TokenRequest::new(here.id(), [1; MODULUS_LEN]);
        place.flips.store(true, SeqCst);
        assert_eq!(there.sign(&request), Err(SignError::WrongResult));
        place.flips.store(false, SeqCst);
        place.is_away.store(true, SeqCst);
        assert_eq!(there.sign(&request), Err(SignError::Unavailable(Unavailable)));
        place.is_away.store(false, SeqCst);
        assert_eq!(there.sign(&request), here.sign(&request));
        assert_eq!(*place.verdicts.lock().unwrap(), [false, true]);
    }
}
