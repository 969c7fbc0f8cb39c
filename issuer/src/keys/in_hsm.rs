//! Keys of type 2 in an HSM (`keys.pkcs11`). Their files are references to them ([`Reference`]), so that times, rotation and
//! retirement work as for every key file.
//!
//! A key is made in four steps: a file `….pkcs11-begun` records its id; the HSM makes the key; the key's file is written; the
//! first file is removed. After a crash that file leads to a key without a file, which is destroyed. A key that was set aside is
//! destroyed just before its file is deleted: a crash in between leaves a file that refers to nothing.

use super::{KeysError, Shelf, set_aside};
use crate::config::{Keys, Pkcs11Config, read_secret};
use crate::hsm::{Hsm, KeyName, Options};
use postern_token::key_file::{self, Reference};
use postern_token::{SigningKey, TokenRequest, TokenType, spki_of_modulus};
use std::collections::HashSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Ending of the file of a key that is being made.
const BEGUN: &str = "pkcs11-begun";
/// Length of a new, random `CKA_ID`, in bytes.
const ID_LEN: usize = 16;

#[derive(Debug)]
pub(super) struct InHsm {
    pub(super) hsm: Hsm,
    pub(super) makes_keys: bool,
}

impl InHsm {
    /// Loads the module and reads the PIN once, to find errors of the configuration at the start. The HSM is not used.
    pub(super) fn of(config: &Pkcs11Config) -> Result<Self, KeysError> {
        let Pkcs11Config { module, token, pin_file, timeout, new_keys } = config.clone();
        pin(&pin_file).map_err(|reason| KeysError::PinFile { path: pin_file.clone(), reason })?;
        let path = pin_file.clone();
        let (pin, timeout) = (Box::new(move || pin(&path)), timeout.get());
        let options = Options { module: module.clone(), token, pin_file, pin, timeout };
        let hsm = Hsm::load(options).map_err(|source| KeysError::Module { path: module, source })?;
        Ok(Self { hsm, makes_keys: new_keys })
    }

    /// Makes a key, which is kept once [`Begun::keep`] is called.
    pub(super) fn make(&self, shelf: &Shelf) -> Result<(SigningKey, Reference, Begun), KeysError> {
        let mut id = vec![0; ID_LEN];
        aws_lc_rs::rand::fill(&mut id)
            .map_err(|_| KeysError::Generate(postern_token::SignError::NoRandomness))?;
        let path = shelf.join(format!("{}.{BEGUN}", hex::encode(&id)));
        shelf.write(&path, b"").map_err(|source| KeysError::Unwritable { path: path.clone(), source })?;
        let begun = Begun { path, hsm: self.hsm.clone(), id: id.clone() };
        match self.generate(id) {
            Ok((signing, reference)) => Ok((signing, reference, begun)),
            Err(error) => {
                begun.discard(shelf);
                Err(error)
            }
        }
    }

    fn generate(&self, id: Vec<u8>) -> Result<(SigningKey, Reference), KeysError> {
        let public_key = spki_of_modulus(&self.hsm.generate(&id)?).map_err(KeysError::HsmKey)?;
        let reference = Reference { token: self.hsm.token().to_owned(), id, public_key };
        let signing = self.key(&reference).map_err(KeysError::HsmKey)?;
        // A key that cannot sign is detected now, and not when clients use it.
        match signing.sign(&TokenRequest::new(signing.id(), [1; 256])) {
            Ok(_) => Ok((signing, reference)),
            Err(error) => {
                Err(KeysError::Trial { why: self.hsm.condition().unwrap_or_else(|| error.to_string()) })
            }
        }
    }

    pub(super) fn key(&self, reference: &Reference) -> Result<SigningKey, postern_token::KeyError> {
        let key = self.hsm.key(KeyName::of(reference)?);
        SigningKey::elsewhere(&reference.public_key, key)
    }

    /// Destroys keys that were being made when the process died, and reports the other keys that no file refers to if this is
    /// the first time. Does nothing while the HSM does not answer.
    pub(super) fn tidy(&self, shelf: &Shelf, has_reported: &mut bool) {
        if !self.hsm.is_ready() {
            return;
        }
        if let Err(error) = self.destroy_begun(shelf) {
            tracing::warn!(
                "keys that were being made in the HSM when the process died are not destroyed yet: {error}"
            );
        }
        if !std::mem::replace(has_reported, true) {
            self.orphans(shelf).iter().for_each(|orphan| tracing::warn!("{orphan}"));
        }
    }

    fn destroy_begun(&self, shelf: &Shelf) -> Result<(), Box<dyn Error>> {
        let known = referred(shelf)?;
        for path in shelf.all()? {
            if path.extension().is_none_or(|extension| extension != BEGUN) {
                continue;
            }
            let id = path.file_stem().and_then(|id| hex::decode(id.as_encoded_bytes()).ok());
            if let Some(id) = id.filter(|id| !known.contains(id))
                && self.hsm.destroy(&id)? > 0
            {
                tracing::info!(
                    "a key that was being made in the HSM when the process died is destroyed (CKA_ID {})",
                    hex::encode(&id)
                );
            }
            shelf.remove(&path)?;
        }
        Ok(())
    }

    /// Returns a sentence for each private key of an issuer in the HSM that no file here refers to, or why they cannot be listed.
    pub(super) fn orphans(&self, shelf: &Shelf) -> Vec<String> {
        let found = match self.hsm.list() {
            Ok(found) => found,
            Err(error) => return vec![format!("what is in the HSM cannot be listed: {error}")],
        };
        let known = match referred(shelf) {
            Ok(known) => known,
            Err(error) => {
                return vec![format!("the key files that refer to the HSM cannot be read: {error}")];
            }
        };
        let orphans = found.iter().filter(|id| !known.contains(*id)).map(hex::encode);
        orphans
            .map(|id| {
                format!(
                    "no file in {} refers to the private key with the CKA_ID {id} in the HSM. It signs nothing here. If it is not another \
                     issuer's, destroy it: pkcs11-tool --login --delete-object --type privkey --id {id}",
                    shelf.directory().display()
                )
            })
            .collect()
    }
}

/// Returns the ids of all keys in the HSM that files refer to, including files that are set aside. Fails if one cannot be read:
/// its key must not count as one without a file.
fn referred(shelf: &Shelf) -> Result<HashSet<Vec<u8>>, KeysError> {
    let aside = set_aside::all(shelf)?.into_iter();
    let aside = aside.filter(|aside| key_file::is_reference(&aside.original)).map(|aside| aside.path);
    let live = shelf.key_files()?.into_iter().filter(|path| key_file::is_reference(path));
    let mut ids = HashSet::new();
    for path in live.chain(aside) {
        let text = shelf.read(&path).map_err(KeysError::unreadable(&path))?;
        ids.extend(Reference::parse(&text).ok().map(|reference| reference.id));
    }
    Ok(ids)
}

/// Reads the PIN from the first line of a file.
fn pin(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let text = read_secret(path)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err("has nothing in its first line, which has to be the PIN".to_owned());
    }
    Ok(Zeroizing::new(line.to_vec()))
}

/// A key in the HSM whose file is not written yet.
#[derive(Debug)]
pub(super) struct Begun {
    path: PathBuf,
    hsm: Hsm,
    id: Vec<u8>,
}

impl Begun {
    /// Destroys an unwanted key. If that fails, a later rotation destroys it.
    pub(super) fn discard(self, shelf: &Shelf) {
        if self.hsm.destroy(&self.id).is_ok() {
            self.keep(shelf);
        }
    }

    /// Ends the making of a key whose file is written.
    pub(super) fn keep(self, shelf: &Shelf) {
        if let Err(error) = shelf.remove(&self.path) {
            tracing::warn!("{} cannot be removed: {error}; it does no harm", self.path.display());
        }
    }
}

/// Returns what `doctor` reports about the HSM and its keys, in addition to what a start rejects. Does not try the PIN.
pub(crate) fn remarks(keys: &Keys) -> Vec<String> {
    let Some(config) = &keys.pkcs11 else { return Vec::new() };
    let mut remarks = Vec::new();
    let files: Vec<u16> =
        keys.types.iter().copied().filter(|code| *code != TokenType::BlindRsa2048.code()).collect();
    if !files.is_empty() {
        remarks.push(format!(
            "[keys.pkcs11]: keys of the types {files:?} stay in files, because PKCS#11 has no operation for them"
        ));
    }
    if !keys.types.contains(&TokenType::BlindRsa2048.code()) {
        remarks.push("[keys.pkcs11] is of no use: [keys] types does not have 2, the one type whose keys can be in an HSM".to_owned());
    }
    let Ok(in_hsm) = InHsm::of(config) else { return remarks }; // a start reports why
    let paths = Shelf::Directory(keys.directory.clone()).key_files().unwrap_or_default();
    let references = paths.iter().filter(|path| key_file::is_reference(path));
    let references = references.filter_map(|path| Reference::parse(&std::fs::read(path).ok()?).ok());
    let names = references.filter_map(|reference| KeyName::of(&reference).ok()).collect();
    let found = in_hsm.hsm.survey(names).into_iter().map(|found| format!("[keys.pkcs11]: {found}"));
    remarks.extend(found);
    remarks
}
