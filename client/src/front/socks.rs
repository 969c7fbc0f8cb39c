//! SOCKS5 (RFC 1928): CONNECT and UDP ASSOCIATE without authentication, to names and addresses.
//!
//! Implemented here, because it is little code and the best known crate does not fit: fast-socks5 (1.0) logs every target at
//! debug level, and no target may be logged here. Covers only what RFC 1928 requires of a server with one method.

mod associate;
mod datagram;
mod flow;

use crate::catalogue::AgentOutcome;
use crate::front::answer::{Refusal, Reply};
use crate::front::state::AgentState;
use associate::Association;
use datagram::{IPV4, IPV6, NAME, parse_name, written};
use postern_daemon::farewell::part;
use postern_daemon::serve::Visitor;
use postern_proxy::relay::Relay;
use postern_proxy::target::{Host, Target};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TURNED_AWAY_TIMEOUT: Duration = Duration::from_secs(2);
/// SOCKS4's "request rejected or failed": version 0, code 91, six bytes that mean nothing.
const SOCKS4_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

enum Request {
    Connect(Target),
    /// The program will send from this port of UDP; from any if it is 0.
    Associate(u16),
}

/// Serves one connection whose first byte was 5.
pub(crate) async fn serve(mut stream: TcpStream, visitor: Visitor, state: &AgentState) {
    let requested = tokio::select! {
        requested = timeout(REQUEST_TIMEOUT, request(&mut stream)) => requested,
        () = visitor.exchange.displaced() => return,
    };
    match requested {
        Ok(Ok(Ok(Request::Connect(target)))) => connect(stream, &target, visitor, state).await,
        Ok(Ok(Ok(Request::Associate(_)))) if state.limit.udp_targets() == 0 => {
            state.count(AgentOutcome::BadRequest);
            part(stream, &response(Reply::CommandNotSupported)).await;
        }
        Ok(Ok(Ok(Request::Associate(port)))) => associate(stream, port, visitor, state).await,
        Ok(Ok(Err(reply))) => {
            state.count(AgentOutcome::BadRequest);
            part(stream, &response(reply)).await;
        }
        Ok(Err(_)) | Err(_) => state.count(AgentOutcome::BadRequest),
    }
}

async fn connect(mut stream: TcpStream, target: &Target, visitor: Visitor, state: &AgentState) {
    let Visitor { mut place, exchange, .. } = visitor;
    let _answering = tokio::select! {
        answering = exchange.begin() => answering,
        () = exchange.displaced() => return,
    };
    let opening = tokio::select! {
        opening = state.opener.open(target) => opening,
        () = hung_up(&stream) => return,
    };
    match opening {
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
            state.log_failure("request", &refusal);
            part(stream, &response(refusal.socks_reply())).await;
        }
    }
}

/// Completes when the program hangs up before it sends anything: nobody is left who could use the tunnel.
async fn hung_up(stream: &TcpStream) {
    if !matches!(stream.peek(&mut [0]).await, Ok(0) | Err(_)) {
        std::future::pending::<()>().await;
    }
}

/// Relays UDP for a program, as long as its connection is open.
async fn associate(mut stream: TcpStream, port: u16, visitor: Visitor, state: &AgentState) {
    let bound = Association::bind(&stream, port, state).await;
    let bound = bound.and_then(|association| Ok((association.address()?, association)));
    let Ok((address, association)) = bound else {
        return part(stream, &response(Reply::GeneralFailure)).await; // out of file descriptors
    };
    if stream.write_all(&associated(address)).await.is_ok() {
        association.run(stream, visitor.place, visitor.exchange).await;
    }
}

/// Rejects a client, whatever it requests.
pub(crate) async fn turn_away(mut stream: TcpStream) {
    if matches!(timeout(TURNED_AWAY_TIMEOUT, request(&mut stream)).await, Ok(Ok(Ok(_)))) {
        part(stream, &response(Reply::GeneralFailure)).await;
    }
}

pub(crate) async fn refuse_version_4(stream: TcpStream) {
    part(stream, &SOCKS4_REJECTED).await;
}

/// Reads the greeting, chooses "no authentication", and reads the request, without a byte beyond it. Returns the request, or the
/// reply to one that is not served. Fails without a reply if the client goes away or speaks another protocol.
async fn request(
    stream: &mut (impl AsyncRead + tokio::io::AsyncWrite + Unpin),
) -> io::Result<Result<Request, Reply>> {
    let [version, count] = read(stream).await?;
    let mut methods = [0; 255];
    let methods = &mut methods[..usize::from(count)];
    stream.read_exact(methods).await?;
    if version != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;

    let [version, command, _reserved, address_type] = read(stream).await?;
    if version != VERSION {
        return Ok(Err(Reply::GeneralFailure));
    }
    let host = match address_type {
        IPV4 => Ok(Host::Address(Ipv4Addr::from(read::<4>(stream).await?).into())),
        IPV6 => Ok(Host::Address(Ipv6Addr::from(read::<16>(stream).await?).into())),
        NAME => {
            let [length] = read(stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            parse_name(&name)
        }
        _ => return Ok(Err(Reply::AddressTypeNotSupported)),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    Ok(match command {
        CONNECT => host
            .and_then(|host| Target::new(host, port))
            .map(Request::Connect)
            .map_err(|_| Reply::GeneralFailure),
        // Of the program's own address only the port counts: its machine is known, and many send no valid host.
        UDP_ASSOCIATE => Ok(Request::Associate(port)),
        _ => Err(Reply::CommandNotSupported), // BIND
    })
}

async fn read<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Formats a reply. The bound address is never sent: it would be the gateway's.
fn response(reply: Reply) -> [u8; 10] {
    [VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

fn associated(address: SocketAddr) -> Vec<u8> {
    [&[VERSION, Reply::Succeeded as u8, 0][..], &written(address)].concat()
}
