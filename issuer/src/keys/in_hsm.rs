//! Keys of type 2 in an HSM (`keys.pkcs11`). Their files refer to them ([`Reference`]), so that times, rotation and retirement are
//! those of every key file.
//!
//! A key is made in four steps: a file `….pkcs11-begun` says with which id; the HSM makes the key; its file is written; the first file
//! is removed. Whatever a crash leaves is found by that file, and destroyed. A key that gave way is destroyed when its file
//! is removed for good, and before it: a crash between leaves a file that refers to nothing.

use super::at_rest::{AtRest, Read, read_secret};
use super::{KeyStore, KeysError, TokenKey, key_files, parse_name, set_aside};
use crate::config::{Keys, Pkcs11Config};
use crate::health::{Fault, Health};
use crate::keyring::{KeyPhase, Keyring};
use postern_daemon::files::{sync_name, write_private};
use postern_pkcs11::{Hsm, HsmError, KeyName, Options};
use postern_token::key_file::{self, Reference};
use postern_token::{SigningKey, TokenRequest, TokenType, UnixSeconds, spki_of_modulus};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// The ending of the file of a key that is being made.
const BEGUN: &str = "pkcs11-begun";
/// The length of a new `CKA_ID`, which is random.
const ID_LEN: usize = 16;
/// How often readiness looks at the HSM.
const LOOK: Duration = Duration::from_secs(1);

/// The HSM of the configuration.
#[derive(Debug)]
pub(super) struct InHsm {
    pub(super) hsm: Hsm,
    makes_keys: bool,
}

impl InHsm {
    /// Loads the module and reads the PIN once, to find a mistake of the configuration at the start. The HSM is not used.
    pub(super) fn of(config: &Pkcs11Config) -> Result<Self, KeysError> {
        let Pkcs11Config { module, token, pin_file, timeout, new_keys } = config.clone();
        pin(&pin_file).map_err(|reason| KeysError::PinFile { path: pin_file.clone(), reason })?;
        let read = {
            let pin_file = pin_file.clone();
            Box::new(move || pin(&pin_file))
        };
        let options = Options { module: module.clone(), token, pin_file, pin: read, timeout: timeout.get() };
        let hsm = Hsm::load(options).map_err(|source| KeysError::Module { path: module, source })?;
        Ok(Self { hsm, makes_keys: new_keys })
    }

    /// Makes a key. It is kept once [`Begun::keep`] is called.
    fn make(&self, directory: &Path) -> Result<(SigningKey, Reference, Begun), KeysError> {
        let failed = |source| KeysError::Hsm { source };
        let mut id = vec![0; ID_LEN];
        aws_lc_rs::rand::fill(&mut id)
            .map_err(|_| KeysError::Generate(postern_token::SignError::NoRandomness))?;
        let path = directory.join(format!("{}.{BEGUN}", hex::encode(&id)));
        write_private(&path, b"").map_err(|source| KeysError::Unwritable { path: path.clone(), source })?;
        let begun = Begun { path, hsm: self.hsm.clone(), id: id.clone() };
        let made = self.hsm.generate(&id).map_err(failed).and_then(|modulus| {
            let public_key = spki_of_modulus(&modulus).map_err(KeysError::HsmKey)?;
            let reference = Reference { token: self.hsm.token().to_owned(), id, public_key };
            Ok((self.key(&reference).map_err(KeysError::HsmKey)?, reference))
        });
        let tried = made.and_then(|(signing, reference)| {
            // A key that cannot sign is found out now, and not when clients use it.
            match signing.sign(&TokenRequest::new(signing.id(), [1; 256])) {
                Ok(_) => Ok((signing, reference)),
                Err(error) => {
                    let why = self.hsm.condition().unwrap_or_else(|| error.to_string());
                    Err(KeysError::Trial { why })
                }
            }
        });
        match tried {
            Ok((signing, reference)) => Ok((signing, reference, begun)),
            Err(error) => {
                begun.discard();
                Err(error)
            }
        }
    }

    fn key(&self, reference: &Reference) -> Result<SigningKey, postern_token::KeyError> {
        let key = self.hsm.key(KeyName::of(reference)?);
        SigningKey::elsewhere(&reference.public_key, key)
    }
}

/// The PIN in the first line of a file.
fn pin(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let text = read_secret(path)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err("has nothing in its first line, which has to be the PIN".to_owned());
    }
    Ok(Zeroizing::new(line.to_vec()))
}

/// A key in the HSM whose file is not there yet.
#[derive(Debug)]
pub(super) struct Begun {
    path: PathBuf,
    hsm: Hsm,
    id: Vec<u8>,
}

impl Begun {
    /// Its file is written.
    pub(super) fn keep(self) {
        self.over();
    }

    /// It is not wanted. What cannot be destroyed now is later.
    pub(super) fn discard(self) {
        if self.hsm.destroy(&self.id).is_ok() {
            self.over();
        }
    }

    fn over(&self) {
        let removed = std::fs::remove_file(&self.path).and_then(|()| sync_name(&self.path));
        if let Err(error) = removed {
            tracing::warn!("{} cannot be removed: {error}; it does no harm", self.path.display());
        }
    }
}

/// A new key, and what its file holds.
pub(super) struct Made {
    pub(super) signing: SigningKey,
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) begun: Option<Begun>,
}

impl AtRest {
    /// Makes a key where new ones of this type belong.
    pub(super) fn make(&self, directory: &Path, token_type: TokenType) -> Result<Made, KeysError> {
        match &self.in_hsm {
            Some(in_hsm) if in_hsm.makes_keys && token_type == TokenType::BlindRsa2048 => {
                let (signing, reference, begun) = in_hsm.make(directory)?;
                Ok(Made { signing, content: Zeroizing::new(reference.write()), begun: Some(begun) })
            }
            _ => {
                let secret = SigningKey::generate(token_type).map_err(KeysError::Generate)?;
                let signing = SigningKey::from_secret(token_type, &secret).map_err(KeysError::Generate)?;
                Ok(Made { signing, content: key_file::write(token_type, &secret), begun: None })
            }
        }
    }

    /// The key that a file of this name and content refers to. Whether the HSM has it is not asked.
    pub(super) fn refer(&self, path: &Path, content: Zeroizing<Vec<u8>>) -> Result<Read, KeysError> {
        let name = || KeysError::Name { path: path.to_owned() };
        let corrupt = |source| KeysError::Reference { path: path.to_owned(), source };
        let (life, id) = parse_name(path).ok_or_else(name)?;
        let reference = Reference::parse(&content).map_err(corrupt)?;
        let in_hsm = self.in_hsm.as_ref().ok_or_else(|| KeysError::NoHsm { path: path.to_owned() })?;
        let signing = in_hsm.key(&reference).map_err(|error| corrupt(error.into()))?;
        if signing.id().short() != id {
            return Err(KeysError::OtherKey { path: path.to_owned() });
        }
        let key = TokenKey { signing: Arc::new(signing), life };
        Ok(Read { key, plain: content, is_current: true })
    }

    /// Finds that the HSM has the key of a file that is being imported.
    pub(super) fn find(&self, content: &[u8]) -> Result<(), KeysError> {
        let name = Reference::parse(content).ok().and_then(|reference| KeyName::of(&reference).ok());
        match (&self.in_hsm, name) {
            (Some(in_hsm), Some(name)) => in_hsm.hsm.find(&name).map_err(|source| KeysError::Hsm { source }),
            _ => Ok(()),
        }
    }

    /// Destroys the key that a file refers to which is about to be removed for good. Returns whether it may be.
    pub(super) fn release(&self, path: &Path, original: &Path) -> bool {
        if !key_file::is_reference(original) {
            return true;
        }
        let Ok(reference) =
            std::fs::read(path).map_err(drop).and_then(|text| Reference::parse(&text).map_err(drop))
        else {
            return true; // it names no key
        };
        let Some(in_hsm) = &self.in_hsm else { return false };
        match in_hsm.hsm.destroy(&reference.id) {
            Ok(0) => true,
            Ok(_) => {
                tracing::info!(
                    "the private key with the CKA_ID {} is destroyed in the HSM: its time was over a week ago ({})",
                    reference.id_hex(),
                    original.display()
                );
                true
            }
            Err(HsmError::Key(why)) => {
                let error = HsmError::Key(why);
                tracing::warn!(
                    "the private key with the CKA_ID {} cannot be destroyed, although its time is over: {error}. It is tried again",
                    reference.id_hex()
                );
                false
            }
            Err(_) => false, // readiness has it
        }
    }
}

impl KeyStore {
    /// The HSM, if there is one.
    pub(crate) fn hsm(&self) -> Option<Hsm> {
        self.at_rest.in_hsm.as_ref().map(|in_hsm| in_hsm.hsm.clone())
    }

    /// Destroys what was being made when the process died, and reports once what else no file refers to. Does nothing while the HSM
    /// does not answer.
    pub(super) fn tidy_hsm(&mut self) {
        let Some(hsm) = self.hsm().filter(Hsm::is_ready) else { return };
        if let Err(error) = self.destroy_begun(&hsm) {
            tracing::warn!(
                "keys that were being made in the HSM when the process died are not destroyed yet: {error}"
            );
        }
        if !std::mem::replace(&mut self.has_looked_for_orphans, true) {
            for orphan in self.orphans() {
                tracing::warn!("{orphan}");
            }
        }
    }

    fn destroy_begun(&self, hsm: &Hsm) -> Result<(), String> {
        let known = self.referred();
        for entry in std::fs::read_dir(self.directory.path()).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.extension().is_none_or(|extension| extension != BEGUN) {
                continue;
            }
            let id = path.file_stem().and_then(|id| hex::decode(id.as_encoded_bytes()).ok());
            if let Some(id) = id.filter(|id| !known.contains(id))
                && hsm.destroy(&id).map_err(|error| error.to_string())? > 0
            {
                tracing::info!(
                    "a key that was being made in the HSM when the process died is destroyed (CKA_ID {})",
                    hex::encode(&id)
                );
            }
            std::fs::remove_file(&path).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Private keys of an issuer in the HSM that no file here refers to, a sentence each; or why they cannot be looked for.
    pub(super) fn orphans(&self) -> Vec<String> {
        let Some(hsm) = self.hsm() else { return Vec::new() };
        let found = match hsm.list() {
            Ok(found) => found,
            Err(error) => return vec![format!("what is in the HSM cannot be listed: {error}")],
        };
        let known = self.referred();
        let orphans = found.into_iter().filter(|found| !known.contains(&found.id));
        orphans
            .map(|found| {
                let id = hex::encode(&found.id);
                format!(
                    "no file in {} refers to the private key with the CKA_ID {id} in the HSM. It signs nothing here. If it is not another \
                     issuer's, destroy it: pkcs11-tool --login --delete-object --type privkey --id {id}",
                    self.directory.path().display()
                )
            })
            .collect()
    }

    /// The ids of all keys that files refer to, those that are set aside included.
    fn referred(&self) -> HashSet<Vec<u8>> {
        let directory = self.directory.path();
        let aside = set_aside::files(directory).unwrap_or_default();
        let live = key_files(directory).unwrap_or_default().into_iter().map(|path| (path.clone(), path));
        live.chain(aside)
            .filter(|(_, original)| key_file::is_reference(original))
            .filter_map(|(path, _)| Reference::parse(&std::fs::read(path).ok()?).ok())
            .map(|reference| reference.id)
            .collect()
    }
}

/// What `doctor` says of the HSM and its keys beside what a start refuses. It does not try the PIN.
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
    let Ok(in_hsm) = InHsm::of(config) else { return remarks }; // a start says why
    let paths = key_files(&keys.directory).unwrap_or_default();
    let references = paths.iter().filter(|path| key_file::is_reference(path));
    let references = references.filter_map(|path| Reference::parse(&std::fs::read(path).ok()?).ok());
    let names = references.filter_map(|reference| KeyName::of(&reference).ok()).collect();
    let found = in_hsm.hsm.survey(names).into_iter().map(|found| format!("[keys.pkcs11]: {found}"));
    remarks.extend(found);
    remarks
}

/// Tells readiness how the HSM stands. Never ends; cancel safe.
pub(crate) async fn watch(hsm: Option<Hsm>, keyring: &Keyring, health: &Health) {
    let Some(hsm) = hsm else { return std::future::pending().await };
    loop {
        match hsm.condition() {
            Some(reason) => health.raise(Fault::Hsm, reason),
            None => health.clear(Fault::Hsm),
        }
        let newest = keyring.view(UnixSeconds::now()).into_iter().filter(|key| key.phase == KeyPhase::Newest);
        let unable: Vec<_> =
            newest.filter(|key| hsm.is_able(key.id) == Some(false)).map(|key| key.id.short()).collect();
        if unable.is_empty() {
            health.clear(Fault::NoSigner);
        } else {
            health.raise(
                Fault::NoSigner,
                format!(
                    "requests for tokens are answered 503, because the private key of the token key {} is in the HSM and cannot be \
                     used; the key directory is served, and tokens that are out stay good",
                    unable.join(" and ")
                ),
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}
