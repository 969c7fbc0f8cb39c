use super::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// Builds a header of version 2 with this command, family and rest.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [V2.as_slice(), &[command, family], &length, rest].concat()
}

/// Returns the rest of a header for 192.0.2.1, port 56324; the next function, for 2001:db8::1, port 443.
fn tcp4() -> Vec<u8> {
    [&[192, 0, 2, 1, 10, 0, 0, 1][..], &56324_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat()
}

fn tcp6() -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    [&address("2001:db8::1")[..], &address("fd00::2"), &[1, 187, 1, 187]].concat()
}

/// Returns valid headers, each with the client that it names.
fn headers() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let with_fields = |rest: Vec<u8>, length| [rest, vec![4; length]].concat();
    let longest_tcp6 = "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    let longest_unknown = "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert_eq!(longest_unknown.len(), V1_LONGEST);
    vec![
        ("PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n".into(), Some("192.0.2.1:56324")),
        ("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n".into(), Some("0.0.0.0:0")),
        ("PROXY TCP6 2001:db8::1 fd00::2 443 443\r\n".into(), Some("[2001:db8::1]:443")),
        (longest_tcp6.into(), Some("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535")),
        ("PROXY UNKNOWN\r\n".into(), None),
        (longest_unknown.into(), None),
        (v2(0x21, 0x11, &tcp4()), Some("192.0.2.1:56324")),
        (v2(0x21, 0x21, &tcp6()), Some("[2001:db8::1]:443")),
        (v2(0x21, 0x11, &with_fields(tcp4(), V2_MOST - 12)), Some("192.0.2.1:56324")),
        (v2(0x21, 0x21, &with_fields(tcp6(), 7)), Some("[2001:db8::1]:443")),
        (v2(0x20, 0x00, &[]), None), // a health check of haproxy
        (v2(0x20, 0x11, &tcp4()), None),
        (v2(0x20, 0x11, &[]), None),
        (v2(0x20, 0xff, &[]), None), // the family of LOCAL is ignored
        (v2(0x21, 0x00, &[1, 2, 3]), None),
        (v2(0x21, 0x12, &tcp4()), None),
        (v2(0x21, 0x22, &tcp6()), None),
        (v2(0x21, 0x31, &[0; 216]), None),
        (v2(0x21, 0x32, &[0; 216]), None),
    ]
}

#[test]
fn a_header_is_read_whole_and_what_follows_it_is_not() {
    for (bytes, named) in headers() {
        let (length, client) = (bytes.len(), named.map(|address| address.parse().unwrap()));
        for following in ["", "CONNECT a.example:443 HTTP/1.1\r\n\r\n", "\n", "PROXY UNKNOWN\r\n"] {
            let found = parse(&[&bytes, following.as_bytes()].concat());
            assert_eq!(found, Ok(Some(Header { length, client })), "{}", bytes.escape_ascii());
        }
        for part in 0..length {
            assert_eq!(parse(&bytes[..part]), Ok(None), "{}", bytes[..part].escape_ascii());
        }
    }
}

#[test]
fn what_is_not_a_header_is_refused() {
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    let mut other_version = v2(0x21, 0x11, &tcp4());
    other_version[12] = 0x11;
    let refused: Vec<Vec<u8>> = vec![
        "GET / HTTP/1.1\r\n".into(),
        b"\x16\x03\x01".into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "\r\nPROXY UNKNOWN\r\n".into(),
        "proxy UNKNOWN\r\n".into(),
        "PROXY\r\n".into(),
        "PROXY \r\n".into(),
        "PROXY UNKNOWNS\r\n".into(),
        "PROXY  UNKNOWN\r\n".into(),
        "PROXY UNKNOWN\n".into(),
        long.into(),
        "PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1 56324\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1 56324 443 1\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1 56324 443 \r\n".into(),
        "PROXY TCP4 192.0.2.1  10.0.0.1 56324 443\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1 +80 443\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1 65536 443\r\n".into(),
        "PROXY TCP4 192.0.2.1 10.0.0.1  443\r\n".into(),
        "PROXY TCP4 192.0.2.256 10.0.0.1 56324 443\r\n".into(),
        "PROXY TCP4 2001:db8::1 fd00::2 443 443\r\n".into(),
        "PROXY TCP6 192.0.2.1 10.0.0.1 443 443\r\n".into(),
        "PROXY TCP4 a.example 10.0.0.1 56324 443\r\n".into(),
        b"PROXY TCP4 192.0.2.\xb9 10.0.0.1 56324 443\r\n".into(),
        other_version,
        v2(0x22, 0x11, &tcp4()),
        v2(0x21, 0x13, &tcp4()),
        v2(0x21, 0x41, &tcp4()),
        v2(0x21, 0x11, &tcp4()[..9]),
        v2(0x21, 0x21, &tcp6()[..33]),
        v2(0x21, 0x11, &[0; V2_MOST + 1])[..V2_FIXED].into(),
        v2(0x20, 0x00, &[0; 65_535])[..V2_FIXED].into(),
    ];
    for bytes in refused {
        assert_eq!(parse(&bytes), Err(Malformed), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_header_with_another_byte_anywhere_is_judged_without_a_panic() {
    for (bytes, _) in headers().into_iter().filter(|(bytes, _)| bytes.len() < 300) {
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = byte;
                if let Ok(Some(header)) = parse(&changed) {
                    assert!(header.length <= changed.len());
                    assert_eq!(parse(&changed[..header.length]), Ok(Some(header)));
                }
            }
        }
    }
}

#[test]
fn balancers_are_known_by_their_network() {
    let list =
        |networks: &[&str]| Balancers(networks.iter().map(|network| network.parse().unwrap()).collect());
    let has = |list: &Balancers, address: &str| list.has(address.parse().unwrap());
    let some = list(&["10.0.0.0/8", "fd00::/64"]);
    for balancer in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::5"] {
        assert!(has(&some, balancer), "{balancer}");
        assert!(!has(&Balancers::default(), balancer), "{balancer}");
    }
    for client in ["11.0.0.1", "::ffff:11.0.0.1", "fd00:0:0:1::5", "::10.1.2.3"] {
        assert!(!has(&some, client), "{client}");
    }
}

/// Returns the balancer's end and the daemon's end of a connection.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (far, near) = tokio::join!(connecting, listener.accept());
    (far.unwrap(), near.unwrap().0)
}

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn not_a_byte_beyond_the_header_is_taken_from_the_stream() {
    for (bytes, named) in headers() {
        for piece in [1, 7, usize::MAX].into_iter().filter(|piece| bytes.len() < 300 || *piece > 1) {
            let (mut far, mut near) = connection().await;
            let all = [&bytes[..], b"\x16\x03"].concat();
            let send = async {
                for part in all.chunks(piece.min(all.len())) {
                    far.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                far.shutdown().await.unwrap();
            };
            let ((), read) = tokio::join!(send, read(&mut near, PATIENCE));
            assert_eq!(read, Ok(named.map(|address| address.parse().unwrap())));
            let mut rest = Vec::new();
            near.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"\x16\x03", "{}", bytes.escape_ascii());
        }
    }
}

#[tokio::test]
async fn a_stream_without_a_header_is_given_up() {
    for (sent, why) in [
        (&b""[..], NoHeader::Closed),
        (b"PROXY TCP4 192.0.2.1", NoHeader::Malformed),
        (&v2(0x21, 0x11, &tcp4())[..27], NoHeader::Malformed),
        (b"GET", NoHeader::Malformed),
    ] {
        let (mut far, mut near) = connection().await;
        far.write_all(sent).await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(read(&mut near, PATIENCE).await, Err(why), "{}", sent.escape_ascii());
    }
    let (mut far, mut near) = connection().await;
    far.write_all(b"PROXY UNKNOWN\r").await.unwrap();
    assert_eq!(read(&mut near, Duration::from_millis(20)).await, Err(NoHeader::Late));
}
