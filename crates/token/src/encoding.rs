//! Wire encodings: base64url, big-endian integers and length-prefixed vectors.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Accepts padded and unpadded values (Chromium sends unpadded ones), and writes padded ones (RFC 9577 requires padding, and
/// privacypass-ts throws without it). Unused bits of the last character must be zero, so that a value has one encoding up to its
/// padding.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Base64Error {
    #[error("byte {offset} of the value ({}) is outside its alphabet{}", char::from(*byte).escape_default(), hint(*byte))]
    Character {
        /// Its position, counted from 0.
        offset: usize,
        byte: u8,
    },
    #[error(
        "byte {offset} of the value ({}), its last character, has bits that belong to no byte: the value was cut or altered",
        char::from(*byte).escape_default()
    )]
    LastCharacter {
        /// Its position, counted from 0.
        offset: usize,
        byte: u8,
    },
    #[error("no whole number of bytes has {0} characters: the value was cut or padded wrongly")]
    Length(usize),
    #[error("it holds more than the {max} bytes that belong here")]
    TooLong { max: usize },
}

fn hint(byte: u8) -> &'static str {
    match byte {
        b'+' | b'/' => "; this is plain base64: write - for + and _ for /",
        b'=' => "; padding stands only at the end, and never more than the length asks for",
        b' ' | b'\t' | b'\r' | b'\n' => "; write the value in one piece",
        _ => "",
    }
}

pub fn encode_base64url(bytes: &[u8]) -> String {
    BASE64URL.encode(bytes)
}

/// Decodes into `buffer` and returns the filled part. Does not allocate.
pub fn decode_base64url<'b>(text: &[u8], buffer: &'b mut [u8]) -> Result<&'b [u8], Base64Error> {
    use base64::DecodeSliceError::{DecodeError, OutputSliceTooSmall};
    let max = buffer.len();
    match BASE64URL.decode_slice(text, buffer) {
        Ok(written) => Ok(&buffer[..written]),
        Err(OutputSliceTooSmall) => Err(Base64Error::TooLong { max }),
        Err(DecodeError(error)) => Err(describe(error, text)),
    }
}

/// Decodes into a new vector.
pub fn decode_base64url_vec(text: &[u8]) -> Result<Vec<u8>, Base64Error> {
    BASE64URL.decode(text).map_err(|error| describe(error, text))
}

fn describe(error: base64::DecodeError, text: &[u8]) -> Base64Error {
    match error {
        base64::DecodeError::InvalidByte(offset, byte) => Base64Error::Character { offset, byte },
        base64::DecodeError::InvalidLastSymbol { offset, symbol: byte, .. } => {
            Base64Error::LastCharacter { offset, byte }
        }
        _ => Base64Error::Length(text.len()),
    }
}

/// Bounds-checked cursor over wire bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("{field} takes {needed} bytes from byte {offset} on; the value has {} in all", offset + left)]
    Truncated {
        /// Name of the field in the RFC.
        field: &'static str,
        /// Position of the field, counted from 0.
        offset: usize,
        /// Length of the field in bytes.
        needed: usize,
        /// Number of remaining bytes.
        left: usize,
    },
    #[error("the last field ends at byte {offset}, but the value has {} bytes", offset + extra)]
    Trailing {
        /// Position of the end of the structure.
        offset: usize,
        extra: usize,
    },
    #[error("{field} at byte {offset} {reason}")]
    Field {
        /// Name of the field in the RFC.
        field: &'static str,
        /// Position of the field, counted from 0.
        offset: usize,
        /// Description of the error, to be read after the field's name.
        reason: &'static str,
    },
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn take(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], WireError> {
        let rest = &self.bytes[self.offset..];
        let taken = rest.get(..needed).ok_or(WireError::Truncated {
            field,
            offset: self.offset,
            needed,
            left: rest.len(),
        })?;
        self.offset += needed;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(self.take(field, 1)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    /// Reads a vector prefixed with its length in bytes, a variable-length integer (RFC 9000, section 16).
    pub(crate) fn vector(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        let offset = self.offset;
        let first = self.u8(field)?;
        let rest = self.take(field, (1 << (first >> 6)) - 1)?;
        let len = rest.iter().fold(u64::from(first & 0x3f), |len, byte| len << 8 | u64::from(*byte));
        if varint(len).len() != 1 + rest.len() {
            // A value must have one encoding. MLS, which defined this encoding, requires the shortest one, too.
            return Err(WireError::Field {
                field,
                offset,
                reason: "has a length in more bytes than it needs",
            });
        }
        self.take(field, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Returns a reader of the next vector; its offsets count from the start of this reader's bytes.
    pub(crate) fn sub_reader(&mut self, field: &'static str) -> Result<Self, WireError> {
        let len = self.vector(field)?.len();
        Ok(Self { bytes: &self.bytes[..self.offset], offset: self.offset - len })
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.offset == self.bytes.len()
    }

    pub(crate) fn finish(self) -> Result<(), WireError> {
        match self.bytes.len() - self.offset {
            0 => Ok(()),
            extra => Err(WireError::Trailing { offset: self.offset, extra }),
        }
    }
}

/// Appends a vector prefixed with its length.
pub(crate) fn write_vector(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend_from_slice(&varint(content.len() as u64));
    bytes.extend_from_slice(content);
}

/// Encodes a variable-length integer in its shortest form (RFC 9000, section 16). `value` is below 2^62, as every length in
/// memory is.
fn varint(value: u64) -> Vec<u8> {
    let (bytes, len) = match value {
        0..=0x3f => (value, 1),
        0x40..=0x3fff => (value | 0x4000, 2),
        0x4000..=0x3fff_ffff => (value | 0x8000_0000, 4),
        _ => (value | 0xc000_0000_0000_0000, 8),
    };
    bytes.to_be_bytes()[8 - len..].to_vec()
}
