//! Refuses API keys that can be guessed: words, names, short numbers, the examples' keys, placeholders. With such a
//! key, anyone can take the account's tokens.
//!
//! The configuration holds only hashes, so each guess is hashed: some hundred milliseconds of CPU at each start and
//! reload.

use crate::StartError;
use crate::config::{Account, KeyHash, invalid};
use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Numbers of up to this many digits, with leading zeros, are tried.
const DIGITS: usize = 6;

/// Words that people write in place of a secret. Each is also tried in capitals, and with each of [`ENDS`] appended.
const WORDS: &[&str] = &[
    "",
    "1q2w3e4r",
    "1qaz2wsx",
    "abc",
    "access",
    "account",
    "admin",
    "administrator",
    "agent",
    "alice",
    "anonymous",
    "apikey",
    "api",
    "api-key",
    "api_key",
    "asdf",
    "asdfgh",
    "bar",
    "baz",
    "bearer",
    "bob",
    "browser",
    "change-me",
    "change_me",
    "changeit",
    "changeme",
    "client",
    "company",
    "credential",
    "default",
    "demo",
    "dev",
    "development",
    "dragon",
    "dummy",
    "example",
    "fake",
    "family",
    "fleet",
    "foo",
    "foobar",
    "football",
    "friend",
    "friends",
    "gateway",
    "god",
    "guest",
    "hello",
    "home",
    "hunter",
    "iloveyou",
    "insecure",
    "internal",
    "issuer",
    "key",
    "lab",
    "letmein",
    "local",
    "localhost",
    "login",
    "love",
    "master",
    "me",
    "monkey",
    "my",
    "my-api-key",
    "my-key",
    "my-secret",
    "my-token",
    "myapikey",
    "mykey",
    "mypassword",
    "mysecret",
    "mytoken",
    "name",
    "none",
    "nobody",
    "null",
    "office",
    "open",
    "openssl",
    "operator",
    "p4ssw0rd",
    "p@ssw0rd",
    "pass",
    "passphrase",
    "passw0rd",
    "password",
    "placeholder",
    "postern",
    "princess",
    "privacy",
    "privacypass",
    "private",
    "prod",
    "production",
    "proxy",
    "public",
    "qa",
    "qwerty",
    "qwertz",
    "qwertyuiop",
    "random",
    "replace-me",
    "replaceme",
    "root",
    "s3cr3t",
    "s3cret",
    "sample",
    "secret",
    "secret-key",
    "secretkey",
    "server",
    "service",
    "shadow",
    "staging",
    "sunshine",
    "superman",
    "supersecret",
    "team",
    "temp",
    "temporary",
    "test",
    "test-key",
    "test_key",
    "tester",
    "testing",
    "testkey",
    "the-key",
    "todo",
    "token",
    "trial",
    "trustno",
    "undefined",
    "user",
    "username",
    "value",
    "vpn",
    "welcome",
    "word",
    "work",
    "xxx",
    "xxxx",
    "your",
    "your-api-key",
    "your-key",
    "yourkey",
    "zxcvbn",
    "zxcvbnm",
];
/// Suffixes of a word. A line end is what `echo` adds before a hash is made.
const ENDS: &[&str] = &[
    "",
    "\n",
    "!",
    "!!",
    "0",
    "00",
    "000",
    "01",
    "007",
    "1",
    "1!",
    "11",
    "12",
    "123",
    "123!",
    "1234",
    "12345",
    "123456",
    "123456789",
    "1234567890",
    "2",
    "2023",
    "2024",
    "2025",
    "2026",
    "2027",
    "21",
    "22",
    "3",
    "42",
    "69",
    "99",
    "key",
    "-key",
    "_key",
    "-api-key",
    "-secret",
    "-token",
    "password",
    "-password",
];
/// Keys of examples and guides.
const EXAMPLES: &[&str] = &[
    "$KEY",
    "$key",
    "${KEY}",
    "...",
    "<key>",
    "<KEY>",
    "<api-key>",
    "<your key>",
    "KEY",
    "the key",
    "the key from above",
    "the account's key",
    "YOUR_API_KEY",
    "your_api_key",
    "API_KEY",
    "POSTERN_API_KEY",
    "correct horse battery staple",
    "correcthorsebatterystaple",
    "deadbeef",
    "DEADBEEF",
    "cafebabe",
    "0123456789abcdef",
    "0123456789ABCDEF",
    "00000000-0000-0000-0000-000000000000",
];

/// How to make a key: the end of every error message here.
const MAKE: &str = "make one of random bytes with `key=$(openssl rand -hex 32)`, give it to the client, and write here what \
                    `printf %s \"$key\" | sha256sum` prints";

/// Hashes of keys that were guessed at in vain: guessing takes some hundred milliseconds, and a reload changes few of them.
#[derive(Debug, Default)]
pub(crate) struct Strong(Mutex<HashSet<[u8; 32]>>);

impl Strong {
    /// Those of a configuration that was [checked](check).
    pub(crate) fn of(accounts: &[Account]) -> Self {
        Self(Mutex::new(accounts.iter().map(|account| account.key_sha256.0).collect()))
    }

    /// The same as [`check`], without guessing twice at a key. A name that an account got since is tried with every key.
    pub(crate) fn check(&self, accounts: &[Account]) -> Result<(), StartError> {
        let mut known = self.0.lock();
        let is_new = |account: &&Account| !known.contains(&account.key_sha256.0);
        let new: Vec<Account> = accounts.iter().filter(is_new).cloned().collect();
        check_names(accounts)?;
        check(&new)?;
        known.extend(new.iter().map(|account| account.key_sha256.0));
        Ok(())
    }
}

/// Refuses the first account whose API key is the name of an account.
fn check_names(accounts: &[Account]) -> Result<(), StartError> {
    let hashes = accounts.iter().map(|account| (account.key_sha256.0, account)).collect::<HashMap<_, _>>();
    let spelled = accounts.iter().flat_map(|account| spellings(&account.name));
    let named = spelled.into_iter().find_map(|guess| hashes.get(&sha256(guess.as_bytes())).copied());
    named.map_or(Ok(()), |account| Err(weak(account, GUESSED)))
}

/// Refuses the first account whose API key can be guessed.
pub(crate) fn check(accounts: &[Account]) -> Result<(), StartError> {
    if let Some(account) = accounts.iter().find(|account| is_placeholder(account.key_sha256)) {
        return Err(weak(account, "is a placeholder, and no key has this hash"));
    }
    let hashes = accounts.iter().map(|account| (account.key_sha256.0, account)).collect::<HashMap<_, _>>();
    let Some(account) = hashes.get(&sha256(b"")).copied().or_else(|| guessed(accounts, &hashes)) else {
        return Ok(());
    };
    let is_empty = account.key_sha256.0 == sha256(b"");
    Err(weak(
        account,
        if is_empty { "is the hash of nothing, as of a variable that is not set" } else { GUESSED },
    ))
}

const GUESSED: &str = "is the hash of a key that is easily guessed, so that anyone can have its tokens";

fn weak(account: &Account, what: &str) -> StartError {
    invalid(format!("[[accounts]] {:?}: its key_sha256 {what}: {MAKE}", account.name))
}

/// One byte, or one pair of digits after the other: no real key has such a hash.
fn is_placeholder(KeyHash(hash): KeyHash) -> bool {
    let repeats = hash.iter().all(|byte| *byte == hash[0]);
    let counts = |step: u8| hash.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(step));
    let of_eight = hash.chunks(8).all(|eight| eight == [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    repeats || counts(1) || counts(0x11) || of_eight
}

fn guessed<'a>(accounts: &'a [Account], hashes: &HashMap<[u8; 32], &'a Account>) -> Option<&'a Account> {
    if hashes.is_empty() {
        return None;
    }
    let is_hit = |guess: &str| hashes.get(&sha256(guess.as_bytes())).copied();
    let names = accounts.iter().map(|account| account.name.as_str());
    let words = WORDS.iter().copied().chain(names);
    EXAMPLES
        .iter()
        .find_map(|example| is_hit(example).or_else(|| is_hit(&format!("{example}\n"))))
        .or_else(|| words.into_iter().find_map(|word| spellings(word).iter().find_map(|guess| is_hit(guess))))
        .or_else(|| numbers(is_hit))
}

/// A word in small letters, in capitals, with a capital, as it is, and each with every end.
fn spellings(word: &str) -> Vec<String> {
    let (small, large) = (word.to_lowercase(), word.to_uppercase());
    let mut letters = small.chars();
    let capital: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    let mut stems = vec![word.to_owned(), small, large, capital];
    stems.sort();
    stems.dedup();
    stems.iter().flat_map(|stem| ENDS.iter().map(move |end| format!("{stem}{end}"))).collect()
}

/// All numbers of up to [`DIGITS`] digits.
fn numbers<T>(mut is_hit: impl FnMut(&str) -> Option<T>) -> Option<T> {
    let mut guess = String::new();
    for digits in 1..=DIGITS {
        for number in 0..10_u32.pow(u32::try_from(digits).unwrap_or(u32::MAX)) {
            guess.clear();
            let _ = write!(guess, "{number:0digits$}"); // writing to a String cannot fail
            if let Some(hit) = is_hit(&guess) {
                return Some(hit);
            }
        }
    }
    None
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref()); // SHA-256 always gives 32 bytes
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, hash: [u8; 32]) -> Account {
        Account { name: name.to_owned(), key_sha256: KeyHash(hash), quota: "1/1d".parse().ok(), tier: None }
    }

    fn of_key(key: &str) -> Result<(), StartError> {
        check(&[account("other", sha256(b"4f1d2c9e8b7a")), account("Blue Team", sha256(key.as_bytes()))])
    }

    #[test]
    fn keys_that_people_think_of_are_refused_by_the_account_and_with_what_to_do() {
        for key in [
            "test",
            "Test",
            "TEST\n",
            "secret",
            "changeme",
            "password123",
            "hunter2",
            "letmein",
            "postern",
            "admin1",
            "123456",
            "000000",
            "7",
            "0042",
            "482913",
            "the key from above",
            "Blue Team",
            "blue team1",
            "BLUE TEAM",
        ] {
            let error = of_key(key).unwrap_err().to_string();
            assert!(
                error.starts_with("[[accounts]] \"Blue Team\": its key_sha256 is the hash of a key that"),
                "{error}"
            );
            assert!(error.contains("openssl rand -hex 32"), "{error}");
        }
        assert!(of_key("").unwrap_err().to_string().contains("is the hash of nothing"));
    }

    #[test]
    fn a_reload_guesses_at_new_keys_alone_and_tries_new_names_with_all() {
        let (first, second) = (account("one", sha256(b"9c1e4f6a8b2d")), account("two", sha256(b"blue team")));
        let strong = Strong::of(std::slice::from_ref(&first));
        strong.check(std::slice::from_ref(&first)).unwrap();
        strong.check(&[first.clone(), second.clone()]).unwrap(); // no one thinks of it
        let renamed = Account { name: "Blue Team".to_owned(), ..second };
        assert!(strong.check(&[first.clone(), renamed]).unwrap_err().to_string().contains("easily guessed"));
        assert!(strong.check(&[first, account("three", sha256(b"letmein"))]).is_err());
    }

    #[test]
    fn placeholders_are_refused() {
        let counting: Vec<u8> = (0..32).collect();
        let eight = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef].repeat(4);
        for hash in [[0; 32], [0x11; 32], counting.try_into().unwrap(), eight.try_into().unwrap()] {
            let error = check(&[account("one", hash)]).unwrap_err().to_string();
            assert!(error.contains("\"one\": its key_sha256 is a placeholder"), "{error}");
        }
    }

    #[test]
    fn a_random_key_is_fine_and_so_is_an_issuer_without_accounts() {
        of_key("c0ffee254729296a45a3885639ac7e10f9d54979").unwrap();
        check(&[]).unwrap();
    }
}
