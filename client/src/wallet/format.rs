//! The wallet file's bytes: a header of one sector, then slots of one sector each. No I/O here.
//!
//! A sector is 512 bytes and aligned, so that no write crosses a page: a process that is killed leaves a slot as it
//! was or as it should be. A slot torn by a power loss fails its checksum and is dropped, which loses one token and
//! never doubles one.
//!
//! ```text
//! header: magic[16] | version u32 | slot size u32 | crc32 of the 24 bytes before | zeros
//! slot:   crc32 of what follows | token length u16 | zeros[2] | not-after u64, 0 if unknown | token[354] | zeros
//! ```
//!
//! Integers are little-endian. A free slot is all zeros. Challenge digest and token key id are parts of the token.

use postern_token::{MAX_TOKEN_LEN, Token, UnixSeconds};

/// The size of the header and of every slot, in bytes.
pub(crate) const SECTOR: usize = 512;
pub(crate) type Sector = [u8; SECTOR];
/// The contents of a free slot.
pub(crate) const FREE: Sector = [0; SECTOR];

const MAGIC: &[u8; 16] = b"postern wallet\r\n";
const VERSION: u32 = 1;
const TOKEN_AT: usize = 16;
const TOKEN_END: usize = TOKEN_AT + MAX_TOKEN_LEN;

/// An unspent token, and when its key retires, if that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unspent {
    pub(crate) token: Token,
    pub(crate) not_after: Option<UnixSeconds>,
}

#[derive(Debug)]
pub(crate) enum Slot {
    Free,
    Holds(Box<Unspent>),
    /// Neither zeros nor a whole token: torn by a power loss.
    Torn,
}

/// A fault of a header, as a phrase that follows the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("is not a postern wallet")]
    NotAWallet,
    #[error(
        "is a wallet of format {0}, which this version of postern does not read (it reads format {VERSION})"
    )]
    Version(u32),
    #[error("is a wallet with a damaged header")]
    Damaged,
}

pub(crate) fn header() -> Sector {
    let mut sector = FREE;
    sector[..16].copy_from_slice(MAGIC);
    sector[16..20].copy_from_slice(&VERSION.to_le_bytes());
    sector[20..24].copy_from_slice(&512u32.to_le_bytes());
    let checksum = crc32fast::hash(&sector[..24]);
    sector[24..28].copy_from_slice(&checksum.to_le_bytes());
    sector
}

pub(crate) fn check_header(sector: &Sector) -> Result<(), HeaderError> {
    let version = u32_at(sector, 16);
    if &sector[..16] != MAGIC {
        Err(HeaderError::NotAWallet)
    } else if u32_at(sector, 24) != crc32fast::hash(&sector[..24]) {
        Err(HeaderError::Damaged)
    } else if version != VERSION {
        Err(HeaderError::Version(version))
    } else if *sector != header() {
        Err(HeaderError::Damaged)
    } else {
        Ok(())
    }
}

pub(crate) fn encode(unspent: &Unspent) -> Sector {
    let mut sector = FREE;
    let token = unspent.token.as_bytes();
    // A token has at most MAX_TOKEN_LEN bytes, which fit 16 bits and the slot.
    sector[4..6].copy_from_slice(&u16::try_from(token.len()).unwrap_or_default().to_le_bytes());
    sector[8..16].copy_from_slice(&unspent.not_after.map_or(0, |moment| moment.0).to_le_bytes());
    sector[TOKEN_AT..TOKEN_AT + token.len()].copy_from_slice(token);
    let checksum = crc32fast::hash(&sector[4..]);
    sector[..4].copy_from_slice(&checksum.to_le_bytes());
    sector
}

pub(crate) fn decode(sector: &Sector) -> Slot {
    if *sector == FREE {
        return Slot::Free;
    }
    if u32_at(sector, 0) != crc32fast::hash(&sector[4..]) {
        return Slot::Torn;
    }
    let length = usize::from(u16::from_le_bytes([sector[4], sector[5]]));
    let token = sector[TOKEN_AT..TOKEN_END].get(..length).and_then(|bytes| Token::parse(bytes).ok());
    let mut not_after = [0; 8];
    not_after.copy_from_slice(&sector[8..16]);
    let not_after = Some(u64::from_le_bytes(not_after)).filter(|&seconds| seconds > 0).map(UnixSeconds);
    token.map_or(Slot::Torn, |token| Slot::Holds(Box::new(Unspent { token, not_after })))
}

fn u32_at(sector: &Sector, offset: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&sector[offset..offset + 4]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unspent(not_after: Option<UnixSeconds>) -> Unspent {
        let mut bytes = [7; MAX_TOKEN_LEN];
        bytes[..2].copy_from_slice(&2u16.to_be_bytes());
        Unspent { token: Token::parse(&bytes).unwrap(), not_after }
    }

    #[test]
    fn a_slot_is_read_as_it_was_written() {
        for not_after in [None, Some(UnixSeconds(1_900_000_000))] {
            let Slot::Holds(read) = decode(&encode(&unspent(not_after))) else { panic!("no token") };
            assert_eq!(read.token.as_bytes(), unspent(None).token.as_bytes());
            assert_eq!(read.not_after, not_after);
        }
        assert!(matches!(decode(&FREE), Slot::Free));
    }

    /// After any partial write, the slot is the old one, the new one, or torn.
    #[test]
    fn a_torn_slot_is_never_a_token() {
        let whole = encode(&unspent(Some(UnixSeconds(5))));
        for cut in 1..TOKEN_END {
            let (mut written, mut zeroed) = (FREE, whole);
            written[..cut].copy_from_slice(&whole[..cut]);
            zeroed[..cut].fill(0);
            assert!(matches!(decode(&written), Slot::Torn), "written up to {cut}");
            assert!(matches!(decode(&zeroed), Slot::Torn), "zeroed up to {cut}");
        }
    }

    #[test]
    fn a_header_is_accepted_only_as_it_is_written() {
        assert_eq!(check_header(&header()), Ok(()));
        assert_eq!(check_header(&FREE), Err(HeaderError::NotAWallet));
        for byte in 0..SECTOR {
            let mut damaged = header();
            damaged[byte] ^= 1;
            assert!(check_header(&damaged).is_err(), "byte {byte}");
        }
        let mut newer = header();
        newer[16] = 2;
        let checksum = crc32fast::hash(&newer[..24]);
        newer[24..28].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(check_header(&newer), Err(HeaderError::Version(2)));
    }
}
