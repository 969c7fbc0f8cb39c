//! Why a text is no join string. Nothing of its values is in these sentences: one of them is an API key.

use super::{JOIN_LIMIT, PREFIX, VERSION};

/// Why a text is no join string that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No word of the text begins like one.
    #[error("there is no join string: it is one word that begins with \"{PREFIX}{VERSION}.\"")]
    Missing,
    /// The text is too long to be read.
    #[error("the join string is longer than {JOIN_LIMIT} bytes, which none is: is this the right file?")]
    TooLong,
    /// Another format.
    #[error(
        "the join string is of format {0}, and this version of postern reads format {VERSION}: update postern, or ask for a \
         join string of format {VERSION}"
    )]
    Version(u32),
    /// The end is missing.
    #[error("the join string is not whole, its end is missing: copy all of it, on one line")]
    Truncated,
    /// A character that it cannot have.
    #[error(
        "character {0} of the join string is none that it can have: copy it again, without quotes or line breaks"
    )]
    Character(usize),
    /// The checksum is that of another text.
    #[error(
        "the join string has been changed: its checksum does not match, so a character in it is missing, added or mistyped. \
         Copy it again"
    )]
    Checksum,
    /// The checksum matches, and the contents do not.
    #[error(
        "the join string holds no settings that can be read: make another one with `postern issuer account add --join`"
    )]
    Contents,
    /// A field of a later version.
    #[error(
        "the join string has a field {0} that this version of postern does not know, so a newer one made it: update postern"
    )]
    UnknownField(String),
    /// A field that has to be there.
    #[error("the join string has no {0}: make another one with `postern issuer account add --join`")]
    NoField(&'static str),
    /// A value that cannot be used.
    #[error("the join string's {field} cannot be used: {reason}")]
    Field {
        /// Which one.
        field: &'static str,
        /// What it has to be.
        reason: &'static str,
    },
}
