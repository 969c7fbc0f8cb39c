//! The PROXY header: wherever the bytes are cut, the same header is found in them, and none before its end.

use postern_daemon::proxy_protocol::parse;

pub fn run(bytes: &[u8]) {
    let whole = parse(bytes);
    let end = match whole {
        Ok(Some(header)) => {
            assert!(header.length <= bytes.len().min(16 + 4096));
            header.length
        }
        Ok(None) => bytes.len(),
        Err(_) => return,
    };
    for part in 0..end {
        assert_eq!(parse(&bytes[..part]), Ok(None));
    }
    assert_eq!(parse(&bytes[..end]), whole);
}
