//! The client's stream of a tunnel whose capsules go on to another proxy, which has the socket. Capsules pass unchanged, as an
//! intermediary forwards them (RFC 9297, section 3.2), but for datagrams that a slow client does not take: they are dropped, as
//! without a next hop, so they cost no memory and delay no later ones. Datagrams are counted, and a malformed stream ends here
//! already.

use super::capsule::{Decoder, MAX_PAYLOAD};
use super::relay::{DatagramMeter, KEPT};
use crate::reset::Reset;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A client's stream: reading counts its datagrams, and writing never waits for it while what is written is datagrams.
pub struct Forwarded<S> {
    stream: S,
    up: Decoder,
    down: Decoder,
    /// Capsules that the client has not taken, from index `written` on.
    pending: Vec<u8>,
    written: usize,
    /// `true` if the present capsule towards the client is dropped.
    drops: bool,
    is_malformed: bool,
    /// Last time the client took a byte, or a write found nothing pending.
    taken: Instant,
    patience: Duration,
    meter: Arc<DatagramMeter>,
}

impl<S: AsyncRead + AsyncWrite + Reset + Unpin> Forwarded<S> {
    /// Wraps the stream of a client, which may take nothing for as long as `patience`. `early` has its bytes that came with its
    /// request, which are not read again. Call it inside a tokio runtime.
    pub fn new(stream: S, early: &[u8], patience: Duration, meter: &Arc<DatagramMeter>) -> Self {
        let decoder = || Decoder::new(MAX_PAYLOAD);
        let mut forwarded = Self {
            stream,
            up: decoder(),
            down: decoder(),
            pending: Vec::new(),
            written: 0,
            drops: false,
            is_malformed: false,
            taken: Instant::now(),
            patience,
            meter: Arc::clone(meter),
        };
        forwarded.is_malformed = forwarded.count(early).is_err();
        forwarded
    }

    fn count(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(piece) = self.up.piece(&mut bytes).map_err(|_| gone())? {
            self.meter.up.add(u64::from(piece.begins_datagram()));
        }
        Ok(())
    }

    /// Adds capsules to those that wait for the client, but for datagrams that find no room.
    fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(piece) = self.down.piece(&mut bytes).map_err(|_| gone())? {
            if let Some(length) = piece.length {
                let waiting = self.pending.len() - self.written;
                let fits = waiting == 0 || waiting as u64 + piece.head().len() as u64 + length <= KEPT as u64;
                self.drops = piece.begins_datagram() && !fits;
                let counter = if self.drops { &self.meter.dropped.down } else { &self.meter.down };
                counter.add(u64::from(piece.begins_datagram()));
            }
            if !self.drops {
                self.pending.extend_from_slice(piece.head());
                self.pending.extend_from_slice(piece.body);
            }
        }
        Ok(())
    }

    /// Writes what waits for the client. Fails after its patience.
    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.pending[self.written..])? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => (self.written, self.taken) = (self.written + written, Instant::now()),
                Poll::Pending if self.taken.elapsed() > self.patience => return Poll::Ready(Err(gone())),
                Poll::Pending => {
                    // A client that is slower than its datagrams come always has some waiting.
                    if self.written >= KEPT {
                        self.pending.drain(..self.written);
                        self.written = 0;
                    }
                    return Poll::Pending;
                }
            }
        }
        // Freed instead of kept: most tunnels are idle most of the time.
        (self.pending, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

/// Returns an error that ends both directions of a relay.
fn gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl<S: AsyncRead + AsyncWrite + Reset + Unpin> AsyncRead for Forwarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let forwarded = &mut *self;
        let before = buffer.filled().len();
        if !forwarded.is_malformed {
            ready!(Pin::new(&mut forwarded.stream).poll_read(cx, buffer))?;
            let read = &buffer.filled()[before..];
            let is_cut = read.is_empty() && !forwarded.up.is_between();
            forwarded.is_malformed = is_cut || forwarded.count(read).is_err();
        }
        if forwarded.is_malformed {
            buffer.set_filled(before); // a reader that fails has read nothing
            forwarded.stream.reset_as_malformed();
            return Poll::Ready(Err(gone()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Reset + Unpin> AsyncWrite for Forwarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let forwarded = &mut *self;
        let is_free = forwarded.poll_pending(cx)?.is_ready();
        if is_free {
            forwarded.taken = Instant::now();
        } else if forwarded.pending.len() - forwarded.written > KEPT {
            return Poll::Pending; // capsules that may not be dropped
        }
        forwarded.add(bytes)?;
        let _ = forwarded.poll_pending(cx)?; // a flush writes the rest
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        if !self.down.is_between() {
            return Poll::Ready(Err(gone())); // an end in order would hide that a capsule is cut
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Reset> Reset for Forwarded<S> {
    fn inner(&self) -> Option<&dyn Reset> {
        Some(&self.stream)
    }

    fn is_delivered(&self) -> bool {
        self.written == self.pending.len() && self.stream.is_delivered()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::capsule::encode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(120);

    /// An unknown capsule, which goes on, and three datagrams.
    fn stream() -> Vec<u8> {
        let mut stream = vec![0x17, 3, 0, 0, 0];
        [&b"one"[..], b"", &[7; 1200]].iter().for_each(|payload| encode(payload, &mut stream));
        stream
    }

    #[tokio::test]
    async fn bytes_pass_unchanged_and_datagrams_count_wherever_they_are_cut() {
        let sent = stream();
        for piece in [1, 2, 7, 4096] {
            let (meter, (near, mut far)) = (DatagramMeter::apart(), duplex(piece));
            let mut client = Forwarded::new(near, &sent[..7], LONG, &meter);
            let rest = sent[7..].to_vec();
            let sending = async {
                far.write_all(&rest).await.unwrap();
                far.shutdown().await.unwrap();
                let mut got = Vec::new();
                far.read_to_end(&mut got).await.unwrap();
                got
            };
            let passing = async {
                let mut found = Vec::new();
                client.read_to_end(&mut found).await.unwrap();
                for cut in sent.chunks(piece) {
                    client.write_all(cut).await.unwrap();
                }
                client.shutdown().await.unwrap();
                drop(client);
                found
            };
            let (got, found) = tokio::join!(sending, passing);
            assert!(found == sent[7..] && got == sent, "in pieces of {piece}");
            assert_eq!((meter.up.total(), meter.down.total(), meter.dropped.down.total()), (3, 3, 0));
        }
    }

    #[tokio::test]
    async fn a_malformed_stream_or_one_that_is_cut_fails_as_a_connection_that_is_gone() {
        for (early, bytes) in [(&[0, 0][..], &[][..]), (&[], &[0, 0]), (&[], &[0, 9, 0, 1]), (&[0, 9], &[])] {
            let (near, mut far) = duplex(64);
            let mut client = Forwarded::new(near, early, LONG, &DatagramMeter::apart());
            far.write_all(bytes).await.unwrap();
            drop(far);
            let failed = client.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(failed.kind(), io::ErrorKind::ConnectionAborted, "{early:?} {bytes:?}");
        }
        let (near, _far) = duplex(64);
        let mut client = Forwarded::new(near, &[], LONG, &DatagramMeter::apart());
        client.write_all(&[0, 9, 0, 1]).await.unwrap();
        assert!(client.shutdown().await.is_err(), "the next hop ended within a capsule");
        assert!(client.write_all(&[0; 64]).await.is_err(), "the next hop sent no capsule");
    }

    fn waiting(client: &Forwarded<DuplexStream>) -> usize {
        client.pending.len() - client.written
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_loses_whole_datagrams_and_no_other_capsule() {
        let (meter, (near, mut far)) = (DatagramMeter::apart(), duplex(2000));
        let mut client = Forwarded::new(near, &[], LONG, &meter);
        let mut datagram = Vec::new();
        encode(&[7; 1200], &mut datagram);
        for _ in 0..1000 {
            client.write_all(&datagram).await.unwrap();
            assert!(waiting(&client) <= KEPT);
        }
        let (kept, dropped) = (meter.down.total(), meter.dropped.down.total());
        assert!((50..60).contains(&kept) && kept + dropped == 1000, "{kept} kept, {dropped} dropped");
        // What is not a datagram is kept, and a long one waits until the client takes it.
        let unknown = [&[0x17, 0x80, 2, 0, 0][..], &[9; 128 << 10]].concat();
        let mut sent = 0;
        while let Ok(written) =
            timeout(Duration::from_millis(20), client.write(&unknown[sent..sent + 4096])).await
        {
            sent += written.unwrap();
            assert!(waiting(&client) <= 2 * KEPT);
        }
        let reading = async {
            let mut got = vec![0; kept as usize * datagram.len() + unknown.len()];
            far.read_exact(&mut got).await.unwrap();
            got
        };
        let writing = async {
            client.write_all(&unknown[sent..]).await.unwrap();
            client.flush().await.unwrap();
        };
        let (got, ()) = tokio::join!(reading, writing);
        assert!(got == [datagram.repeat(kept as usize), unknown].concat());
        assert_eq!(client.pending.capacity(), 0);
    }

    /// Something always waits for it.
    #[tokio::test]
    async fn a_client_that_reads_slower_than_datagrams_come_costs_no_memory() {
        let (near, mut far) = duplex(2000);
        let mut client = Forwarded::new(near, &[], LONG, &DatagramMeter::apart());
        let (mut datagram, mut room) = (Vec::new(), [0; 1203]);
        encode(&[7; 1200], &mut datagram);
        for _ in 0..2000 {
            client.write_all(&datagram).await.unwrap();
            client.write_all(&datagram).await.unwrap();
            far.read_exact(&mut room).await.unwrap();
            tokio::task::yield_now().await; // a task that does not yield would get nothing from tokio's streams
            assert!(client.pending.capacity() <= 4 * KEPT, "{}", client.pending.capacity());
        }
        assert!(waiting(&client) > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_for_too_long_is_given_up() {
        let (near, _far) = duplex(10);
        let mut client = Forwarded::new(near, &[], LONG, &DatagramMeter::apart());
        let mut datagram = Vec::new();
        encode(&[7; 1200], &mut datagram);
        let began = Instant::now();
        while client.write_all(&datagram).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!((LONG..LONG + Duration::from_secs(3)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
