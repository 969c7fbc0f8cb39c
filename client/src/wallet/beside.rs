//! Files next to the wallet that survive a restart. Their names are the wallet's with a suffix.

use postern_daemon::files::write_private;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// A text file next to the wallet, and its last known text.
pub(crate) struct FileBeside {
    pub(crate) path: PathBuf,
    saved: String,
    /// `true` if the last write failed, which has been logged.
    complained: bool,
    /// Consequence of a failed write.
    loss: &'static str,
}

impl FileBeside {
    /// Reads and parses the file with this `ending`; returns the default without a file. If the file cannot be used, logs the
    /// reason and what follows: `unread`. A failed write has the consequence `unwritten`. Blocks on the disk.
    pub(crate) fn read<T: Default>(
        wallet: &Path,
        ending: &str,
        [unread, unwritten]: [&'static str; 2],
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> (Self, T) {
        let mut path = OsString::from(wallet);
        path.push(ending);
        let mut file = Self { path: path.into(), saved: String::new(), complained: false, loss: unwritten };
        let parsed = match std::fs::read_to_string(&file.path) {
            Ok(text) => parse(&text).inspect(|_| file.saved = text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (file, T::default()),
            Err(error) => Err(error.to_string()),
        };
        let parsed = parsed.unwrap_or_else(|reason| {
            tracing::warn!(
                "{} is not used: {reason}. {unread}; delete the file, or mend it and start again",
                file.path.display()
            );
            T::default()
        });
        (file, parsed)
    }

    /// Writes `text` if it differs from the file's and is not empty; returns true unless the file could not be written. Of
    /// consecutive failures, only the first is logged.
    pub(crate) async fn save(&mut self, text: String) -> bool {
        if text.is_empty() || text == self.saved {
            return true;
        }
        let (path, bytes) = (self.path.clone(), text.as_bytes().to_vec());
        let written = spawn_blocking(move || write_private(&path, &bytes)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => (self.saved, self.complained) = (text, false),
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    let (path, loss) = (self.path.display(), self.loss);
                    tracing::warn!("cannot write {path}: {error}; {loss}. Check the disk");
                }
            }
        }
        !self.complained
    }
}

/// A challenge digest as 64 hexadecimal digits.
pub(crate) mod digest_in_hex {
    use postern_token::ChallengeDigest;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(digest: &ChallengeDigest, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&hex::encode(digest.0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(text: D) -> Result<ChallengeDigest, D::Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(String::deserialize(text)?, &mut bytes).map_err(D::Error::custom)?;
        Ok(ChallengeDigest(bytes))
    }
}

/// A key's id as 64 hexadecimal digits, or null.
pub(crate) mod key_in_hex {
    use postern_token::TokenKeyId;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(key: &Option<TokenKeyId>, out: S) -> Result<S::Ok, S::Error> {
        key.map(TokenKeyId::to_hex).serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(text: D) -> Result<Option<TokenKeyId>, D::Error> {
        let Some(text) = Option::<String>::deserialize(text)? else { return Ok(None) };
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(D::Error::custom)?;
        Ok(Some(TokenKeyId(bytes)))
    }
}
