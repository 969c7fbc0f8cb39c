//! The network and the wall clock of one gateway.

use super::fault::Micros;
use super::network::{End, Network};
use super::token::EPOCH;
use parking_lot::Mutex;
use postern_spend::memcached::{Address, Connecting, Connection, World};
use postern_token::UnixSeconds;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep, sleep_until};

/// The network, and the start of its time.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    pub(crate) network: Arc<Mutex<Network>>,
    began: Instant,
}

impl Fabric {
    /// Starts the network's time on the current runtime.
    pub(crate) fn start(network: Network) -> Self {
        let fabric = Self { network: Arc::new(Mutex::new(network)), began: Instant::now() };
        tokio::spawn(fabric.clone().drive());
        fabric
    }

    pub(crate) fn now(&self) -> Micros {
        self.began.elapsed().as_micros() as Micros
    }

    /// Changes the network, after every event that is due.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Network) -> T) -> T {
        let mut network = self.network.lock();
        network.run_until(self.now());
        change(&mut network)
    }

    async fn drive(self) {
        loop {
            let due = self.change(|network| network.next());
            let wait = async {
                match due {
                    Some(due) => sleep_until(self.began + Duration::from_micros(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.sooner(due) => {}
                () = wait => {}
            }
        }
    }

    /// Waits for an event that is due before `known`.
    async fn sooner(&self, known: Option<Micros>) {
        poll_fn(|cx| {
            let mut network = self.network.lock();
            if network.next().is_some_and(|next| known.is_none_or(|known| next < known)) {
                return Poll::Ready(());
            }
            network.driver = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) fabric: Fabric,
    pub(crate) gateway: usize,
    /// Seconds by which the machine's clock is ahead.
    pub(crate) offset: AtomicI64,
}

impl World for Machine {
    fn connect<'a>(&'a self, address: &'a Address) -> Connecting<'a> {
        Box::pin(async move {
            let Address::Tcp { port, .. } = address else { return Err(io::ErrorKind::Unsupported.into()) };
            let travel = self.fabric.change(|network| network.travel());
            sleep(Duration::from_micros(travel)).await;
            match self.fabric.change(|network| network.connect(self.gateway, *port)) {
                Some(Ok(link)) => {
                    let connection = Link { fabric: self.fabric.clone(), link };
                    Ok(Box::new(connection) as Box<dyn Connection>)
                }
                Some(Err(error)) => Err(error),
                None => std::future::pending().await,
            }
        })
    }

    fn now(&self) -> UnixSeconds {
        let second = EPOCH + self.fabric.now() / 1_000_000;
        UnixSeconds(second.saturating_add_signed(self.offset.load(Ordering::Relaxed)))
    }
}

/// The gateway's end of a connection.
#[derive(Debug)]
struct Link {
    fabric: Fabric,
    link: usize,
}

impl Connection for Link {}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.fabric.change(|network| {
            let link = &mut network.links[self.link];
            if link.inbox.is_empty() {
                return match link.end {
                    Some(End::Closed) => Poll::Ready(Ok(())),
                    Some(End::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    None => {
                        link.reader = Some(cx.waker().clone());
                        Poll::Pending
                    }
                };
            }
            let length = buf.remaining().min(link.inbox.len());
            buf.put_slice(&link.inbox.make_contiguous()[..length]);
            link.inbox.drain(..length);
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fabric.change(|network| {
            if network.links[self.link].end.is_some() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            network.write(self.link, bytes);
            Poll::Ready(Ok(bytes.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Link {
    /// Closes the gateway's end. Bytes sent before still arrive; replies do not.
    fn drop(&mut self) {
        let mut network = self.fabric.network.lock();
        let link = &mut network.links[self.link];
        (link.is_open, link.reader) = (false, None);
        link.inbox.clear();
    }
}
