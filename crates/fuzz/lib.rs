//! Fuzz targets: every parser of what strangers send. Each takes any bytes and panics where a promise does not hold.

mod authenticate;
mod authorization;
mod capsule;
mod challenge;
mod directory;
mod proxy_protocol;
mod request;
mod token;

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// The targets by name; each has a folder of inputs in `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("authenticate", authenticate::run),
    ("authorization", authorization::run),
    ("capsule", capsule::run),
    ("challenge", challenge::run),
    ("directory", directory::run),
    ("proxy_protocol", proxy_protocol::run),
    ("request", request::run),
    ("token", token::run),
];

/// Returns the target that `POSTERN_FUZZ_TARGET` names.
///
/// # Panics
/// When it names none.
pub fn chosen() -> Target {
    let name = std::env::var("POSTERN_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("POSTERN_FUZZ_TARGET is {name:?}; scripts/fuzz sets it")).1
}
