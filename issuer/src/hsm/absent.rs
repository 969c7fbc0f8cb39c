//! Replacement of `link` in a build that loads no modules.

use super::{KeyName, MODULUS_LEN, Trouble};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this postern was built without PKCS#11, as statically linked ones are, because they cannot load a module: use a build with the \
     feature `pkcs11`, which the ones linked to glibc have"
)]
pub struct LoadError;

/// A loaded module, an opener or a session: there is none.
#[derive(Clone)]
pub(crate) enum Absent {}

pub(crate) type Module = Absent;
pub(crate) type Opener = Absent;
pub(crate) type Session = Absent;

impl Absent {
    pub(crate) fn load(_: &Path) -> Result<Self, LoadError> {
        Err(LoadError)
    }

    pub(crate) fn connect(&self, _: &str, _: &[u8]) -> Result<(Opener, Session), Trouble> {
        match *self {}
    }

    pub(crate) fn disconnect(&self) {
        match *self {}
    }

    pub(crate) fn survey(&self, _: &str, _: &[KeyName]) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn open(&self) -> Result<Session, Trouble> {
        match *self {}
    }

    pub(crate) fn close(self) {
        match self {}
    }

    pub(crate) fn is_of(&self, _: &Opener) -> bool {
        match *self {}
    }

    pub(crate) fn check_alive(&self) -> Result<(), Trouble> {
        match *self {}
    }

    pub(crate) fn find(&mut self, _: &KeyName) -> Result<(), Trouble> {
        match *self {}
    }

    pub(crate) fn forget(&mut self) {
        match *self {}
    }

    pub(crate) fn sign(&mut self, _: &KeyName, _: &[u8; MODULUS_LEN]) -> Result<[u8; MODULUS_LEN], Trouble> {
        match *self {}
    }

    pub(crate) fn generate(&mut self, _: &[u8]) -> Result<[u8; MODULUS_LEN], Trouble> {
        match *self {}
    }

    pub(crate) fn destroy(&mut self, _: &[u8]) -> Result<usize, Trouble> {
        match *self {}
    }

    pub(crate) fn list(&mut self) -> Result<Vec<Vec<u8>>, Trouble> {
        match *self {}
    }
}
