//! Calls into a module (PKCS#11 2.40 or 3.x) through `cryptoki`. Each may block indefinitely.

use super::{KeyName, LABEL, MODULUS_LEN, Trouble};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::UserType;
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::RawAuthPin;
use postern_token::TokenKeyId;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// 65537, big-endian.
const EXPONENT: [u8; 3] = [1, 0, 1];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it cannot be loaded: {0}. Name the PKCS#11 library of the HSM's maker, for this machine's architecture"
)]
pub struct LoadError(String);

/// A loaded module, one per process.
pub(crate) struct Module(Pkcs11);

/// A slot with a token, in which sessions are opened.
#[derive(Clone)]
pub(crate) struct Opener {
    pkcs11: Pkcs11,
    slot: Slot,
    /// The same value for all sessions of a connection.
    connection: Arc<()>,
}

/// A session, for one thread at a time. Dropping it does not close it in the HSM, because its handle may have been given to a
/// session of a later connection. [`Module::disconnect`] closes all sessions.
pub(crate) struct Session {
    session: cryptoki::session::Session,
    opener: Opener,
    private_keys: HashMap<TokenKeyId, ObjectHandle>,
}

impl Module {
    pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
        Pkcs11::new(path).map(Self).map_err(|error| LoadError(error.to_string()))
    }

    /// Initializes the module, and logs in to the token with this label or serial number. The session must be kept: the login
    /// ends with the last session.
    pub(crate) fn connect(&self, token: &str, pin: &[u8]) -> Result<(Opener, Session), Trouble> {
        let (slot, info) = self.initialize_and_find(token)?;
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
        self.check_can_sign(slot, token)?;
        let opener = Opener { pkcs11: self.0.clone(), slot, connection: Arc::default() };
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
            Err(error) => Err(error.into()),
        }
    }

    /// Ends every session, so that the next [`Module::connect`] starts over: many modules detect a token that is back in no other
    /// way. No call may be outstanding.
    pub(crate) fn disconnect(&self) {
        // The module may be uninitialized. Any other failure returns at the next connection.
        let _ = self.0.clone().finalize();
    }

    /// Returns a sentence for each problem that a start would find, without spending an attempt at the PIN. The public halves of
    /// keys are visible without it.
    pub(crate) fn survey(&self, token: &str, keys: &[KeyName]) -> Vec<String> {
        let survey = || -> Result<_, Trouble> {
            let (slot, info) = self.initialize_and_find(token)?;
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
            found.extend(self.check_can_sign(slot, token).err().map(|trouble| trouble.to_string()));
            let session = self.0.open_ro_session(slot)?;
            for key in keys {
                let template = [Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::Id(key.id.clone())];
                if session.find_objects(&template)?.is_empty() {
                    found.push(format!(
                        "the token {token:?} shows no public half of the token key {} (CKA_ID {}): the key may be missing",
                        key.token_key.short(),
                        key.id_hex()
                    ));
                }
            }
            Ok(found)
        };
        let found = survey();
        self.disconnect();
        found.unwrap_or_else(|trouble| vec![trouble.to_string()])
    }

    fn initialize_and_find(&self, token: &str) -> Result<(Slot, TokenInfo), Trouble> {
        match self.0.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(error) => return Err(error.into()),
        }
        let slots = self.0.get_slots_with_token()?;
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

    fn check_can_sign(&self, slot: Slot, token: &str) -> Result<(), Trouble> {
        match self.0.get_mechanism_info(slot, MechanismType::RSA_X_509) {
            Ok(info) if info.sign() => Ok(()),
            Ok(_) | Err(Error::Pkcs11(RvError::MechanismInvalid, _)) => Err(Trouble::Away(format!(
                "the token {token:?} does not sign with CKM_RSA_X_509 (RSA without padding), which blind signatures are made with: \
                 enable it, or use another HSM"
            ))),
            Err(error) => Err(error.into()),
        }
    }
}

impl Opener {
    pub(crate) fn open(&self) -> Result<Session, Trouble> {
        let session = self.pkcs11.open_rw_session_no_drop(self.slot)?;
        Ok(Session { session, opener: self.clone(), private_keys: HashMap::new() })
    }
}

impl Session {
    /// Closes the session in the HSM. Only while its connection lasts: the next one may have given its handle to another session.
    pub(crate) fn close(self) {
        let _ = self.session.close(); // a session that cannot be closed ends with the connection
    }

    /// Returns `true` if the session is of the opener's connection.
    pub(crate) fn is_of(&self, opener: &Opener) -> bool {
        Arc::ptr_eq(&self.opener.connection, &opener.connection)
    }

    pub(crate) fn check_alive(&self) -> Result<(), Trouble> {
        self.opener.pkcs11.get_token_info(self.opener.slot)?;
        self.session.get_session_info()?;
        Ok(())
    }

    /// Checks that the private key exists and has the expected public half.
    pub(crate) fn find(&mut self, key: &KeyName) -> Result<(), Trouble> {
        self.private_key(key).map(drop)
    }

    /// Forgets the handles of keys, so that each key is looked up again.
    pub(crate) fn forget(&mut self) {
        self.private_keys.clear();
    }

    pub(crate) fn sign(
        &mut self,
        key: &KeyName,
        message: &[u8; MODULUS_LEN],
    ) -> Result<[u8; MODULUS_LEN], Trouble> {
        let handle = self.private_key(key)?;
        let result = self.session.sign(&Mechanism::RsaX509, handle, message)?;
        <[u8; MODULUS_LEN]>::try_from(result.as_slice())
            .map_err(|_| Trouble::Failed(format!("C_Sign gave {} bytes and not {MODULUS_LEN}", result.len())))
    }

    fn private_key(&mut self, key: &KeyName) -> Result<ObjectHandle, Trouble> {
        if let Some(handle) = self.private_keys.get(&key.token_key) {
            return Ok(*handle);
        }
        let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Id(key.id.clone())];
        let found = self.session.find_objects(&template)?;
        let is_empty = found.is_empty();
        for handle in found {
            // Most tokens reveal the modulus of a private key. For a token that does not, the check of each result detects
            // another key.
            let wanted = [AttributeType::KeyType, AttributeType::Modulus];
            let attributes = self.session.get_attributes(handle, &wanted)?;
            let is_other = attributes.iter().any(|attribute| match attribute {
                Attribute::KeyType(key_type) => *key_type != KeyType::RSA,
                Attribute::Modulus(modulus) => number(modulus) != number(&key.modulus),
                _ => false,
            });
            if !is_other {
                self.private_keys.insert(key.token_key, handle);
                return Ok(handle);
            }
        }
        Err(if is_empty { Trouble::NoKey } else { Trouble::OtherKey })
    }

    /// Generates a key pair with this `CKA_ID` and returns its modulus.
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
        let (public, private) = ([&name[..], &public].concat(), [&name[..], &private].concat());
        let (public, _) = self.session.generate_key_pair(&Mechanism::RsaPkcsKeyPairGen, &public, &private)?;
        let wanted = [AttributeType::Modulus, AttributeType::PublicExponent];
        let attributes = self.session.get_attributes(public, &wanted)?;
        let (mut modulus, mut exponent) = (None, None);
        for attribute in &attributes {
            match attribute {
                Attribute::Modulus(bytes) => modulus = number(bytes).try_into().ok(),
                Attribute::PublicExponent(bytes) => exponent = Some(number(bytes)),
                _ => {}
            }
        }
        modulus.filter(|_| exponent == Some(&EXPONENT)).ok_or_else(|| {
            Trouble::Failed("it made a key that does not have 2048 bits and the exponent 65537".to_owned())
        })
    }

    /// Destroys the issuer's objects with this `CKA_ID` and returns their number.
    pub(crate) fn destroy(&mut self, id: &[u8]) -> Result<usize, Trouble> {
        self.forget();
        let template = [Attribute::Id(id.to_vec()), Attribute::Label(LABEL.into())];
        let found = self.session.find_objects(&template)?;
        for object in &found {
            self.session.destroy_object(*object)?;
        }
        Ok(found.len())
    }

    /// Returns the `CKA_ID` of each private key that the issuer has made.
    pub(crate) fn list(&mut self) -> Result<Vec<Vec<u8>>, Trouble> {
        let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::Label(LABEL.into())];
        let found = self.session.find_objects(&template)?;
        let mut listed = Vec::new();
        for object in found {
            let attributes = self.session.get_attributes(object, &[AttributeType::Id])?;
            listed.extend(attributes.into_iter().filter_map(|attribute| match attribute {
                Attribute::Id(id) => Some(id),
                _ => None,
            }));
        }
        Ok(listed)
    }
}

/// Strips the leading zeros that some tokens add.
fn number(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Classifies an error by its remedy. Unless it is known to be an answer, it counts as a lost session: a new session does no
/// harm.
impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let Error::Pkcs11(code, function) = error else { return Self::Away(error.to_string()) };
        let text = format!("C_{function:?} gave {code:?}"); // cryptoki's own text is a paragraph of the standard
        match code {
            RvError::SessionCount => Self::Full(text),
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
            | RvError::FunctionNotSupported => Self::Failed(text),
            _ => Self::Away(text),
        }
    }
}
