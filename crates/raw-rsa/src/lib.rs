//! RSA private operation without padding, 2048 bits: the one operation of a blind signer that no constant-time library offers
//! through a safe interface.
//!
//! Reasons for this crate and its `unsafe`: RFC 9474's BlindSign is `m^d mod n` on a message that the signer cannot see. The
//! `rsa` crate can compute it, but carries RUSTSEC-2023-0071 (its timing leaks the private key) and is several times slower.
//! AWS-LC's `RSA_sign_raw` is constant-time, blinds its input, checks its result against the public exponent, and is as fast as
//! OpenSSL, but `aws-lc-rs` does not wrap it (docs/decisions/signing.md). A handful of calls of `aws-lc-sys` are therefore
//! wrapped here and nowhere else; every other crate of the workspace except `postern-net` forbids `unsafe`.
//!
//! The inverse operation checks a result that another machine computed with its private key.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

/// Length of the modulus, of an input and of an output, in bytes.
pub const MODULUS_LEN: usize = 256;

/// Error of a key or an operation. Reveals nothing about the key or the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not an unencrypted PKCS#8 RSA private key, or its numbers are inconsistent.
    NotAKey,
    /// The key does not have 2048 bits.
    WrongSize,
    /// The bytes are not an `RSAPublicKey`.
    NotAPublicKey,
    /// The input is not a number from 2 to the modulus minus 2 (RFC 9474, section 4.3, "message representative out of range").
    /// AWS-LC also rejects 0, 1 and the modulus minus 1: each is its own signature.
    OutOfRange,
    /// The system provided no randomness or no memory, or a result failed its check: not the input's fault.
    Unavailable,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAKey => "not an unencrypted PKCS#8 RSA private key",
            Self::WrongSize => "not an RSA key of 2048 bits",
            Self::NotAPublicKey => "not an RSA public key",
            Self::OutOfRange => "the blinded message is not a number from 2 to n - 2, for the modulus n",
            Self::Unavailable => "no randomness, no memory, or a result that failed its check",
        })
    }
}

impl std::error::Error for Error {}

/// An RSA-2048 private key, held in AWS-LC's memory and wiped by AWS-LC when dropped.
pub struct PrivateKey {
    rsa: Rsa,
    public: Box<[u8]>,
    modulus: Box<[u8; MODULUS_LEN]>,
}

impl PrivateKey {
    /// Generates a key of 2048 bits with exponent 65537 and returns its PKCS#8 encoding (about 1,218 bytes), to be kept on disk
    /// with mode 0600.
    pub fn generate_pkcs8() -> Result<Vec<u8>, Error> {
        let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| Error::Unavailable)?;
        let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|_| Error::Unavailable)?;
        Ok(der.as_ref().to_vec())
    }

    /// Parses an unencrypted PKCS#8 key and checks that its numbers are consistent.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        // The safe library parses the key first: it checks format and consistency, and returns the public half.
        let pair = KeyPair::from_pkcs8(der).map_err(|_| Error::NotAKey)?;
        if pair.public_modulus_len() != MODULUS_LEN {
            return Err(Error::WrongSize);
        }
        let public = pair.public_key();
        let modulus = public.modulus().big_endian_without_leading_zero();
        let modulus = Box::new(modulus.try_into().map_err(|_| Error::WrongSize)?);
        Ok(Self { rsa: parse_rsa(der)?, public: public.as_ref().into(), modulus })
    }

    /// Returns the public half as an `RSAPublicKey` (RFC 8017, appendix A.1.1; 270 bytes with exponent 65537).
    pub fn public_key_der(&self) -> &[u8] {
        &self.public
    }

    /// Computes `input^d mod n` in constant time with respect to the key and the input, and checks the result against the public
    /// exponent so that a hardware fault cannot leak the key. Takes hundreds of microseconds of CPU.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the input is not a number from 2 to the modulus minus 2. [`Error::Unavailable`] for a fault of
    /// the machine.
    pub fn apply(&self, input: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Error> {
        if !is_in_range(&self.modulus, input) {
            return Err(Error::OutOfRange); // before the call, so that a failed call is never the input's fault
        }
        self.rsa.call(aws_lc_sys::RSA_sign_raw, input).ok_or(Error::Unavailable)
    }
}

/// Returns `true` for a number from 2 to n - 2, where n is the modulus: an odd number, so that n - 1 differs from it in the last
/// bit only.
pub fn is_in_range(modulus: &[u8; MODULUS_LEN], input: &[u8; MODULUS_LEN]) -> bool {
    let mut most = *modulus;
    most[MODULUS_LEN - 1] &= 0xfe;
    let is_small = input[..MODULUS_LEN - 1].iter().all(|byte| *byte == 0) && input[MODULUS_LEN - 1] < 2;
    !is_small && *input < most
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// An RSA-2048 public key, for checking results that its private key computed elsewhere.
pub struct PublicKey(Rsa);

impl PublicKey {
    /// Parses an `RSAPublicKey` (RFC 8017, appendix A.1.1).
    pub fn from_der(der: &[u8]) -> Result<Self, Error> {
        // SAFETY: the pointer is valid for the length given; the key that is returned, or null, is ours to free.
        let rsa = unsafe { aws_lc_sys::RSA_public_key_from_bytes(der.as_ptr(), der.len()) };
        let Some(rsa) = NonNull::new(rsa) else {
            clear_errors();
            return Err(Error::NotAPublicKey);
        };
        let rsa = Rsa(rsa);
        // SAFETY: the key is alive for as long as `rsa`.
        let length = unsafe { aws_lc_sys::RSA_size(rsa.0.as_ptr()) };
        if usize::try_from(length) == Ok(MODULUS_LEN) { Ok(Self(rsa)) } else { Err(Error::WrongSize) }
    }

    /// Returns `true` if `output` is `input^d mod n`, by computing `output^e mod n`. Takes tens of microseconds of CPU with
    /// exponent 65537.
    pub fn is_result(&self, input: &[u8; MODULUS_LEN], output: &[u8; MODULUS_LEN]) -> bool {
        self.0.call(aws_lc_sys::RSA_verify_raw, output).is_some_and(|again| again == *input)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey")
    }
}

/// A key object of AWS-LC, the only reference to which is this one.
struct Rsa(NonNull<aws_lc_sys::RSA>);

// SAFETY: AWS-LC documents RSA objects as safe to use from several threads for non-mutating functions, and counts
// `RSA_sign_raw` and `RSA_verify_raw` among them: the blinding cache inside is behind its own lock
// (crypto/fipsmodule/rsa). Nothing here mutates a key.
unsafe impl Send for Rsa {}
// SAFETY: as above.
unsafe impl Sync for Rsa {}

impl Drop for Rsa {
    fn drop(&mut self) {
        // SAFETY: the functions that made the object gave us this one reference; it is released once.
        unsafe { aws_lc_sys::RSA_free(self.0.as_ptr()) }
    }
}

/// The signature of `RSA_sign_raw` and `RSA_verify_raw`: key, length written, output and its room, input and its length,
/// padding.
type RawOperation =
    unsafe extern "C" fn(*mut aws_lc_sys::RSA, *mut usize, *mut u8, usize, *const u8, usize, c_int) -> c_int;

impl Rsa {
    /// Calls `RSA_sign_raw` or `RSA_verify_raw` without padding. `None` if it fails.
    fn call(&self, operation: RawOperation, input: &[u8; MODULUS_LEN]) -> Option<[u8; MODULUS_LEN]> {
        let (mut output, mut written) = ([0; MODULUS_LEN], 0);
        // SAFETY: the key is alive for as long as `self`; input and output are valid for the lengths given; either
        // function writes at most `MODULUS_LEN` bytes and returns their number in `written`.
        let ok = unsafe {
            operation(
                self.0.as_ptr(),
                &raw mut written,
                output.as_mut_ptr(),
                output.len(),
                input.as_ptr(),
                input.len(),
                aws_lc_sys::RSA_NO_PADDING,
            )
        };
        if ok == 1 && written == MODULUS_LEN {
            return Some(output);
        }
        clear_errors();
        None
    }
}

/// Empties this thread's error queue, so that no later call of another user of AWS-LC reads an error of ours.
fn clear_errors() {
    // SAFETY: takes no pointer.
    unsafe { aws_lc_sys::ERR_clear_error() };
}

/// Parses PKCS#8 into AWS-LC's key object.
fn parse_rsa(der: &[u8]) -> Result<Rsa, Error> {
    let mut reader = std::mem::MaybeUninit::<aws_lc_sys::CBS>::uninit();
    // SAFETY: `CBS_init` fills the reader, which borrows `der` and is not used after this function. The key that
    // `EVP_parse_private_key` returns is ours to free; `EVP_PKEY_get1_RSA` takes its own reference, so freeing
    // the outer key leaves the inner one alive. Both accept what the checks for null let through.
    let rsa = unsafe {
        aws_lc_sys::CBS_init(reader.as_mut_ptr(), der.as_ptr(), der.len());
        let key = aws_lc_sys::EVP_parse_private_key(reader.as_mut_ptr());
        if key.is_null() {
            aws_lc_sys::ERR_clear_error();
            return Err(Error::NotAKey);
        }
        let rsa = aws_lc_sys::EVP_PKEY_get1_RSA(key);
        aws_lc_sys::EVP_PKEY_free(key);
        rsa
    };
    NonNull::new(rsa).map(Rsa).ok_or(Error::NotAKey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blind_rsa_signatures::{BlindMessage, Deterministic, PSS, SecretKey, Sha384};

    #[test]
    fn gives_the_same_bytes_as_an_independent_implementation() {
        let pkcs8 = PrivateKey::generate_pkcs8().unwrap();
        let ours = PrivateKey::from_pkcs8(&pkcs8).unwrap();
        let theirs = SecretKey::<Sha384, PSS, Deterministic>::from_der(&pkcs8).unwrap();
        for fill in [1_u8, 0x42, 0x7f] {
            let input = [fill; MODULUS_LEN];
            let expected = theirs.blind_sign(BlindMessage(input.to_vec())).unwrap();
            assert_eq!(ours.apply(&input).unwrap().as_slice(), expected.as_ref() as &[u8]);
        }
    }

    #[test]
    fn inputs_from_2_to_the_modulus_less_2_are_signed_and_no_others() {
        let key = PrivateKey::from_pkcs8(&PrivateKey::generate_pkcs8().unwrap()).unwrap();
        let der = key.public_key_der();
        let end = der.len() - 5; // the exponent 65537, an INTEGER of three bytes, follows the modulus
        let modulus: [u8; MODULUS_LEN] = der[end - MODULUS_LEN..end].try_into().unwrap();
        let small = |last: u8| {
            let mut input = [0; MODULUS_LEN];
            input[MODULUS_LEN - 1] = last;
            input
        };
        let below = |by: u8| {
            let mut input = modulus;
            let mut place = MODULUS_LEN - 1;
            let mut borrowed;
            (input[place], borrowed) = input[place].overflowing_sub(by);
            while borrowed {
                place -= 1;
                (input[place], borrowed) = input[place].overflowing_sub(1);
            }
            input
        };
        for refused in [small(0), small(1), below(1), modulus, [0xff; MODULUS_LEN]] {
            assert_eq!(key.apply(&refused), Err(Error::OutOfRange));
        }
        for signed in [small(2), below(2), [1; MODULUS_LEN]] {
            assert!(key.apply(&signed).is_ok(), "and the key still works");
        }
    }

    #[test]
    fn what_is_not_a_key_is_refused() {
        let pkcs8 = PrivateKey::generate_pkcs8().unwrap();
        for broken in [&pkcs8[..0], &pkcs8[..100], &pkcs8[1..]] {
            assert_eq!(PrivateKey::from_pkcs8(broken).err(), Some(Error::NotAKey));
        }
        let larger = KeyPair::generate(KeySize::Rsa3072).unwrap();
        let der: Pkcs8V1Der<'_> = larger.as_der().unwrap();
        assert_eq!(PrivateKey::from_pkcs8(der.as_ref()).err(), Some(Error::WrongSize));
    }

    #[test]
    fn a_result_is_told_from_every_other_number() {
        let key = PrivateKey::from_pkcs8(&PrivateKey::generate_pkcs8().unwrap()).unwrap();
        let public = PublicKey::from_der(key.public_key_der()).unwrap();
        let input = [0x42; MODULUS_LEN];
        let output = key.apply(&input).unwrap();
        assert!(public.is_result(&input, &output));
        assert!(!public.is_result(&[0x43; MODULUS_LEN], &output));
        for place in [0, 100, MODULUS_LEN - 1] {
            let mut wrong = output;
            wrong[place] ^= 1;
            assert!(!public.is_result(&input, &wrong));
        }
        for absurd in [[0; MODULUS_LEN], [0xff; MODULUS_LEN], input] {
            assert!(!public.is_result(&input, &absurd), "and the key still works");
        }
        assert!(public.is_result(&input, &output));
    }

    #[test]
    fn what_is_not_a_public_key_is_refused() {
        let key = PrivateKey::from_pkcs8(&PrivateKey::generate_pkcs8().unwrap()).unwrap();
        let der = key.public_key_der();
        for broken in [&der[..0], &der[..100], &der[1..]] {
            assert_eq!(PublicKey::from_der(broken).err(), Some(Error::NotAPublicKey));
        }
        let larger = KeyPair::generate(KeySize::Rsa3072).unwrap();
        assert_eq!(PublicKey::from_der(larger.public_key().as_ref()).err(), Some(Error::WrongSize));
    }
}
