//! The issuer's secret keys of private token types, which this gateway verifies tokens with: copies of the issuer's key files in
//! a directory.

use postern_daemon::files::exposed_mode;
use postern_token::{DirectoryKey, TokenType, TokenTypes, VerifyingKey, key_file};
use std::io;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Accepted token types, and the secret keys of private ones as they were in their directory.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) types: TokenTypes,
    secrets: Vec<VerifyingKey>,
    directory: Option<PathBuf>,
    /// Reason why a file, or the whole directory, is unusable.
    fault: Option<String>,
    /// Reason why a listed key is unusable, if any is.
    pub(crate) passed_over: Option<String>,
}

impl Accepted {
    /// Reads the key files of a directory; there are no secrets without one. Blocks on the disk.
    pub(crate) fn read(types: TokenTypes, directory: Option<&Path>) -> Self {
        let (secrets, fault, passed_over) = (Vec::new(), None, None);
        let mut accepted =
            Self { types, secrets, directory: directory.map(Path::to_owned), fault, passed_over };
        if let Some(directory) = directory {
            match std::fs::read_dir(directory) {
                Ok(entries) => entries.for_each(|entry| accepted.take_in(entry)),
                Err(error) => accepted.fault = Some(format!("cannot read {}: {error}", directory.display())),
            }
        }
        accepted
    }

    #[cfg(test)]
    pub(crate) fn public() -> Self {
        Self::read(TokenTypes::PUBLIC, None)
    }

    /// Returns `true` if the secret of a private key is present.
    pub(crate) fn has_secret(&self, entry: &DirectoryKey) -> bool {
        entry.key_bytes().is_ok_and(|bytes| self.position(entry.token_type(), &bytes).is_some())
    }

    pub(crate) fn key(&mut self, entry: &DirectoryKey) -> Result<VerifyingKey, String> {
        let bytes = entry.key_bytes().map_err(|error| error.to_string())?;
        if entry.token_type().is_private() {
            return self.find(entry.token_type(), &bytes);
        }
        VerifyingKey::from_spki(&bytes).map_err(|error| error.to_string())
    }

    fn take_in(&mut self, entry: io::Result<std::fs::DirEntry>) {
        let read = entry.map_err(|error| error.to_string()).and_then(|entry| {
            let path = entry.path();
            let Some(token_type) = key_file::token_type(&path).filter(|of_type| of_type.is_private()) else {
                return Ok(None);
            };
            let named = |error| format!("the key file {}: {error}", path.display());
            read(&path, token_type).map(Some).map_err(named)
        });
        match read {
            Ok(key) => self.secrets.extend(key),
            Err(reason) => self.fault = Some(reason),
        }
    }

    /// Removes and returns the key that verifies tokens of a published key.
    fn find(&mut self, token_type: TokenType, public_key: &[u8]) -> Result<VerifyingKey, String> {
        match self.position(token_type, public_key) {
            Some(index) => Ok(self.secrets.swap_remove(index)),
            None => Err(self.missing(token_type)),
        }
    }

    fn position(&self, token_type: TokenType, public_key: &[u8]) -> Option<usize> {
        let is_it = |key: &VerifyingKey| key.token_type() == token_type && key.public_key() == public_key;
        self.secrets.iter().position(is_it)
    }

    fn missing(&self, token_type: TokenType) -> String {
        let Some(directory) = &self.directory else {
            return format!(
                "a key of type {token_type} verifies tokens only with the issuer's secret, and issuer.secrets names no directory \
                 with copies of its key files"
            );
        };
        let why = self.fault.as_ref().map_or(String::new(), |fault| format!(" ({fault})"));
        format!(
            "no key file in {} is that of a key of type {token_type} which the issuer lists{why}: copy it from the issuer's \
             [keys] directory",
            directory.display()
        )
    }
}

fn read(path: &Path, token_type: TokenType) -> Result<VerifyingKey, String> {
    let unreadable = |error: io::Error| error.to_string();
    if let Some(mode) = exposed_mode(&std::fs::metadata(path).map_err(unreadable)?) {
        return Err(format!(
            "other users can read it (mode {mode:04o}), and anyone who has it can issue tokens: run chmod 600 on it"
        ));
    }
    let content = Zeroizing::new(std::fs::read(path).map_err(unreadable)?);
    if key_file::is_encrypted(&content) {
        let plain = "make one with `postern issuer key export ID FILE --plain`";
        return Err(format!("it is encrypted, and a gateway reads plain copies: {plain}"));
    }
    VerifyingKey::from_file(token_type, &content).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::SigningKey;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_found_by_its_published_form_and_what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let of_type = TokenType::VoprfRistretto255;
        let secret = SigningKey::generate(of_type).unwrap();
        let public = SigningKey::from_secret(of_type, &secret).unwrap().public_key().to_vec();
        let path = directory.path().join("1-2-3-00000000.type5");
        std::fs::write(&path, key_file::write(of_type, &secret)).unwrap();
        let permit = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let read_from = |path: Option<&Path>| Accepted::read(TokenTypes::PUBLIC, path);
        let read = || read_from(Some(directory.path()));

        permit(0o600);
        std::fs::write(directory.path().join("notes.txt"), "no key").unwrap();
        assert_eq!(read().find(of_type, &public).unwrap().public_key(), public);
        let other = read().find(of_type, &public[1..]).unwrap_err();
        assert!(other.contains("copy it from the issuer's"), "{other}");

        permit(0o640);
        let exposed = read().find(of_type, &public).unwrap_err();
        assert!(exposed.contains("mode 0640"), "{exposed}");
        permit(0o600);
        std::fs::write(&path, "no digits").unwrap();
        let damaged = read().find(of_type, &public).unwrap_err();
        assert!(damaged.contains("not the secret of a key of type 5"), "{damaged}");
        let passphrase = key_file::Passphrase::new(b"correct horse battery staple");
        std::fs::write(&path, passphrase.encrypt(&key_file::write(of_type, &secret)).unwrap()).unwrap();
        let encrypted = read().find(of_type, &public).unwrap_err();
        assert!(encrypted.contains("key export ID FILE --plain"), "{encrypted}");
        let away = read_from(Some(&directory.path().join("away"))).find(of_type, &public).unwrap_err();
        assert!(away.contains("cannot read"), "{away}");
        let unnamed = read_from(None).find(of_type, &public).unwrap_err();
        assert!(unnamed.contains("issuer.secrets names no directory"), "{unnamed}");
    }
}
