//! Proxy clients in raw bytes: CONNECT, absolute form, SOCKS5.

use super::in_time;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// An answer's head.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub fields: String,
}

impl Head {
    /// The value of a field, its name in lower case.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.fields.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Returns whether it is the refusal of a spent token.
    pub fn says_spent(&self) -> bool {
        self.is_refused_by("details=\"token already spent\"")
    }

    /// Returns whether it is the refusal of a token whose mark is void.
    pub fn says_void(&self) -> bool {
        self.is_refused_by("records that the gateway has lost")
    }

    fn is_refused_by(&self, details: &str) -> bool {
        self.status == 407 && self.value("proxy-status").is_some_and(|status| status.contains(details))
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: Head,
    pub body: String,
}

/// A connection to `proxy`, from the address `source`.
pub async fn dial_from(source: Ipv4Addr, proxy: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::V4(source), 0))?;
    let stream = in_time(socket.connect(proxy)).await?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// A connection to `proxy`. Without a bind: that looks through all ports, which takes long when many wait to be free.
pub async fn dial(proxy: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = in_time(TcpStream::connect(proxy)).await?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Sends a CONNECT with the value of Proxy-Authorization, if there is one, and reads the answer's head.
pub async fn connect<S>(stream: &mut S, target: &str, authorization: Option<&str>) -> io::Result<Head>
where
    S: AsyncBufReadExt + AsyncWrite + Unpin,
{
    let field = authorization.map_or(String::new(), |value| format!("Proxy-Authorization: {value}\r\n"));
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{field}\r\n");
    in_time(stream.write_all(request.as_bytes())).await?;
    in_time(read_head(stream)).await
}

/// A GET in absolute form, and its whole answer.
pub async fn get<S>(stream: &mut S, authority: &str, authorization: Option<&str>) -> io::Result<Response>
where
    S: AsyncBufReadExt + AsyncWrite + Unpin,
{
    let field = authorization.map_or(String::new(), |value| format!("Proxy-Authorization: {value}\r\n"));
    let request =
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n{field}\r\n");
    in_time(stream.write_all(request.as_bytes())).await?;
    in_time(read_response(stream)).await
}

/// A SOCKS5 CONNECT to a name or an address, which are both sent as a name; the reply's code.
pub async fn socks<S>(stream: &mut S, host: &str, port: u16) -> io::Result<u8>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asking = async {
        stream.write_all(&[5, 1, 0]).await?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await?;
        assert_eq!(chosen, [5, 0]);
        let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
        request.extend_from_slice(host.as_bytes());
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).await?;
        assert_eq!((reply[0], reply[3]), (5, 1));
        Ok(reply[1])
    };
    in_time(asking).await
}

/// Sends bytes through a tunnel to an echo and reads them back.
pub async fn echoes<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    let mut back = vec![0; bytes.len()];
    in_time(async {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        stream.read_exact(&mut back).await
    })
    .await?;
    if back == bytes { Ok(()) } else { Err(io::Error::other("other bytes came back")) }
}

/// Reads a head and then all there is.
pub async fn read_response<S: AsyncBufReadExt + Unpin>(stream: &mut S) -> io::Result<Response> {
    let head = read_head(stream).await?;
    let mut body = Vec::new();
    stream.read_to_end(&mut body).await?;
    Ok(Response { status: head.status, head, body: String::from_utf8_lossy(&body).into_owned() })
}

pub async fn read_head<S: AsyncBufReadExt + Unpin>(stream: &mut S) -> io::Result<Head> {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if stream.read_line(&mut text).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let (line, fields) = text.split_once("\r\n").unwrap();
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{line:?} is no status line"));
    Ok(Head { status, fields: fields.to_owned() })
}
