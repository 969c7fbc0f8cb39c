//! The last stage: bytes both ways until both sides are done, or nothing moves for too long (the connection's task ends
//! it when the drain's deadline comes). It takes a [`Dialled`], which takes an admission, by a spent token or
//! a peer: there is no other way to open a tunnel.

use crate::config::Limits;
use crate::observe::recorder::{Account, Recorder};
use crate::request::dial::Dialled;
use bytes::Bytes;
use postern_config::ConfigDuration;
use postern_proxy::relay::{Relay, Relayed, TunnelEnd};
use postern_proxy::reset::Reset;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// Runs the tunnel to its end, or to that of its lifetime. `early` are the client's bytes that came with its request.
///
/// Not an async function: every tunnel would have room for its arguments beside what is made of them.
pub(crate) fn run<C>(
    client: C,
    (dialled, account): (Dialled, Account),
    early: Bytes,
    limits: &TunnelLimits,
    recorder: &Recorder,
) -> impl Future<Output = ()>
where
    C: AsyncRead + AsyncWrite + Reset + Unpin,
{
    let (open, received) = (recorder.tunnel_opened(), dialled.received());
    let relay = Relay::new(client, dialled.stream, &early, Some(limits.idle))
        .metered(recorder.meter())
        .paced(limits.bytes_a_second);
    drop(early); // copied; what it shares is HTTP's read buffer, which a tunnel has no use for
    let mut tunnel = Tunnel { relay, began: Instant::now(), account: Some(account), recorder };
    let lifetime = limits.lifetime;
    async move {
        let _open = open;
        let relaying = received.keep_taking(&mut tunnel.relay);
        let relayed = match lifetime {
            None => Some(relaying.await),
            Some(lifetime) => Box::pin(timeout(lifetime, relaying)).await.ok(), // boxed, because few tunnels have one
        };
        let relayed = relayed.unwrap_or_else(|| Relayed { ended: TunnelEnd::Expired, ..tunnel.relay.cut() });
        tunnel.record_end(&relayed);
    }
}

/// What a tunnel may do, as the configuration was when its connection began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunnelLimits {
    idle: Duration,
    lifetime: Option<Duration>,
    bytes_a_second: Option<u64>,
}

impl TunnelLimits {
    pub(crate) fn of(limits: &Limits) -> Self {
        Self {
            idle: limits.idle_timeout.get(),
            lifetime: limits.tunnel_lifetime.map(ConfigDuration::get),
            bytes_a_second: limits.tunnel_rate.map(|rate| rate.0),
        }
    }
}

/// An open tunnel. Its end is recorded once, also if it is dropped early, as the drain's deadline does.
struct Tunnel<'a, C: Reset, T: Reset> {
    relay: Relay<C, T>,
    began: Instant,
    account: Option<Account>,
    recorder: &'a Recorder,
}

impl<C: Reset, T: Reset> Tunnel<'_, C, T> {
    fn record_end(&mut self, relayed: &Relayed) {
        if let Some(account) = self.account.take() {
            self.recorder.tunnel_closed(self.began.elapsed(), relayed.ended);
            account.tunnel_ended(self.began, relayed);
        }
    }
}

impl<C: Reset, T: Reset> Drop for Tunnel<'_, C, T> {
    fn drop(&mut self) {
        self.record_end(&self.relay.cut());
    }
}
