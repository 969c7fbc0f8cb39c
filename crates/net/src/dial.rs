//! A TCP connection to one of several addresses by Happy Eyeballs (RFC 8305): neither a dead address nor one that is not known
//! yet uses up the time limit.

use crate::Families;
use socket2::{Domain, Socket, Type};
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Age of an attempt at which the next starts in parallel (RFC 8305, section 8: the recommended delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of addresses tried for one connection: the owner of a name chooses how many it has.
const MOST_TRIED: usize = 16;
/// Permits for attempts in parallel to another one of the same connection, in the whole process: each takes a file descriptor,
/// and the limit of connections includes one descriptor for each connection's first attempt only.
static PARALLEL: Semaphore = Semaphore::const_new(32);

pub(crate) fn from_any(addresses: Vec<SocketAddr>) -> Vec<Candidate> {
    addresses.into_iter().map(|to| Candidate { to, from: None }).collect()
}

/// Connects to `first`, or to the candidates made of addresses of `families` that arrive until `deadline`. After it none are
/// awaited, so that a host that refused is not reported as silent.
///
/// # Errors
/// The error of the attempt that failed last; `NotFound` without addresses.
pub async fn connect_found<A: Clone>(
    first: Vec<Candidate>,
    mut families: Families<'_, A>,
    deadline: Instant,
    candidates: impl FnOnce(Vec<A>) -> Vec<Candidate>,
) -> io::Result<TcpStream> {
    let is_awaited = !families.are_complete();
    let later = async { candidates(timeout_at(deadline, families.rest()).await.unwrap_or_default()) };
    connect_from(first, is_awaited.then_some(later)).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub to: SocketAddr,
    /// The local address, of the same family; `None` if the system chooses.
    pub from: Option<IpAddr>,
}

impl Candidate {
    async fn connect(self) -> io::Result<TcpStream> {
        let socket = nonblocking(Domain::for_address(self.to))?;
        if let Some(from) = self.from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&self.to.into()) {
            Err(error) if !is_in_progress(&error) => return Err(error),
            _ => {}
        }
        let stream = TcpStream::from_std(socket.into())?;
        // An attempt that fails closes both sides of its socket. tokio's own `connect` queries each socket for its error; this
        // code saves that system call on sockets without an error.
        if stream.ready(Interest::WRITABLE).await?.is_write_closed()
            && let Some(error) = stream.take_error()?
        {
            return Err(error);
        }
        Ok(stream)
    }
}

#[cfg(target_os = "linux")]
fn nonblocking(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::STREAM.nonblocking(), None)
}

/// Takes one system call more than on Linux.
#[cfg(not(target_os = "linux"))]
fn nonblocking(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(unix)]
fn is_in_progress(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32)
}

#[cfg(windows)]
fn is_in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Connects to one of `candidates`, which are in the resolver's order, or of those that arrive `later`. The families take turns,
/// and an attempt starts when the previous one has failed or is 250 ms old. The first connection wins; the other attempts are
/// dropped. Without a permit for parallel attempts, the next starts only when no attempt is in progress.
///
/// # Errors
/// The error of the attempt that failed last, once no more candidates can arrive: `AddrNotAvailable` if a local address is not of
/// this machine or all of its ports are in use, `NotFound` without candidates. The caller limits the time.
async fn connect_from(
    candidates: Vec<Candidate>,
    later: Option<impl Future<Output = Vec<Candidate>>>,
) -> io::Result<TcpStream> {
    if let ([only], None) = (&candidates[..], &later) {
        return (*only).connect().await;
    }
    let mut waiting = interleaved(candidates, MOST_TRIED, |candidate| candidate.to.is_ipv6());
    let mut later = pin!(later);
    let (mut attempts, mut left) = (JoinSet::new(), MOST_TRIED);
    let mut due = Instant::now();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let is_alone = attempts.is_empty();
        if !waiting.is_empty() && (is_alone || Instant::now() >= due) {
            let permit = if is_alone { None } else { PARALLEL.try_acquire().ok() };
            due = Instant::now() + ATTEMPT_DELAY;
            if is_alone || permit.is_some() {
                let candidate = waiting.remove(0);
                left -= 1;
                attempts.spawn(async move {
                    let _permit = permit;
                    candidate.connect().await
                });
            }
        } else if is_alone && later.is_none() {
            return Err(last_error);
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => {
                match ended {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => last_error = error,
                    Err(error) => last_error = io::Error::other(error), // the attempt panicked
                }
                due = Instant::now();
            }
            more = async {
                match later.as_mut().as_pin_mut() {
                    Some(later) => later.await,
                    None => pending().await,
                }
            } => {
                later.set(None);
                waiting = interleaved([more, waiting].concat(), left, |candidate| candidate.to.is_ipv6());
            }
            () = sleep_until(due), if !waiting.is_empty() => {}
        }
    }
}

/// Alternates between the families, beginning with that of the first address (RFC 8305, section 4); at most `most`, in order
/// within each.
pub fn interleaved<T>(addresses: Vec<T>, most: usize, is_v6: impl Fn(&T) -> bool) -> Vec<T> {
    let first_is_v6 = addresses.first().is_some_and(&is_v6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| is_v6(address) == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    while first.len() + second.len() > 0 {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered.truncate(most);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Ready;
    use tokio::net::TcpListener;

    async fn connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
        connect_from(from_any(addresses), None::<Ready<_>>).await
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_the_first_answers_family_begins() {
        let interleaved = |given: Vec<SocketAddr>| interleaved(given, MOST_TRIED, SocketAddr::is_ipv6);
        let given = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"]);
        assert_eq!(interleaved(given), addresses(&["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"]));
        let given = addresses(&["1.1.1.1:1", "1.1.1.2:1", "[2606::1]:1", "1.1.1.3:1"]);
        let expected = addresses(&["1.1.1.1:1", "[2606::1]:1", "1.1.1.2:1", "1.1.1.3:1"]);
        assert_eq!(interleaved(given), expected);
    }

    #[tokio::test]
    async fn a_dead_first_address_does_not_keep_the_second_from_answering() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let closed = postern_testkit::ports::closed();
        let stream = connect(vec![closed, good]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        for dead in [vec![closed], vec![closed, closed]] {
            assert_eq!(connect(dead).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
        assert_eq!(connect(Vec::new()).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_local_address_is_the_one_that_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let from = |text: &str| vec![Candidate { to, from: Some(text.parse().unwrap()) }];
        let stream = connect_from(from("127.0.0.3"), None::<Ready<_>>).await.unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 3]));
        let error = connect_from(from("192.0.2.1"), None::<Ready<_>>).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[tokio::test]
    async fn addresses_that_come_later_are_tried_too_and_an_attempt_in_progress_is_not_given_up_for_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let closed = postern_testkit::ports::closed();
        let later = |addresses: Vec<SocketAddr>| {
            Some(async {
                tokio::task::yield_now().await;
                from_any(addresses)
            })
        };
        for (first, rest) in
            [(vec![closed], vec![good]), (vec![], vec![closed, good]), (vec![good], vec![closed])]
        {
            let stream = connect_from(from_any(first), later(rest)).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        }
        let error = connect_from(from_any(vec![closed]), later(vec![])).await.unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::ConnectionRefused,
            "what is known of the address that was tried"
        );
        assert!(
            connect_from(from_any(vec![good]), Some(pending())).await.is_ok(),
            "without waiting for the rest"
        );
    }
}
