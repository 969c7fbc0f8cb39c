//! SOCKS5 (RFC 1928): CONNECT without authentication, to names and addresses.
//!
//! Own code, because there is little of it and the best known crate does not fit: fast-socks5 (1.0) writes every target
//! to the log at debug level, where nothing here may write one. Only what RFC 1928 requires of a server with one method
//! and one command is here.

use crate::catalogue::AgentOutcome;
use crate::front::answer::{Refusal, Reply};
use crate::front::state::{Admission, AgentState};
use postern_daemon::farewell::part;
use postern_proxy::relay::Relay;
use postern_proxy::target::{Host, Target, TargetError};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// Time limit for a client's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the request of a rejected client.
const TURNED_AWAY_TIMEOUT: Duration = Duration::from_secs(2);
/// SOCKS4's "request rejected or failed": version 0, code 91, six bytes that mean nothing.
const SOCKS4_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

/// The reason why a request is not served.
#[derive(Debug)]
enum RequestError {
    /// The client went away or speaks another protocol: no reply is sent.
    Broken,
    /// The client gets this reply.
    Refused(Reply),
}

/// Serves one connection whose first byte was 5.
pub(crate) async fn serve(mut stream: TcpStream, admission: Admission, state: &AgentState) {
    let Admission { mut place, exchange } = admission;
    let requested = tokio::select! {
        requested = timeout(REQUEST_TIMEOUT, request(&mut stream)) => requested,
        () = exchange.displaced() => return,
    };
    let target = match requested {
        Ok(Ok(target)) => target,
        Ok(Err(RequestError::Refused(reply))) => {
            state.count(AgentOutcome::BadRequest);
            return part(stream, &response(reply)).await;
        }
        Ok(Err(RequestError::Broken)) | Err(_) => return state.count(AgentOutcome::BadRequest),
    };
    let _answering = tokio::select! {
        answering = exchange.begin() => answering,
        () = exchange.displaced() => return,
    };
    match state.opener.open(&target).await {
        Ok(tunnel) => {
            place.keep();
            state.count(AgentOutcome::Opened);
            if stream.write_all(&response(Reply::Succeeded)).await.is_ok() {
                let received = tunnel.received();
                received.keep_taking(Relay::new(stream, tunnel, &[], None)).await;
            }
        }
        Err(error) => {
            let refusal = Refusal::from(error);
            state.count(refusal.outcome());
            state.log_failure(&refusal);
            part(stream, &response(refusal.socks_reply())).await;
        }
    }
}

/// Rejects a client, whatever it requests.
pub(crate) async fn turn_away(mut stream: TcpStream) {
    if matches!(timeout(TURNED_AWAY_TIMEOUT, request(&mut stream)).await, Ok(Ok(_))) {
        part(stream, &response(Reply::GeneralFailure)).await;
    }
}

/// Rejects a SOCKS4 client in its own protocol.
pub(crate) async fn refuse_version_4(stream: TcpStream) {
    part(stream, &SOCKS4_REJECTED).await;
}

/// Reads the greeting, chooses "no authentication", and reads the request, without a byte beyond it.
async fn request(
    stream: &mut (impl AsyncRead + tokio::io::AsyncWrite + Unpin),
) -> Result<Target, RequestError> {
    let [version, count] = read(stream).await?;
    let mut methods = [0; 255];
    let methods = &mut methods[..usize::from(count)];
    stream.read_exact(methods).await?;
    if version != VERSION {
        return Err(RequestError::Broken);
    }
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(RequestError::Broken);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;

    let [version, command, _reserved, address_type] = read(stream).await?;
    if version != VERSION {
        return Err(RequestError::Refused(Reply::GeneralFailure));
    }
    let host = match address_type {
        1 => Ok(Host::Address(Ipv4Addr::from(read::<4>(stream).await?).into())),
        4 => Ok(Host::Address(Ipv6Addr::from(read::<16>(stream).await?).into())),
        3 => {
            let [length] = read(stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            let name = std::str::from_utf8(&name).unwrap_or_default(); // an empty name is refused
            // Some programs send an IPv6 address as a name, without brackets.
            name.parse().map(Host::Address).or_else(|_| Host::parse(name))
        }
        _ => return Err(RequestError::Refused(Reply::AddressTypeNotSupported)),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    if command != CONNECT {
        return Err(RequestError::Refused(Reply::CommandNotSupported)); // BIND and UDP ASSOCIATE
    }
    Ok(Target::new(host?, port)?)
}

async fn read<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Formats a reply. The bound address is never sent: it would be the gateway's.
fn response(reply: Reply) -> [u8; 10] {
    [VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

impl From<io::Error> for RequestError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<TargetError> for RequestError {
    fn from(_: TargetError) -> Self {
        Self::Refused(Reply::GeneralFailure)
    }
}
