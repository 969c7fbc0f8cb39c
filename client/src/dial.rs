//! A TCP connection to a name with several addresses, where a dead one must not cost the whole time limit: RFC 8305
//! in short. Attempts start 250 ms apart, or at once when the one before has failed; the first to connect wins.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// RFC 8305, section 8: the recommended delay between attempts.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to `host`, a name or an address without brackets.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = interleave(lookup_host((host, port)).await?.collect());
    let mut left = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let next = left.next();
        let all_started = next.is_none();
        if let Some(address) = next {
            attempts.spawn(TcpStream::connect(address));
        } else if attempts.is_empty() {
            return Err(last_error);
        }
        let finished = if all_started {
            attempts.join_next().await
        } else {
            timeout(ATTEMPT_DELAY, attempts.join_next()).await.unwrap_or_default()
        };
        match finished {
            Some(Ok(Ok(stream))) => return Ok(stream), // dropping the set ends the other attempts
            Some(Ok(Err(error))) => last_error = error,
            Some(Err(error)) => last_error = io::Error::other(error),
            None => {}
        }
    }
}

/// Families in turns, that of the system's first answer first (RFC 8305, section 4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::new();
    loop {
        let before = turns.len();
        turns.extend(first.next());
        turns.extend(second.next());
        if turns.len() == before {
            return turns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let addresses =
            |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let given = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"]);
        assert_eq!(interleave(given), addresses(&["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"]));
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_error_at_once() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect("127.0.0.1", port).await.unwrap();
        drop(listener);
        assert_eq!(connect("127.0.0.1", port).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
