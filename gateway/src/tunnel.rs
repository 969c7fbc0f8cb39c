//! The last stage: bytes both ways until both sides are done, or nothing moves for too long (the connection's
//! task ends it when the drain's deadline comes). It takes a [`Dialled`], which takes a spent token: there is no other way to open a tunnel.

use crate::dial::Dialled;
use crate::recorder::{Account, Recorder};
use bytes::Bytes;
use postern_service::relay::Relay;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Runs the tunnel to its end. `early` are the client's bytes that came with its request.
pub(crate) async fn run<C>(
    client: C,
    (dialled, account): (Dialled, Account),
    early: Bytes,
    idle: Duration,
    recorder: &Recorder,
) where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let started = Instant::now();
    let _open = recorder.tunnel_opened();
    let relay = Relay::new(client, dialled.stream, &early, Some(idle)).metered(recorder.meter());
    drop(early); // copied; what it shares is HTTP's read buffer, which a tunnel has no use for
    let relayed = relay.await;
    recorder.tunnel_closed(started.elapsed(), relayed.ended);
    account.tunnel_ended(started, &relayed);
}
