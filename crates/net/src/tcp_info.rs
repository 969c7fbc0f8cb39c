//! Kernel statistics of a TCP connection (`TCP_INFO`) that help explain a late reply.
//!
//! Reason for the `unsafe`: the option is a struct that grows with the kernel, and neither the standard library nor the safe
//! wrappers of socket options read it. One call of `getsockopt` is therefore made here. No other file of the workspace may write
//! `unsafe`, except `postern-raw-rsa`.
#![allow(unsafe_code, reason = "one call of getsockopt")]

use socket2::Socket;
use std::io;
use std::time::Duration;

/// State of a connection at one moment, from its sender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFacts {
    /// Smoothed time from a segment to its acknowledgement, with a resolution of a microsecond. Includes the peer's delay of
    /// acknowledgements, so it grows towards 40 ms where every reply is late.
    pub rtt: Duration,
    /// Smoothed deviation of `rtt`.
    pub rtt_var: Duration,
    /// Minimum of the last minutes: the network's part. Equals `rtt` on kernels that do not report it (before 4.6).
    pub rtt_min: Duration,
    /// Number of segments retransmitted since the connection began.
    pub retransmits: u32,
    /// Number of segments sent and not acknowledged.
    pub unacknowledged: u32,
    /// Number of unacknowledged segments presumed lost.
    pub lost: u32,
    /// Number of bytes written and not sent yet. 0 on kernels that do not report it (before 4.6).
    pub unsent: u32,
}

/// Reads `TCP_INFO` of a connection with one system call, which neither blocks nor changes anything.
///
/// # Errors
/// The socket is not a TCP socket, or the system is not Linux.
pub fn tcp_info(socket: &Socket) -> io::Result<TcpFacts> {
    system::read(socket)
}

#[cfg(target_os = "linux")]
mod system {
    use super::{Duration, Socket, TcpFacts, io};
    use libc::tcp_info;
    use std::mem::{offset_of, size_of};
    use std::os::fd::AsRawFd;

    /// Size of the buffer, which is bytes and not the struct, because an old kernel fills only a part.
    const ROOM: usize = size_of::<tcp_info>();

    pub(super) fn read(socket: &Socket) -> io::Result<TcpFacts> {
        let mut bytes = [0_u8; ROOM];
        let mut length = ROOM as libc::socklen_t; // about 250 bytes
        // SAFETY: `socket` is open for as long as it is borrowed. The kernel writes at most `length` bytes to the
        // pointer, and `bytes` has as many, of a type that any bytes are valid for; it writes the number of those it
        // filled to `length`. Both live until the call returns, and nothing else refers to them until then.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        facts(bytes.get(..length as usize).unwrap_or(&bytes))
    }

    /// Parses the filled bytes, which must include the fields of Linux 3.
    pub(super) fn facts(filled: &[u8]) -> io::Result<TcpFacts> {
        let at = |offset: usize| {
            let number = filled.get(offset..).and_then(|rest| rest.first_chunk());
            number.map(|number| u32::from_ne_bytes(*number)).ok_or(io::ErrorKind::UnexpectedEof)
        };
        let span = |offset| at(offset).map(|microseconds| Duration::from_micros(microseconds.into()));
        let rtt = span(offset_of!(tcp_info, tcpi_rtt))?;
        Ok(TcpFacts {
            rtt,
            rtt_var: span(offset_of!(tcp_info, tcpi_rttvar))?,
            rtt_min: span(offset_of!(tcp_info, tcpi_min_rtt)).unwrap_or(rtt).min(rtt),
            retransmits: at(offset_of!(tcp_info, tcpi_total_retrans))?,
            unacknowledged: at(offset_of!(tcp_info, tcpi_unacked))?,
            lost: at(offset_of!(tcp_info, tcpi_lost))?,
            unsent: at(offset_of!(tcp_info, tcpi_notsent_bytes)).unwrap_or(0),
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Socket, TcpFacts, io};

    pub(super) fn read(_: &Socket) -> io::Result<TcpFacts> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_has_a_round_trip_time_after_an_exchange() {
        let (mut near, mut far) = connection();
        near.write_all(b"asked").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        far.write_all(b"reply").unwrap();
        near.read_exact(&mut [0; 5]).unwrap();
        let facts = tcp_info(&SockRef::from(&near)).unwrap();
        assert!(facts.rtt > Duration::ZERO && facts.rtt_var > Duration::ZERO, "{facts:?}");
        assert!(facts.rtt_min > Duration::ZERO && facts.rtt_min <= facts.rtt, "{facts:?}");
        assert_eq!((facts.unacknowledged, facts.lost, facts.retransmits), (0, 0, 0), "{facts:?}");
    }

    #[test]
    fn a_connection_that_has_ended_is_still_described() {
        let (near, far) = connection();
        drop(far);
        assert!(tcp_info(&SockRef::from(&near)).is_ok());
    }

    #[test]
    fn what_is_not_tcp_is_an_error() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(tcp_info(&SockRef::from(&one)).is_err());
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_info(&SockRef::from(&udp)).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(tcp_info(&SockRef::from(&file)).is_err());
    }

    /// Checks that each number is read from its place and none is invented, for kernels of several ages.
    #[test]
    fn an_older_kernel_says_less() {
        // The offsets of linux/tcp.h, which do not move: unacked 24, lost 32, rtt 68, rttvar 72, total_retrans 100,
        // notsent_bytes 144, min_rtt 148.
        let mut bytes = [0_u8; 152];
        for (offset, number) in
            [(24, 1_u32), (32, 2), (68, 3_000), (72, 4_000), (100, 5), (144, 7), (148, 60)]
        {
            bytes[offset..offset + 4].copy_from_slice(&number.to_ne_bytes());
        }
        let all = TcpFacts {
            rtt: Duration::from_millis(3),
            rtt_var: Duration::from_millis(4),
            rtt_min: Duration::from_micros(60),
            retransmits: 5,
            unacknowledged: 1,
            lost: 2,
            unsent: 7,
        };
        assert_eq!(system::facts(&bytes).unwrap(), all);
        let older = TcpFacts { rtt_min: all.rtt, unsent: 0, ..all };
        assert_eq!(system::facts(&bytes[..104]).unwrap(), older);
        assert_eq!(system::facts(&bytes[..103]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(system::facts(&[]).is_err());
    }
}
