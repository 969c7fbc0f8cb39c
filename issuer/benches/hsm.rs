//! Compares a signature by an HSM with one by a key in memory, and measures the check of a result:
//!
//!     POSTERN_PKCS11_MODULE=/usr/lib/softhsm/libsofthsm2.so POSTERN_PKCS11_TOKEN=postern POSTERN_PKCS11_PIN=… \
//!         cargo bench --profile release --workspace --bench hsm
//!
//! The least time of many short batches, taken in turns; and signatures a second by several threads. The key that it makes is destroyed.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "its result")]

use postern_issuer::hsm::{Hsm, KeyName, Options};
use postern_raw_rsa::{PrivateKey, PublicKey};
use postern_token::key_file::Reference;
use postern_token::{SigningKey, TokenRequest, spki_of_modulus};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

const ROUNDS: usize = 60;
const BATCH: u32 = 10;
const THREADS: [u32; 3] = [1, 2, 4];
const SIGNATURES: u32 = 1_000;

fn main() {
    let setting = |name: &str| std::env::var(format!("POSTERN_PKCS11_{name}")).ok();
    let (Some(module), Some(token), Some(pin)) = (setting("MODULE"), setting("TOKEN"), setting("PIN")) else {
        println!(
            "POSTERN_PKCS11_MODULE, POSTERN_PKCS11_TOKEN and POSTERN_PKCS11_PIN name an HSM; none was measured"
        );
        return;
    };
    let options = Options {
        module: module.into(),
        token: token.clone(),
        pin_file: "POSTERN_PKCS11_PIN".into(),
        pin: Box::new(move || Ok(Zeroizing::new(pin.clone().into_bytes()))),
        timeout: Duration::from_secs(10),
    };
    let hsm = Hsm::load(options).unwrap();
    let id = b"postern bench".to_vec();
    let public_key = spki_of_modulus(&hsm.generate(&id).unwrap()).unwrap();
    let reference = Reference { token, id: id.clone(), public_key };
    let key = hsm.key(KeyName::of(&reference).unwrap());
    let there = Arc::new(SigningKey::elsewhere(&reference.public_key, key).unwrap());
    let pkcs8 = SigningKey::generate_pkcs8().unwrap();
    let here = Arc::new(SigningKey::from_pkcs8(&pkcs8).unwrap());
    let private = PrivateKey::from_pkcs8(&pkcs8).unwrap();
    let public = PublicKey::from_der(private.public_key_der()).unwrap();
    let message = [7; 256];
    let result = private.apply(&message).unwrap();

    let cases: [(&str, &dyn Fn()); 3] = [
        ("a signature by a key in memory", &|| sign(&here)),
        ("a signature by the HSM, checked", &|| sign(&there)),
        ("the check alone", &|| assert!(black_box(public.is_result(&message, &result)))),
    ];
    let mut least = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        for (least, (_, run)) in least.iter_mut().zip(&cases) {
            let begun = Instant::now();
            (0..BATCH).for_each(|_| run());
            *least = (*least).min(begun.elapsed() / BATCH);
        }
    }
    for (least, (name, _)) in least.iter().zip(&cases) {
        println!("{name}: {:.1} µs", least.as_secs_f64() * 1e6);
    }
    for threads in THREADS {
        for (name, key) in [("memory", &here), ("the HSM", &there)] {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| (0..SIGNATURES / threads).for_each(|_| sign(key)));
                }
            });
            println!(
                "{threads} threads, {name}: {:.0} signatures a second",
                f64::from(SIGNATURES) / begun.elapsed().as_secs_f64()
            );
        }
    }
    hsm.destroy(&id).unwrap();
    hsm.close();
}

fn sign(key: &SigningKey) {
    black_box(key.sign(&TokenRequest::new(key.id(), [7; 256])).unwrap());
}
