//! Last stage: relays bytes or datagrams in both directions until both sides end, or nothing moves for too long. At the drain's
//! deadline the connection's task ends the tunnel. A tunnel requires a [`Dialled`](crate::request::dial::Dialled), which
//! requires an admission by a spent token or a peer: there is no other way to open a tunnel.

use crate::config::Limits;
use crate::observe::recorder::{Account, Recorder};
use crate::request::dial::Connected;
use crate::request::session::Opened;
use bytes::Bytes;
use postern_config::ConfigDuration;
use postern_proxy::relay::{Relay, Relayed, TunnelEnd};
use postern_proxy::reset::Reset;
use postern_proxy::tunnel::Received;
use postern_proxy::udp::forwarded::Forwarded;
use postern_proxy::udp::relay::UdpRelay;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::either::Either;

/// Runs the tunnel until it ends or its lifetime is over. `early` are the client's bytes that arrived with its request.
///
/// Not an async function: every tunnel would hold memory for the arguments in addition to the values built from them.
pub(crate) fn run<'a, C>(
    client: C,
    (connected, account): Opened,
    early: Bytes,
    limits: &Limits,
    recorder: &'a Recorder,
) -> impl Future<Output = ()> + use<'a, C>
where
    C: AsyncRead + AsyncWrite + Reset + Unpin,
{
    let (open, record) = (recorder.tunnel_opened(), (account, recorder));
    let (idle, udp_idle) = (limits.idle_timeout.get(), limits.udp_idle_timeout.get());
    let (lifetime, rate) =
        (limits.tunnel_lifetime.map(ConfigDuration::get), limits.tunnel_rate.map(|rate| rate.0));
    // `early` is copied and dropped; it shares HTTP's read buffer, which a tunnel does not need.
    match connected {
        Connected::Stream(dialled) => {
            let received = dialled.received();
            let relay = Relay::new(client, dialled.connection, &early, Some(idle))
                .metered(&recorder.meter)
                .paced(rate);
            Either::Left(drive((relay, Relay::cut), record, received, lifetime, open))
        }
        // Boxed: most tunnels are of TCP, and should not have the size of this future.
        Connected::Datagrams(dialled) => {
            let meter = &recorder.datagrams;
            let relay = UdpRelay::new(client, dialled.connection, &early, udp_idle, meter).paced(rate);
            let open = (open, recorder.udp_opened());
            let driving = drive((relay, UdpRelay::cut), record, Received::default(), lifetime, open);
            Either::Right(Either::Left(Box::pin(driving)))
        }
        Connected::Capsules(dialled) => {
            let received = dialled.connection.received();
            let client = Forwarded::new(client, &early, udp_idle, &recorder.datagrams);
            let relay = Relay::new(client, dialled.connection, &early, Some(udp_idle))
                .metered(&recorder.meter)
                .paced(rate)
                .ending_together();
            let open = (open, recorder.udp_opened());
            let driving = drive((relay, Relay::cut), record, received, lifetime, open);
            Either::Right(Either::Right(Box::pin(driving)))
        }
    }
}

/// Runs a relay until it ends or its lifetime is over. `open` counts the tunnel until then.
fn drive<R>(
    (relay, cut): (R, fn(&R) -> Relayed),
    (account, recorder): (Account, &Recorder),
    received: Received,
    lifetime: Option<Duration>,
    open: impl Sized,
) -> impl Future<Output = ()>
where
    R: Future<Output = Relayed> + Unpin,
{
    let mut tunnel = Tunnel { relay, cut, began: Instant::now(), account: Some(account), recorder };
    async move {
        let _open = open;
        let relaying = received.keep_taking(&mut tunnel.relay);
        let relayed = match lifetime {
            None => Some(relaying.await),
            Some(lifetime) => Box::pin(timeout(lifetime, relaying)).await.ok(), // boxed, because few tunnels have one
        };
        let expired = || Relayed { ended: TunnelEnd::Expired, ..cut(&tunnel.relay) };
        let relayed = relayed.unwrap_or_else(expired);
        tunnel.record_end(&relayed);
    }
}

/// An open tunnel. Its end is recorded once, also if it is dropped early, as at the drain's deadline.
struct Tunnel<'a, R> {
    relay: R,
    /// Returns the bytes relayed so far.
    cut: fn(&R) -> Relayed,
    began: Instant,
    account: Option<Account>,
    recorder: &'a Recorder,
}

impl<R> Tunnel<'_, R> {
    fn record_end(&mut self, relayed: &Relayed) {
        if let Some(account) = self.account.take() {
            self.recorder.tunnel_closed(self.began.elapsed(), relayed.ended);
            account.tunnel_ended(self.began, relayed);
        }
    }
}

impl<R> Drop for Tunnel<'_, R> {
    fn drop(&mut self) {
        self.record_end(&(self.cut)(&self.relay));
    }
}
