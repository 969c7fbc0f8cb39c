//! The calls into a module (PKCS#11 2.40 or 3.x), by way of `cryptoki`. Each may block for as long as it likes.

use crate::{KeyName, LABEL, MODULUS_LEN, Trouble};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, ObjectClass, ObjectHandle};
use cryptoki::session::UserType;
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::RawAuthPin;
use std::collections::HashMap;
use std::path::Path;

/// 65537, big-endian.
const EXPONENT: [u8; 3] = [1, 0, 1];

/// Why a module is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it cannot be loaded: {0}. Name the PKCS#11 library of the HSM's maker, for this machine's architecture"
)]
pub struct LoadError(String);

/// An object of ours in the HSM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its `CKA_ID`.
    pub id: Vec<u8>,
}

/// A module, loaded. One in a process.
pub(crate) struct Module(Pkcs11);

/// Opens sessions with the token.
#[derive(Clone)]
pub(crate) struct Opener {
    pkcs11: Pkcs11,
    slot: Slot,
}

/// A session, for one thread at a time. It is not closed when dropped: what ends it is [`Module::disconnect`], since by then its
/// handle may be another's.
pub(crate) struct Session {
    session: cryptoki::session::Session,
    opener: Opener,
    private_keys: HashMap<Vec<u8>, ObjectHandle>,
}

impl Module {
    pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
        Pkcs11::new(path).map(Self).map_err(|error| LoadError(error.to_string()))
    }

    /// Initializes the module, and logs in to the token with this label or serial number. The session has to be kept: with the last
    /// one goes the login.
    pub(crate) fn connect(&self, token: &str, pin: &[u8]) -> Result<(Opener, Session), Trouble> {
        let (slot, info) = self.find(token)?;
        if info.user_pin_locked() {
            return Err(Trouble::Pin(format!(
                "the PIN of the token {token:?} is locked, after too many wrong ones: its security officer sets a new one"
            )));
        }
        if info.user_pin_final_try() {
            return Err(Trouble::Pin(format!(
                "one more wrong PIN would lock the token {token:?}, so it was not tried: log in once by hand (pkcs11-tool --login)"
            )));
        }
        self.can_sign(slot, token)?;
        let opener = Opener { pkcs11: self.0.clone(), slot };
        let session = opener.open()?;
        match session.session.login_with_raw(UserType::User, &RawAuthPin::new(Box::new(pin.to_vec()))) {
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok((opener, session)),
            Err(Error::Pkcs11(
                error @ (RvError::PinIncorrect
                | RvError::PinInvalid
                | RvError::PinLenRange
                | RvError::PinExpired
                | RvError::PinLocked
                | RvError::UserPinNotInitialized),
                _,
            )) => Err(Trouble::Pin(format!("the token {token:?} refused the PIN ({error:?})"))),
            Err(error) => Err(trouble(&error)),
        }
    }

    /// Ends every session, so that the next [`Module::connect`] begins anew: many modules find a token that is back in no other
    /// way. No call may be under way.
    pub(crate) fn disconnect(&self) {
        let _ = self.0.clone().finalize(); // it may not have been initialized
    }

    /// What a start would find, without spending an attempt at the PIN: a sentence for each thing that is wrong. The public halves of
    /// keys can be seen without it.
    pub(crate) fn survey(&self, token: &str, keys: &[KeyName]) -> Vec<String> {
        let survey = || {
            let (slot, info) = self.find(token)?;
            let mut found = Vec::new();
            if info.user_pin_locked() || info.user_pin_final_try() || info.user_pin_count_low() {
                let state = match (info.user_pin_locked(), info.user_pin_final_try()) {
                    (true, _) => "its PIN is locked: its security officer sets a new one",
                    (_, true) => {
                        "one more wrong PIN locks it: the issuer does not try; log in once by hand (pkcs11-tool --login)"
                    }
                    _ => {
                        "a wrong PIN was tried, and a few more lock it: make sure that pin_file has the right one"
                    }
                };
                found.push(format!("the token {token:?}: {state}"));
            }
            found.extend(self.can_sign(slot, token).err().map(|trouble| trouble.to_string()));
            let session = self.0.open_ro_session(slot).map_err(|error| trouble(&error))?;
            for key in keys {
                let template = [Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::Id(key.id.clone())];
                let halves = session.find_objects(&template).map_err(|error| trouble(&error))?;
                if halves.is_empty() {
                    found.push(format!(
                        "the token {token:?} shows no public half of the token key {} (CKA_ID {}): the key may be missing",
                        key.name,
                        key.id_hex()
                    ));
                }
            }
            Ok(found)
        };
        let found = survey();
        self.disconnect();
        found.unwrap_or_else(|trouble: Trouble| vec![trouble.to_string()])
    }

    fn find(&self, token: &str) -> Result<(Slot, TokenInfo), Trouble> {
        match self.0.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(error) => return Err(trouble(&error)),
        }
        let slots = self.0.get_slots_with_token().map_err(|error| trouble(&error))?;
        let mut others = Vec::new();
        for slot in slots {
            let Ok(info) = self.0.get_token_info(slot) else { continue };
            if info.label() == token || info.serial_number() == token {
                return Ok((slot, info));
            }
            if info.token_initialized() {
                others.push(format!("{:?} ({})", info.label(), info.serial_number()));
            }
        }
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        Err(Trouble::Away(format!(
            "the module shows no token with the label or serial number {token:?}; it shows {others}"
        )))
    }

    fn can_sign(&self, slot: Slot, token: &str) -> Result<(), Trouble> {
        match self.0.get_mechanism_info(slot, MechanismType::RSA_X_509) {
            Ok(info) if info.sign() => Ok(()),
            Ok(_) | Err(Error::Pkcs11(RvError::MechanismInvalid, _)) => Err(Trouble::Away(format!(
                "the token {token:?} does not sign with CKM_RSA_X_509 (RSA without padding), which blind signatures are made with: \
                 enable it, or use another HSM"
            ))),
            Err(error) => Err(trouble(&error)),
        }
    }
}

impl Opener {
    pub(crate) fn open(&self) -> Result<Session, Trouble> {
        let session = self.pkcs11.open_rw_session_no_drop(self.slot).map_err(|error| trouble(&error))?;
        Ok(Session { session, opener: self.clone(), private_keys: HashMap::new() })
    }
}

impl Session {
    /// Asks the token for nothing but an answer.
    pub(crate) fn is_alive(&self) -> Result<(), Trouble> {
        self.opener.pkcs11.get_token_info(self.opener.slot).map_err(|error| trouble(&error))?;
        self.session.get_session_info().map(drop).map_err(|error| trouble(&error))
    }

    /// Whether the private key is there, and the right one.
    pub(crate) fn find(&mut self, key: &KeyName) -> Result<(), Trouble> {
        self.private_key(key).map(drop)
    }

    /// Looks for each key anew from now on.
    pub(crate) fn forget(&mut self) {
        self.private_keys.clear();
    }

    pub(crate) fn sign(
        &mut self,
        key: &KeyName,
        message: &[u8; MODULUS_LEN],
    ) -> Result<[u8; MODULUS_LEN], Trouble> {
        let handle = self.private_key(key)?;
        let result = self.session.sign(&Mechanism::RsaX509, handle, message);
        let result = result.map_err(|error| trouble(&error))?;
        <[u8; MODULUS_LEN]>::try_from(result.as_slice())
            .map_err(|_| Trouble::Failed(format!("C_Sign gave {} bytes and not {MODULUS_LEN}", result.len())))
    }

    fn private_key(&mut self, key: &KeyName) -> Result<ObjectHandle, Trouble> {
        if let Some(handle) = self.private_keys.get(&key.id) {
            return Ok(*handle);
        }
        let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Id(key.id.clone())];
        let found = self.session.find_objects(&template).map_err(|error| trouble(&error))?;
        let is_empty = found.is_empty();
        for handle in found {
            // Most tokens tell the modulus of a private key. Where one does not, the check of each result does the same.
            let attributes = self.session.get_attributes(handle, &[AttributeType::Modulus]);
            let is_other = attributes.map_err(|error| trouble(&error))?.iter().any(|attribute| {
                matches!(attribute, Attribute::Modulus(modulus) if number(modulus) != number(&key.modulus))
            });
            if !is_other {
                self.private_keys.insert(key.id.clone(), handle);
                return Ok(handle);
            }
        }
        Err(if is_empty { Trouble::NoKey } else { Trouble::OtherKey })
    }

    /// Makes a key pair with this `CKA_ID`; its modulus.
    pub(crate) fn generate(&mut self, id: &[u8]) -> Result<[u8; MODULUS_LEN], Trouble> {
        let name = [Attribute::Token(true), Attribute::Id(id.to_vec()), Attribute::Label(LABEL.into())];
        let public = [
            Attribute::Private(false), // `doctor` looks for it without the PIN
            Attribute::Verify(true),
            Attribute::ModulusBits(2_048.into()),
            Attribute::PublicExponent(EXPONENT.to_vec()),
        ];
        let private = [
            Attribute::Private(true),
            Attribute::Sensitive(true),
            Attribute::Extractable(false),
            Attribute::Sign(true),
            Attribute::Decrypt(false),
            Attribute::Unwrap(false),
        ];
        let (public, _) = self
            .session
            .generate_key_pair(
                &Mechanism::RsaPkcsKeyPairGen,
                &[&name[..], &public].concat(),
                &[&name[..], &private].concat(),
            )
            .map_err(|error| trouble(&error))?;
        let wanted = [AttributeType::Modulus, AttributeType::PublicExponent];
        let attributes = self.session.get_attributes(public, &wanted).map_err(|error| trouble(&error))?;
        let (mut modulus, mut exponent) = (None, None);
        for attribute in &attributes {
            match attribute {
                Attribute::Modulus(bytes) => modulus = number(bytes).try_into().ok(),
                Attribute::PublicExponent(bytes) => exponent = Some(number(bytes)),
                _ => {}
            }
        }
        modulus.filter(|_| exponent == Some(&EXPONENT)).ok_or_else(|| {
            Trouble::Failed("it made a key that has not 2048 bits or not the exponent 65537".to_owned())
        })
    }

    /// Destroys our objects with this `CKA_ID`; how many there were.
    pub(crate) fn destroy(&mut self, id: &[u8]) -> Result<usize, Trouble> {
        self.private_keys.remove(id);
        let template = [Attribute::Id(id.to_vec()), Attribute::Label(LABEL.into())];
        let found = self.session.find_objects(&template).map_err(|error| trouble(&error))?;
        for object in &found {
            self.session.destroy_object(*object).map_err(|error| trouble(&error))?;
        }
        Ok(found.len())
    }

    /// Our private keys.
    pub(crate) fn list(&mut self) -> Result<Vec<Found>, Trouble> {
        let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Label(LABEL.into())];
        let found = self.session.find_objects(&template).map_err(|error| trouble(&error))?;
        let mut listed = Vec::new();
        for object in found {
            let attributes = self.session.get_attributes(object, &[AttributeType::Id]);
            for attribute in attributes.map_err(|error| trouble(&error))? {
                if let Attribute::Id(id) = attribute {
                    listed.push(Found { id });
                }
            }
        }
        Ok(listed)
    }
}

/// Without the zeros that some tokens put in front.
fn number(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// An error as what is to be done about it. What is not known to be an answer counts as a lost session: a new one does no harm.
fn trouble(error: &Error) -> Trouble {
    let Error::Pkcs11(code, function) = error else { return Trouble::Away(error.to_string()) };
    let text = format!("C_{function:?} gave {code:?}"); // the crate's own words are a paragraph of the standard
    match code {
        RvError::SessionCount => Trouble::Full(text),
        RvError::KeyFunctionNotPermitted
        | RvError::KeyTypeInconsistent
        | RvError::KeySizeRange
        | RvError::MechanismInvalid
        | RvError::MechanismParamInvalid
        | RvError::DataInvalid
        | RvError::DataLenRange
        | RvError::TemplateIncomplete
        | RvError::TemplateInconsistent
        | RvError::AttributeTypeInvalid
        | RvError::AttributeValueInvalid
        | RvError::AttributeReadOnly
        | RvError::ActionProhibited
        | RvError::TokenWriteProtected
        | RvError::DeviceMemory
        | RvError::FunctionRejected
        | RvError::FunctionNotSupported => Trouble::Failed(text),
        _ => Trouble::Away(text),
    }
}
